//! Pods that the API server refuses, and pods that are not there.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::children::{Kind, Seen, SetStatus};
use crate::names::{JOB_LABEL, Names};
use crate::stream_job::report::Trouble;
use crate::stream_job::testing::with;

const SET: &str = "/apis/apps/v1/namespaces/team/statefulsets/clicks-tm";

/// As an API server says it of a toleration with the operator Foo.
const SAID: &str = "StatefulSet.apps \"clicks-tm\" is invalid: spec.template.spec.tolerations[0].operator: Unsupported \
                    value: \"Foo\"";

/// Refuses such a set, when it is tried or when it is made.
fn server_that_refuses(method: &'static str, code: u16, message: &'static str) -> (Client, Asked) {
    server_that(move |asked, path| {
        let refused =
            json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
        (asked == method && path == SET).then_some((code, refused))
    })
}

fn edited() -> StreamJob {
    let template = json!({"spec": {"tolerations": [{"key": "a", "operator": "Foo"}]}});
    with(&with_finalizer(), "/taskManager/podTemplate", template)
}

/// An operator that has this document of the job on record.
fn on_record(client: Client, document: &StreamJob, state: State) -> Arc<Context> {
    let context = context(client);
    let spec = serde_json::to_value(&document.spec).unwrap();
    let kept = Kept {
        record: Some(Record {
            state,
            ..Record::new(UID, spec, 2)
        }),
        ..Kept::default()
    };
    let memory = Memory {
        kept: Packed::of(&kept),
        ..Memory::default()
    };
    context.remember(UID, memory);
    context
}

/// What was written at this end of a path.
fn written_at(asked: &Asked, method: &str, end: &str) -> Vec<Value> {
    let asked = asked.lock().unwrap();
    let at = asked
        .iter()
        .filter(|(of, path, _)| of == method && path.ends_with(end));
    at.map(|(.., body)| body.clone()).collect()
}

/// A condition as the status was written last: status, reason, message.
fn condition(asked: &Asked, kind: &str) -> [String; 3] {
    let statuses = written_at(asked, "PATCH", "/streamjobs/clicks/status");
    let status = statuses.last().expect("the status is written");
    let conditions = status["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|it| it["type"] == kind).unwrap();
    ["status", "reason", "message"].map(|field| found[field].as_str().unwrap().to_owned())
}

fn pod(name: &str, status: &Value) -> Pod {
    let names = Names::of("clicks").unwrap();
    let label = names.label().as_str();
    serde_json::from_value(json!({
        "metadata": {"namespace": "team", "name": name, "labels": {(JOB_LABEL): label}},
        "status": status,
    }))
    .unwrap()
}

/// The watch has told of the set, with so many pods that are ready.
fn see_set(context: &Context, ready: i32) {
    let meta = ObjectMeta {
        namespace: Some("team".to_owned()),
        name: Some("clicks-tm".to_owned()),
        ..ObjectMeta::default()
    };
    let seen = Seen {
        job: Some("clicks".to_owned()),
        set: SetStatus {
            ready,
            ..SetStatus::default()
        },
        ..Seen::default()
    };
    let _woken = context.children.put(Kind::StatefulSet, &meta, seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn first_document_whose_pods_are_refused_is_invalid_and_nothing_is_made_of_it() {
    let (client, asked) = server_that_refuses(DRY_RUN, 422, SAID);
    let context = context(client);
    for _ in 0..3 {
        over(&edited().into(), &context).await.unwrap();
    }

    let [status, reason, message] = condition(&asked, "Valid");
    assert_eq!([&*status, &*reason], ["False", "InvalidSpec"]);
    let start = "spec.taskManager.podTemplate: the API server refuses such pods: ";
    assert!(
        message.starts_with(start) && message.contains(SAID),
        "{message}"
    );
    // Asked once, not in each pass.
    assert_eq!(written_at(&asked, DRY_RUN, SET).len(), 1);
    assert_eq!(written_at(&asked, "PATCH", SET), [json!(null); 0]);
    assert_eq!(written_at(&asked, "POST", "/configmaps"), [json!(null); 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn edit_whose_pods_are_refused_is_invalid_and_the_pods_on_record_are_made() {
    let (client, asked) = server_that_refuses(DRY_RUN, 422, SAID);
    let context = on_record(client, &job(), State::Active);

    // Its store is away.
    let _passed = over(&edited().into(), &context).await;

    let [status, reason, _] = condition(&asked, "Valid");
    assert_eq!([&*status, &*reason], ["False", "InvalidSpec"]);
    let tried = &written_at(&asked, DRY_RUN, SET)[0]["spec"];
    assert_eq!(
        tried["template"]["spec"]["tolerations"][0]["operator"],
        "Foo"
    );
    let made = &written_at(&asked, "PATCH", SET)[0]["spec"];
    assert_eq!(made["replicas"], 2);
    assert_eq!(made["template"]["spec"]["tolerations"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_on_record_are_not_tried() {
    let (client, asked) = server(true);
    let context = on_record(client, &job(), State::Suspended);
    let scaled = with(&with_finalizer(), "/parallelism", json!(8));

    over(&with(&scaled, "/suspend", json!(true)).into(), &context)
        .await
        .unwrap();

    assert_eq!(written_at(&asked, "PATCH", SET).len(), 1);
    assert_eq!(written_at(&asked, DRY_RUN, SET).len(), 0);
}

/// An answer that says nothing of the pods makes them neither valid nor invalid.
#[tokio::test(flavor = "multi_thread")]
async fn document_is_not_accepted_before_its_pods_were_tried() {
    let (client, asked) = server_that_refuses(DRY_RUN, 500, "failed calling webhook");
    let context = on_record(
        client,
        &with(&job(), "/suspend", json!(true)),
        State::Suspended,
    );

    let edited = with(&edited(), "/suspend", json!(true));
    over(&edited.into(), &context)
        .await
        .expect_err("it is asked again");

    assert_eq!(condition(&asked, "Valid")[0], "True");
    let made = &written_at(&asked, "PATCH", SET)[0]["spec"]["template"];
    assert_eq!(made["spec"]["tolerations"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn child_that_is_refused_is_told_and_pods_that_nobody_needs_go_all_the_same() {
    for (code, state, scales) in [
        (422, State::Suspended, true),
        (422, State::Active, false),
        (403, State::Suspended, true),
        (500, State::Suspended, false),
    ] {
        let (client, asked) = server_that_refuses("PATCH", code, "denied by a policy");
        let suspends = state == State::Suspended;
        let job = with(&with_finalizer(), "/suspend", json!(suspends));
        let context = on_record(client, &job, state);
        see_set(&context, 0);

        let _refused = over(&job.into(), &context).await;

        let [_, reason, message] = condition(&asked, "Progressing");
        let is_told = reason == "NotAllowed" && message.contains("denied by a policy");
        assert_eq!(is_told, code != 500, "{code}: {reason} {message}");
        let writes = written_at(&asked, "PATCH", SET);
        let scale = json!({"spec": {"replicas": 0}});
        assert_eq!(writes.contains(&scale), scales, "{code} {writes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_looked_at_although_the_set_is_refused() {
    let (client, _) = server_that_refuses("PATCH", 422, SAID);
    let context = on_record(client, &job(), State::Active);
    let sick = json!({"containerStatuses": [{
        "name": "task-manager", "ready": false, "restartCount": 1, "image": "i", "imageID": "i",
        "state": {"waiting": {"reason": "ImagePullBackOff"}},
    }]});
    let _woken = context.children.put_pod(pod("clicks-tm-0", &sick));

    let _refused = over(&with_finalizer().into(), &context).await;

    let sick = context.memory(UID).sick.expect("it was looked at");
    assert_eq!(sick.0, Trouble::PodsStuck);
}

/// A quota leaves no pod that could say what it lacks.
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_never_made_are_told() {
    for (pods, told) in [(0, true), (1, true), (2, false)] {
        let (client, asked) = server(true);
        let context = on_record(client, &job(), State::Active);
        for n in 0..pods {
            let _woken = context
                .children
                .put_pod(pod(&format!("clicks-tm-{n}"), &json!({})));
        }
        let mut memory = context.memory(UID);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(61));
        let _left = memory
            .missing
            .look(&[], 2, long_ago.expect("this machine was on"));
        context.remember(UID, memory);

        let _passed = over(&with_finalizer().into(), &context).await;

        let [_, reason, message] = condition(&asked, "Progressing");
        let said = format!(
            "StatefulSet clicks-tm has {pods} of 2 pods; see kubectl describe statefulset clicks-tm"
        );
        assert_eq!(
            reason == "PodsStuck" && message == said,
            told,
            "{reason} {message}"
        );
    }
}

/// An operator that has just started finds the job that another one said was Ready.
#[tokio::test(flavor = "multi_thread")]
async fn job_that_nobody_coordinates_stays_ready_only_while_rows_may_flow() {
    for (ready, fails, taken, is_ready) in [
        (1, false, "", true),
        (0, false, "", false),
        (1, true, "", false),
        (1, false, "/poddisruptionbudgets/clicks-tm", true),
    ] {
        let (client, asked) = server_with(true, taken);
        let context = on_record(client, &job(), State::Active);
        see_set(&context, ready);
        let mut memory = context.memory(UID);
        if fails {
            memory.start_failed = Some((Trouble::StoreUnreachable, "no answer".to_owned()));
            memory.start_at = Some(Instant::now() + Duration::from_secs(600));
        }
        context.remember(UID, memory);
        let mut job = with_finalizer();
        let status = json!({"phase": "Running", "conditions": [{
            "type": "Ready", "status": "True", "reason": "Running", "message": "2 of 2 task managers are ready",
            "lastTransitionTime": "2026-11-30T10:00:00Z",
        }]});
        job.status = serde_json::from_value(status).unwrap();

        let _passed = over(&job.into(), &context).await;

        let [status, reason, _] = condition(&asked, "Ready");
        let wanted = if is_ready {
            ["True", "Running"]
        } else {
            ["False", "Starting"]
        };
        assert_eq!([&*status, &*reason], wanted, "{ready} {fails} {taken}");
    }
}
