//! A document as it is written out again, with defaults that nobody wrote.

use serde_json::Value;

/// The spec says the default of `csv.header` as if it had been written, and a record of Kafka has no
/// header to speak of: takes it out, so that the document can be read again.
pub fn forget_headers_of_kafka(root: &mut Value) {
    for kind in ["sources", "sinks"] {
        let nodes = root.pointer_mut(&format!("/spec/{kind}"));
        for node in nodes.and_then(Value::as_array_mut).into_iter().flatten() {
            let is_kafka = node.get("kafka").is_some_and(|kafka| !kafka.is_null());
            let csv = node
                .pointer_mut("/format/csv")
                .and_then(Value::as_object_mut);
            if let (true, Some(csv)) = (is_kafka, csv)
                && csv.get("header") == Some(&Value::Bool(true))
            {
                csv.remove("header");
            }
        }
    }
}
