//! `spec.taskManager.resources`: requests and limits.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value};
use streamforge_crds::v1alpha1::TaskManager;

use super::{Problem, Problems, normal};

const PATH: &str = "spec.taskManager.resources";

/// Reads them. The API server would refuse wrong ones only when the pods are made.
pub(super) fn check(
    task_manager: &TaskManager,
    problems: &mut Problems,
) -> Option<ResourceRequirements> {
    let written = normal(&resources_at_place(&task_manager.resources));
    let written = written.get("resources").cloned().unwrap_or_default();
    for (key, value) in written.as_object().into_iter().flatten() {
        check_key(key, value, problems);
    }
    let read: Result<ResourceRequirements, _> = serde_json::from_value(written);
    match read {
        Ok(read) => {
            check_order(&read, problems);
            Some(read)
        }
        Err(error) => {
            let cure =
                "write `resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {memory: 1Gi}}`";
            problems.add(Problem::new(PATH, error.to_string(), cure));
            None
        }
    }
}

/// In a container, so that the same rule of spelling holds as there.
fn resources_at_place(resources: &Map<String, Value>) -> Value {
    let mut container = Map::new();
    container.insert("resources".to_owned(), Value::Object(resources.clone()));
    Value::Object(container)
}

fn check_key(key: &str, value: &Value, problems: &mut Problems) {
    if !matches!(key, "requests" | "limits" | "claims") {
        let message = format!("unknown field `{key}`");
        problems.add(Problem::new(
            &format!("{PATH}.{key}"),
            message,
            "write requests and limits",
        ));
        return;
    }
    for (name, quantity) in value.as_object().into_iter().flatten() {
        let text = quantity.as_str();
        if text.and_then(amount).is_none() {
            let path = format!("{PATH}.{key}.{name}");
            let message = format!("`{}` is no quantity", text.unwrap_or("this"));
            problems.add(Problem::new(
                &path,
                message,
                "write as in 500m, 2, 512Mi or 1Gi",
            ));
        }
    }
}

fn check_order(resources: &ResourceRequirements, problems: &mut Problems) {
    let (Some(requests), Some(limits)) = (&resources.requests, &resources.limits) else {
        return;
    };
    for (name, Quantity(request)) in requests {
        let limit = limits
            .get(name)
            .and_then(|Quantity(limit)| Some((limit, amount(limit)?)));
        let request = amount(request).map(|amount| (request, amount));
        if let (Some((request, asked)), Some((limit, most))) = (request, limit)
            && asked > most
        {
            let path = format!("{PATH}.requests.{name}");
            let message = format!("{request} is more than the limit {limit}");
            problems.add(Problem::new(&path, message, "lower it, or raise the limit"));
        }
    }
}

/// Suffixes of a quantity.
const SUFFIXES: [(&str, f64); 16] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
    ("", 1.0),
];

/// How much a quantity is, near enough to compare two.
fn amount(text: &str) -> Option<f64> {
    let digits = |number: &str| {
        let unsigned = number.strip_prefix('+').unwrap_or(number);
        unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    };
    SUFFIXES
        .iter()
        .filter_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, factor)))
        .filter(|(number, _)| digits(number))
        .find_map(|(number, factor)| Some(number.parse::<f64>().ok()? * factor))
        .filter(|amount| amount.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, wanted) in [
            ("1", 1.0),
            ("500m", 0.5),
            ("1Ki", 1024.0),
            ("1.5Gi", 1_610_612_736.0),
            ("2M", 2e6),
            ("1e3", 1e3),
            ("3E", 3e18),
        ] {
            let found = amount(text).unwrap();
            assert!((found - wanted).abs() <= wanted * 1e-12, "{text}: {found}");
        }
        for text in ["", "Mi", "one", "-1", "1 Gi", "1GB", "inf", "NaN", "0x10"] {
            assert_eq!(amount(text), None, "{text}");
        }
    }
}
