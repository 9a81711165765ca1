//! Where checkpoints are, and by whose right.

use streamforge_core::s3::{PREFIX_BYTES_MAX, S3Place, SCHEME};
use streamforge_crds::v1alpha1::{S3Access, StreamJob};
use streamforge_plan::s3_place;

use super::{Identity, Problem, Problems};
use crate::settings::Settings;

const STORAGE: &str = "spec.checkpoint.storage";

/// The place of this job's checkpoints, if one can be told.
pub(super) fn check(
    job: &StreamJob,
    identity: &Identity,
    settings: &Settings,
    problems: &mut Problems,
) -> Option<S3Place> {
    let storage = job.spec.checkpoint.storage.as_ref();
    let access = storage.and_then(|storage| storage.s3.as_ref());
    check_restore_from(job, access, (identity, settings), problems);
    let Some(storage) = storage else {
        let message = "a job in a cluster needs a place for its checkpoints";
        let cure = "write `storage: {uri: \"s3://bucket/prefix\"}`";
        problems.add(Problem::new(STORAGE, message, cure));
        return None;
    };
    let path = format!("{STORAGE}.uri");
    if !storage.uri.starts_with(SCHEME) {
        let message = format!(
            "`{}` is a folder of a pod, and is gone with the pod",
            storage.uri
        );
        problems.add(Problem::new(
            &path,
            message,
            "write `uri: s3://bucket/prefix`",
        ));
        return None;
    }
    // What is wrong with an address was said by the plan.
    let place = s3_place(&storage.uri, storage.s3.as_ref()).ok()?;
    check_right(&place, &path, (identity, settings), problems);
    let own = below(&place, identity.uid.as_str());
    if own.prefix.len() > PREFIX_BYTES_MAX {
        let most = PREFIX_BYTES_MAX - (own.prefix.len() - place.prefix.len());
        let message = format!(
            "the prefix has {} bytes, and with the job's id behind it at most {most} can be used",
            place.prefix.len()
        );
        problems.add(Problem::new(&path, message, "write a shorter one"));
    }
    Some(own)
}

fn below(place: &S3Place, folder: &str) -> S3Place {
    let prefix = match place.prefix.as_str() {
        "" => folder.to_owned(),
        prefix => format!("{prefix}/{folder}"),
    };
    S3Place {
        prefix,
        ..place.clone()
    }
}

/// Without credentials of its own a job would use the operator's, for whatever it names.
fn check_right(
    place: &S3Place,
    path: &str,
    (identity, settings): (&Identity, &Settings),
    problems: &mut Problems,
) {
    let namespace = &identity.namespace;
    // What is wrong with the name of a secret is told by another check.
    if place.access.credentials_secret.is_some() || settings.may_use(namespace, place) {
        return;
    }
    let message = format!("{place} is not shared with jobs of the namespace `{namespace}`");
    let cure = format!(
        "name a secret with the keys accessKeyId and secretAccessKey in \
         {STORAGE}.s3.credentialsSecret, or have the store added to the operator's sharedStores"
    );
    problems.add(Problem::new(path, message, cure));
}

fn check_restore_from(
    job: &StreamJob,
    access: Option<&S3Access>,
    who: (&Identity, &Settings),
    problems: &mut Problems,
) {
    let uri = job
        .spec
        .restore_from
        .as_ref()
        .and_then(|it| it.uri.as_ref());
    let Some(uri) = uri else { return };
    let path = "spec.restoreFrom.uri";
    if !uri.starts_with(SCHEME) {
        let message = format!("`{uri}` is a folder of a pod, and a pod has no folders of yours");
        problems.add(Problem::new(
            path,
            message,
            "write `uri: s3://bucket/prefix`",
        ));
        return;
    }
    if let Ok(place) = s3_place(uri, access) {
        check_right(&place, path, who, problems);
    }
}
