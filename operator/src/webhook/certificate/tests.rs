use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const HOST: &str = "streamforge-webhook.sf.svc";

#[test]
fn certificate_is_due_after_sixty_days_or_under_another_authority() {
    let now = at("2026-11-30T10:00:00Z");
    let (authority, other) = (
        Authority::create(now).unwrap(),
        Authority::create(now).unwrap(),
    );
    let leaf = authority.issue_to_webhook(HOST, now).unwrap();

    assert!(!is_due(&leaf, &authority, at("2027-01-28T00:00:00Z")));
    assert!(is_due(&leaf, &authority, at("2027-01-29T00:00:00Z")));
    assert!(is_due(&leaf, &other, now));
}

#[test]
fn api_server_is_told_where_it_does_not_know_and_of_nothing_else() {
    let configuration = |bundles: [Option<&str>; 2]| -> ValidatingWebhookConfiguration {
        let webhook = |name: &str, bundle: Option<&str>| {
            let bundle = bundle.map(|text| ByteString(text.as_bytes().to_vec()));
            json!({
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"caBundle": bundle, "service": {"name": "a", "namespace": "b"}},
            })
        };
        let [one, two] = bundles;
        let webhooks = [webhook("one.sf.io", one), webhook("two.sf.io", two)];
        let json = json!({"metadata": {"resourceVersion": "7"}, "webhooks": webhooks});
        serde_json::from_value(json).unwrap()
    };

    assert_eq!(told(&configuration([Some("CA"), Some("CA")]), "CA"), None);
    assert_eq!(
        told(&configuration([Some("CA"), None]), "CA"),
        Some(json!({
            "metadata": {"resourceVersion": "7"},
            "webhooks": [{"name": "two.sf.io", "clientConfig": {"caBundle": "Q0E="}}],
        }))
    );
    let old = told(&configuration([Some("old"), Some("old")]), "CA").unwrap();
    assert_eq!(old["webhooks"].as_array().unwrap().len(), 2);
}
