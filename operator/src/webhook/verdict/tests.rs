use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::record::Record;
use crate::stream_job::build::KeptPods;
use crate::stream_job::testing::{UID, job, settings, with, with_metadata};
use crate::stream_job::validate::validate;

fn request_of(kind: &str, new: &Value, old: &Value) -> Arc<Request> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "kind": {"group": "streamforge.io", "version": "v1alpha1", "kind": kind},
            "name": "clicks", "namespace": "team",
            "operation": if old.is_null() { "CREATE" } else { "UPDATE" },
            "object": new, "oldObject": old,
        },
    });
    Request::read(review.to_string().as_bytes()).unwrap()
}

fn request(new: &StreamJob, old: Option<&StreamJob>) -> Arc<Request> {
    let json = |job: &StreamJob| serde_json::to_value(job).unwrap();
    request_of("StreamJob", &json(new), &old.map_or(Value::Null, json))
}

/// A job that has run with this document.
fn kept(of: &StreamJob) -> Kept {
    let settings = settings();
    let desired = validate(of, &settings).unwrap_or_else(|problems| panic!("{problems:?}"));
    Kept {
        record: Some(Record {
            ran: true,
            ..Record::new(UID, serde_json::to_value(&of.spec).unwrap(), 3)
        }),
        pods: Some(KeptPods::of(&desired, &settings, None)),
        version: None,
    }
}

fn created(job: &StreamJob) -> Verdict {
    of_job(&request(job, None), None, &settings())
}

/// An edit of `from` by somebody, while `runs` is what was accepted last.
fn edited(runs: &StreamJob, from: &StreamJob, to: &StreamJob) -> Verdict {
    of_job(&request(to, Some(from)), Some(&kept(runs)), &settings())
}

fn of_a_pass(job: &StreamJob) -> Vec<Problem> {
    validate(job, &settings()).expect_err("it is wrong")
}

fn with_filter(filter: &str) -> StreamJob {
    with(&job(), "/transforms/0/filter", json!(filter))
}

#[test]
fn valid_job_is_let_through_without_a_word() {
    assert_eq!(created(&job()), Verdict::default());
}

#[test]
fn wrong_job_is_refused_in_the_words_of_a_pass() {
    for wrong in [
        with_filter("amuont > 0"),
        with(&job(), "/checkpoint/storage/uri", json!("file:///tmp")),
        with(&job(), "/sources/0/schema", json!([])),
        with(
            &job(),
            "/taskManager/resources",
            json!({"requests": {"cpu": "many"}}),
        ),
    ] {
        assert_eq!(
            created(&wrong),
            Verdict {
                problems: of_a_pass(&wrong),
                warnings: Vec::new(),
            }
        );
    }
}

#[test]
fn edit_that_makes_a_valid_job_wrong_is_refused() {
    let wrong = with_filter("amuont > 0");

    assert_eq!(
        edited(&job(), &job(), &wrong),
        Verdict {
            problems: of_a_pass(&wrong),
            warnings: Vec::new(),
        }
    );
}

#[test]
fn edit_elsewhere_may_break_a_field_that_it_does_not_touch() {
    let renamed = with(&job(), "/sources/0/schema/1/name", json!("sum"));
    let verdict = edited(&job(), &job(), &renamed);

    assert_eq!(verdict.problems, of_a_pass(&renamed));
    assert_eq!(verdict.problems[0].path, "spec.transforms[0].filter");
}

#[test]
fn job_that_is_wrong_already_can_be_edited_elsewhere_and_is_told_so() {
    let wrong = with_filter("amuont > 0");
    let still_wrong = with(&wrong, "/parallelism", json!(8));

    let warning = format!("still wrong: {}", of_a_pass(&wrong)[0]);
    assert_eq!(
        edited(&job(), &wrong, &still_wrong),
        Verdict {
            problems: Vec::new(),
            warnings: vec![warning],
        }
    );
}

#[test]
fn second_mistake_in_a_job_that_is_wrong_already_is_refused() {
    let wrong = with_filter("amuont > 0");
    let worse = with(&wrong, "/checkpoint/storage/uri", json!("file:///tmp"));

    assert_eq!(
        edited(&job(), &wrong, &worse),
        Verdict {
            problems: of_a_pass(&worse),
            warnings: Vec::new(),
        }
    );
}

#[test]
fn mended_job_is_let_through_and_says_what_it_does() {
    let wrong = with_filter("amuont > 0");

    assert_eq!(
        edited(&job(), &wrong, &with_filter("amount > 1")),
        Verdict {
            problems: Vec::new(),
            warnings: vec![
                "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
                 keeps the state of per_user"
                    .to_owned()
            ],
        }
    );
}

#[test]
fn edit_that_drops_state_is_refused_and_the_warning_names_the_cure() {
    let window = json!({"tumbling": {"size": "5m"}});
    let to = with(&job(), "/transforms/1/aggregate/window", window);

    let refused = Verdict {
        problems: vec![Problem::new(
            "spec",
            "window of aggregate \"per_user\" changed, which gives its state another meaning",
            "take that back, or write `upgrade: {droppedState: Allow}`",
        )],
        warnings: vec![
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
             drops the state of per_user: set upgrade.droppedState: Allow"
                .to_owned(),
        ],
    };
    assert_eq!(edited(&job(), &job(), &to), refused);

    let allowed = with(&to, "/upgrade/droppedState", json!("Allow"));
    assert_eq!(
        edited(&job(), &job(), &allowed),
        Verdict {
            problems: Vec::new(),
            warnings: vec![
                "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
                 drops the state of per_user"
                    .to_owned()
            ],
        }
    );
}

#[test]
fn what_is_on_record_counts_and_not_what_was_applied_last() {
    // The last edit was refused by a pass: what runs is the job before it.
    let window = json!({"tumbling": {"size": "5m"}});
    let refused = with(&job(), "/transforms/1/aggregate/window", window);

    assert_eq!(edited(&job(), &refused, &job()), Verdict::default());
    let again = with(&refused, "/ttlAfterFinished", json!("1h"));
    let verdict = edited(&job(), &refused, &again);
    assert_eq!(verdict.problems, []);
    assert_eq!(verdict.warnings.len(), 2, "{verdict:?}");
    assert!(verdict.warnings[0].starts_with("still wrong: spec: window of aggregate"));
}

#[test]
fn job_that_cannot_be_read_is_refused_when_that_is_new() {
    let good = serde_json::to_value(job()).unwrap();
    let mut bad = good.clone();
    bad["spec"]["parallelism"] = json!("four");
    let mut labelled = bad.clone();
    labelled["spec"]["suspend"] = json!(true);
    let judge =
        |new: &Value, old: &Value| of_job(&request_of("StreamJob", new, old), None, &settings());

    let verdict = judge(&bad, &good);
    assert_eq!(verdict.problems.len(), 1);
    assert_eq!(verdict.problems[0].path, "spec");
    assert_eq!(judge(&bad, &Value::Null).name(), "denied");
    assert_eq!(judge(&labelled, &bad).name(), "warned");
}

#[test]
fn only_what_a_pass_would_look_at_is_judged() {
    let wrong = with_filter("amuont > 0");
    let annotated = |name: &str| with_metadata(&wrong, "/annotations", json!({name: "1"}));
    for (new, is_judged) in [
        (wrong.clone(), false),
        (with_metadata(&wrong, "/labels", json!({"a": "b"})), false),
        (with_metadata(&wrong, "/finalizers", json!(["a/b"])), false),
        (annotated("a/b"), false),
        (annotated("streamforge.io/restart"), true),
        (annotated("streamforge.io/rewind-to"), true),
        (annotated("streamforge.io/pause"), true),
        (annotated("streamforge.io/accept-lost-marker"), true),
        (with(&wrong, "/parallelism", json!(8)), true),
    ] {
        let request = request(&new, Some(&wrong));
        assert_eq!(is_worth_judging(&request), is_judged, "{:?}", new.metadata);
    }
    assert!(is_worth_judging(&request(&wrong, None)));
    let ending = json!("2026-01-31T12:00:00Z");
    let ending = with_metadata(&with_filter("x"), "/deletionTimestamp", ending);
    assert!(!is_worth_judging(&request(&ending, Some(&wrong))));
}

#[test]
fn annotation_on_a_job_that_is_wrong_already_is_let_through() {
    let wrong = with_filter("amuont > 0");
    let restarted = json!({"streamforge.io/restart": "1"});
    let restarted = with_metadata(&wrong, "/annotations", restarted);

    let verdict = edited(&job(), &wrong, &restarted);
    assert_eq!(verdict.problems, []);
}

#[test]
fn savepoint_of_a_name_that_no_job_can_have_is_refused() {
    let savepoint = |job: &str| {
        let mut savepoint = Savepoint::new(
            "nightly",
            serde_json::from_value(json!({"job": job})).unwrap(),
        );
        savepoint.metadata.namespace = Some("team".to_owned());
        savepoint
    };

    assert_eq!(of_savepoint(&savepoint("clicks")), Verdict::default());
    let verdict = of_savepoint(&savepoint("Clicks\n"));
    assert_eq!(
        verdict.problems[0].to_string(),
        "spec.job: `Clicks\\n` cannot be the name of a job: up to 253 of a-z, 0-9, - and ., each part \
         beginning and ending with a letter or digit (name a StreamJob of this namespace)"
    );
}

#[test]
fn order_to_go_back_to_what_is_no_checkpoint_is_refused_and_one_that_is_done_is_not() {
    let to = |id: &str| with_metadata(&job(), "/annotations", json!({(REWIND_TO): id}));
    let refused = Problem::new(
        "metadata.annotations",
        "streamforge.io/rewind-to is `newest`, which is no id of a checkpoint",
        "write the number of a checkpoint or savepoint, or take the annotation away",
    );
    assert_eq!(edited(&job(), &job(), &to("newest")).problems, [refused]);
    assert_eq!(edited(&job(), &job(), &to("17")).problems, []);

    // An earlier operator let it pass: it is in nobody's way.
    let mut kept = kept(&job());
    if let Some(record) = &mut kept.record {
        record.done.rewind_to = Some("newest".to_owned());
    }
    let scaled = with(&to("newest"), "/parallelism", json!(8));
    let asked = request(&scaled, Some(&to("newest")));
    assert_eq!(of_job(&asked, Some(&kept), &settings()).problems, []);
}
