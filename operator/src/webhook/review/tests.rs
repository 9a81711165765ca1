use super::*;
use crate::stream_job::validate::Problem;

fn question(more: &Value) -> Vec<u8> {
    let mut request = json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "streamforge.io", "version": "v1alpha1", "kind": "StreamJob"},
        "resource": {"group": "streamforge.io", "version": "v1alpha1", "resource": "streamjobs"},
        "name": "clicks", "namespace": "team", "operation": "UPDATE",
        "userInfo": {"username": "admin"},
        "object": {"metadata": {"name": "clicks", "uid": "uid-1"}},
        "oldObject": {"metadata": {"name": "clicks", "uid": "uid-1"}},
        "dryRun": true,
    });
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request,
    });
    review.to_string().into_bytes()
}

fn answer(verdict: &Verdict) -> Value {
    let request = Request::read(&question(&json!({}))).unwrap();
    serde_json::from_slice(&request.answer(verdict)).unwrap()
}

#[test]
fn question_is_read_as_the_api_server_writes_it() {
    let request = Request::read(&question(&json!({}))).unwrap();

    assert_eq!(
        (request.kind(), request.namespace(), request.name()),
        ("StreamJob", "team", "clicks")
    );
    assert_eq!(request.uid_of_job(), Some("uid-1"));
    assert!(request.is_of_document() && !request.is_creation());
}

#[test]
fn object_without_a_name_yet_and_one_that_is_created_are_understood() {
    let created = json!({
        "operation": "CREATE", "name": "", "oldObject": null,
        "object": {"metadata": {"generateName": "clicks-", "name": "clicks-x", "uid": "uid-2"}},
    });
    let request = Request::read(&question(&created)).unwrap();

    assert_eq!(request.name(), "clicks-x");
    // Nothing can be on record of what is created.
    assert_eq!(request.uid_of_job(), None);
    assert!(request.is_creation());
}

#[test]
fn parts_of_an_object_and_objects_that_end_are_no_documents() {
    for more in [
        json!({"subResource": "status"}),
        json!({"subResource": "scale"}),
        json!({"operation": "DELETE"}),
        json!({"operation": "CONNECT"}),
        json!({"object": {"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}}}),
    ] {
        let request = Request::read(&question(&more)).unwrap();
        assert!(!request.is_of_document(), "{more}");
    }
    let others = json!({"kind": {"group": "apps", "version": "v1", "kind": "StreamJob"}});
    assert_eq!(Request::read(&question(&others)).unwrap().kind(), "other");
}

#[test]
fn what_is_no_question_is_told() {
    for (body, said) in [
        ("", "read an AdmissionReview: EOF"),
        ("{}", "read an AdmissionReview: missing field `apiVersion`"),
        (
            r#"{"apiVersion": "admission.k8s.io/v1beta1"}"#,
            "read an AdmissionReview: it is not admission.k8s.io/v1",
        ),
        (
            r#"{"apiVersion": "admission.k8s.io/v1"}"#,
            "read an AdmissionReview: no request",
        ),
    ] {
        let error = Request::read(body.as_bytes()).unwrap_err();
        assert!(error.starts_with(said), "{body}: {error}");
    }
}

#[test]
fn answer_lets_through_with_warnings() {
    let verdict = Verdict {
        problems: Vec::new(),
        warnings: vec!["keeps the state of per_user".to_owned()],
    };

    assert_eq!(
        answer(&verdict),
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": true,
                "warnings": ["keeps the state of per_user"],
            },
        })
    );
}

#[test]
fn answer_refuses_with_path_reason_and_cure_as_the_condition_says_them() {
    let verdict = Verdict {
        problems: vec![
            Problem::new(
                "spec.transforms[0].filter",
                "no column `amuont`",
                "write `amount`",
            ),
            Problem {
                path: String::new(),
                message: "a \u{1b}[31mred\nline".to_owned(),
                cure: None,
            },
        ],
        warnings: Vec::new(),
    };

    let message = "spec.transforms[0].filter: no column `amuont` (write `amount`); \
                   a \\u{1b}[31mred\\nline";
    assert_eq!(
        answer(&verdict),
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": false,
                "status": {
                    "status": "Failure", "code": 422, "reason": "Invalid", "message": message,
                    "details": {
                        "group": "streamforge.io", "kind": "StreamJob", "name": "clicks",
                        "causes": [
                            {
                                "reason": "FieldValueInvalid",
                                "field": "spec.transforms[0].filter",
                                "message": "no column `amuont` (write `amount`)",
                            },
                            {
                                "reason": "FieldValueInvalid", "field": "",
                                "message": "a \\u{1b}[31mred\\nline",
                            },
                        ],
                    },
                },
            },
        })
    );
    assert_eq!(message, listed(&verdict.problems));
}
