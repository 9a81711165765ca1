//! How the job runs: numbers and places that must fit together.

use streamforge_core::units::HumanDuration;
use streamforge_crds::reserved::CLUSTER_FIELDS;
use streamforge_crds::v1alpha1::{Delivery, OnDelete, StreamJobSpec};

use super::kafka;
use super::nodes::Context;
use super::s3;
use crate::problem::{Problems, listed};
use crate::structure::Places;

pub(super) fn check(
    spec: &StreamJobSpec,
    places: &Places,
    problems: &mut Problems,
    notes: &mut Problems,
) {
    let mut context = Context { places, problems };
    if spec.parallelism > spec.max_parallelism {
        let message = format!(
            "parallelism {} is larger than maxParallelism {}",
            spec.parallelism, spec.max_parallelism
        );
        let hint = "lower it, or raise maxParallelism, which cannot change while state exists";
        context.add("spec.parallelism", message, Some(hint.to_owned()));
    }
    for (path, duration) in [
        ("spec.checkpoint.interval", spec.checkpoint.interval),
        ("spec.checkpoint.timeout", spec.checkpoint.timeout),
        ("spec.restart.window", spec.restart.window),
        ("spec.restart.backoff.initial", spec.restart.backoff.initial),
    ] {
        positive(path, duration, &mut context);
    }
    if spec.restart.backoff.initial > spec.restart.backoff.max {
        let message = format!(
            "initial {} is longer than max {}",
            spec.restart.backoff.initial, spec.restart.backoff.max
        );
        context.add("spec.restart.backoff", message, None);
    }
    if spec.state.memory_limit.bytes() == 0 {
        context.add("spec.state.memoryLimit", "the limit is zero", None);
    }
    check_storage(spec, &mut context);
    check_detection(spec, &mut context);
    check_restore_from(spec, &mut context);
    let problems = &mut *notes;
    kafka::note_settings(spec, &mut Context { places, problems });
    note_cluster_fields(spec, places, notes);
    note_delivery_of_files(spec, places, notes);
}

fn positive(path: &str, duration: HumanDuration, context: &mut Context<'_>) {
    if duration.is_zero() {
        context.add(path, "the time must be longer than zero", None);
    }
}

fn check_storage(spec: &StreamJobSpec, context: &mut Context<'_>) {
    let Some(storage) = &spec.checkpoint.storage else {
        return;
    };
    let path = "spec.checkpoint.storage.uri";
    let access = (storage.s3.as_ref(), "spec.checkpoint.storage.s3");
    if s3::is_s3(&storage.uri) {
        s3::check((&storage.uri, path), access, context);
        return;
    }
    check_file_uri(&storage.uri, path, "checkpoints", context);
    s3::check_none(access.0, access.1, context);
}

fn check_file_uri(uri: &str, path: &str, what: &str, context: &mut Context<'_>) {
    let hint = Some("write `file:///absolute/path` or `s3://bucket/prefix`".to_owned());
    match uri.split_once("://") {
        Some(("file", rest)) if rest.starts_with('/') => {}
        Some(("file", _)) => context.add(path, "the path is not absolute", hint),
        Some((scheme, _)) => {
            context.add(path, format!("`{scheme}://` is no place for {what}"), hint);
        }
        None => context.add(path, format!("`{uri}` is not a URI"), hint),
    }
}

fn check_restore_from(spec: &StreamJobSpec, context: &mut Context<'_>) {
    let Some(restore_from) = &spec.restore_from else {
        return;
    };
    let Some(uri) = &restore_from.uri else { return };
    let path = "spec.restoreFrom.uri";
    if s3::is_s3(uri) {
        let access = spec
            .checkpoint
            .storage
            .as_ref()
            .and_then(|it| it.s3.as_ref());
        return s3::check((uri, path), (access, "spec.checkpoint.storage.s3"), context);
    }
    check_file_uri(uri, path, "savepoints", context);
}

fn check_detection(spec: &StreamJobSpec, context: &mut Context<'_>) {
    let Some(detection) = &spec.failure_detection else {
        return;
    };
    positive(
        "spec.failureDetection.heartbeat",
        detection.heartbeat,
        context,
    );
    if detection.heartbeat >= detection.timeout {
        let message = format!(
            "heartbeat {} is not shorter than timeout {}",
            detection.heartbeat, detection.timeout
        );
        context.add("spec.failureDetection", message, None);
    }
}

fn note_delivery_of_files(spec: &StreamJobSpec, places: &Places, notes: &mut Problems) {
    for (idx, sink) in spec.sinks.iter().enumerate() {
        if sink.file.is_some() && sink.delivery == Some(Delivery::AtLeastOnce) {
            let sink = places.document_idx("spec.sinks", idx);
            let path = format!("spec.sinks[{sink}].delivery");
            let message = "files are written exactly once all the same";
            let hint = Some("leave `delivery` out".to_owned());
            notes.add(places.at(&path), &path, message, hint);
        }
    }
}

/// One note about all fields that mean nothing outside a cluster and say something.
fn note_cluster_fields(spec: &StreamJobSpec, places: &Places, notes: &mut Problems) {
    let says_something = |path: &&str| match *path {
        "spec.suspend" => spec.suspend,
        "spec.upgrade" => spec.upgrade.is_some(),
        "spec.taskManager" => spec.task_manager.is_some(),
        "spec.ttlAfterFinished" => spec.ttl_after_finished.is_some(),
        "spec.checkpoint.onDelete" => spec.checkpoint.on_delete != OnDelete::Delete,
        other => places.has(other),
    };
    let written: Vec<&str> = CLUSTER_FIELDS
        .iter()
        .copied()
        .filter(says_something)
        .collect();
    let Some(first) = written.first() else { return };
    let names = listed(written.iter().map(|path| path.trim_start_matches("spec.")));
    let verb = if written.len() == 1 { "means" } else { "mean" };
    notes.add(
        places.at(first),
        first,
        format!("{names} {verb} nothing outside a cluster"),
        None,
    );
}
