//! Sources and sinks: what they can reach from a pod, and whom they name.

use streamforge_core::s3::SCHEME;
use streamforge_crds::v1alpha1::{KafkaSecurity, S3Access, SecretName, StreamJobSpec};

use super::{Problem, Problems};

pub(super) fn check(spec: &StreamJobSpec, problems: &mut Problems) {
    for (idx, source) in spec.sources.iter().enumerate() {
        let Some(file) = &source.file else { continue };
        if !file.path.starts_with(SCHEME) {
            let path = format!("spec.sources[{idx}].file.path");
            let message = format!(
                "`{}` is a file of a pod, and a pod has no files of yours",
                file.path
            );
            problems.add(Problem::new(
                &path,
                message,
                "write `path: s3://bucket/prefix/`, or read from Kafka; a volume is no help, for nothing tells \
                 whether all pods see the same files there",
            ));
        }
    }
    for (idx, sink) in spec.sinks.iter().enumerate() {
        let Some(file) = &sink.file else { continue };
        if !file.path.starts_with(SCHEME) {
            let path = format!("spec.sinks[{idx}].file.path");
            let message = format!(
                "`{}` is a folder of a pod, and is gone with the pod",
                file.path
            );
            problems.add(Problem::new(
                &path,
                message,
                "write `path: s3://bucket/prefix`; a volume is no help, for nothing tells whether all pods see \
                 the same files there",
            ));
        }
    }
}

/// The secrets that a document names, and where.
pub(super) fn secrets(spec: &StreamJobSpec) -> Vec<(String, String)> {
    let mut named = Vec::new();
    for (idx, source) in spec.sources.iter().enumerate() {
        let path = format!("spec.sources[{idx}]");
        let kafka = source
            .kafka
            .as_ref()
            .and_then(|kafka| kafka.security.as_ref());
        of_kafka(&format!("{path}.kafka.security"), kafka, &mut named);
        let s3 = source.file.as_ref().and_then(|file| file.s3.as_ref());
        of_s3(&format!("{path}.file.s3"), s3, &mut named);
    }
    for (idx, sink) in spec.sinks.iter().enumerate() {
        let path = format!("spec.sinks[{idx}]");
        let kafka = sink
            .kafka
            .as_ref()
            .and_then(|kafka| kafka.security.as_ref());
        of_kafka(&format!("{path}.kafka.security"), kafka, &mut named);
        let s3 = sink.file.as_ref().and_then(|file| file.s3.as_ref());
        of_s3(&format!("{path}.file.s3"), s3, &mut named);
    }
    let storage = spec.checkpoint.storage.as_ref();
    let s3 = storage.and_then(|storage| storage.s3.as_ref());
    of_s3("spec.checkpoint.storage.s3", s3, &mut named);
    named
}

fn of_kafka(path: &str, security: Option<&KafkaSecurity>, named: &mut Vec<(String, String)>) {
    let Some(security) = security else { return };
    for (field, secret) in [
        ("credentialsSecret", &security.credentials_secret),
        ("caSecret", &security.ca_secret),
    ] {
        add(&format!("{path}.{field}"), secret.as_ref(), named);
    }
}

fn of_s3(path: &str, access: Option<&S3Access>, named: &mut Vec<(String, String)>) {
    let secret = access.and_then(|access| access.credentials_secret.as_ref());
    add(&format!("{path}.credentialsSecret"), secret, named);
}

fn add(path: &str, secret: Option<&SecretName>, named: &mut Vec<(String, String)>) {
    if let Some(secret) = secret {
        named.push((path.to_owned(), secret.name.clone()));
    }
}
