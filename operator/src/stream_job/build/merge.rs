//! A pod template merged over another.
//!
//! Owns: how lists of named things are merged: by name, as `kubectl` does with a strategic merge. A thing
//! of another kind under the same name takes the place of the old one whole where both together would
//! make no sense (a volume has one source, a variable one value). Start at: [`merge`].

use serde_json::Value;

/// How the items of a list are told apart, and what happens to two of the same.
struct Keyed {
    list: &'static str,
    key: &'static str,
    same: Same,
}

#[derive(Clone, Copy)]
enum Same {
    /// Field by field.
    Merge,
    /// The later one alone.
    Replace,
}

const LISTS: [Keyed; 10] = [
    Keyed {
        list: "containers",
        key: "name",
        same: Same::Merge,
    },
    Keyed {
        list: "initContainers",
        key: "name",
        same: Same::Merge,
    },
    Keyed {
        list: "ephemeralContainers",
        key: "name",
        same: Same::Merge,
    },
    Keyed {
        list: "ports",
        key: "containerPort",
        same: Same::Merge,
    },
    Keyed {
        list: "env",
        key: "name",
        same: Same::Replace,
    },
    Keyed {
        list: "volumes",
        key: "name",
        same: Same::Replace,
    },
    Keyed {
        list: "imagePullSecrets",
        key: "name",
        same: Same::Replace,
    },
    Keyed {
        list: "volumeMounts",
        key: "mountPath",
        same: Same::Replace,
    },
    Keyed {
        list: "volumeDevices",
        key: "devicePath",
        same: Same::Replace,
    },
    Keyed {
        list: "hostAliases",
        key: "ip",
        same: Same::Replace,
    },
];

/// `base` with all that `over` says.
pub(super) fn merge(base: Value, over: Value) -> Value {
    merge_field("", base, over)
}

fn merge_field(field: &str, base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Object(mut base), Value::Object(over)) => {
            for (key, value) in over {
                let merged = match base.remove(&key) {
                    Some(old) => merge_field(&key, old, value),
                    None => value,
                };
                base.insert(key, merged);
            }
            Value::Object(base)
        }
        (Value::Array(base), Value::Array(over)) => {
            match LISTS.iter().find(|keyed| keyed.list == field) {
                Some(keyed) => Value::Array(merge_lists(keyed, base, over)),
                None => Value::Array(over),
            }
        }
        (base, Value::Null) => base,
        (_, over) => over,
    }
}

fn merge_lists(keyed: &Keyed, mut base: Vec<Value>, over: Vec<Value>) -> Vec<Value> {
    for item in over {
        let key = item.get(keyed.key).cloned();
        let same = base
            .iter_mut()
            .find(|old| key.is_some() && old.get(keyed.key) == key.as_ref());
        match (same, keyed.same) {
            (Some(old), Same::Merge) => *old = merge_field("", old.take(), item),
            (Some(old), Same::Replace) => *old = item,
            (None, _) => base.push(item),
        }
    }
    base
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_are_merged_by_name_and_others_added() {
        let base = json!({"containers": [{"name": "a", "image": "x", "env": [{"name": "V", "value": "1"}]}]});
        let over = json!({"containers": [
            {"name": "b", "image": "y"},
            {"name": "a", "env": [{"name": "W", "value": "2"}], "tty": true},
        ]});

        assert_eq!(
            merge(base, over),
            json!({"containers": [
                {"name": "a", "image": "x", "env": [{"name": "V", "value": "1"}, {"name": "W", "value": "2"}], "tty": true},
                {"name": "b", "image": "y"},
            ]})
        );
    }

    #[test]
    fn variable_and_volume_of_the_same_name_are_replaced_whole() {
        let base = json!({"env": [{"name": "V", "value": "1"}], "volumes": [{"name": "v", "emptyDir": {}}]});
        let over = json!({
            "env": [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
        });

        assert_eq!(merge(base, over.clone()), over);
    }

    #[test]
    fn maps_are_merged_and_lists_without_keys_replaced() {
        let base = json!({"labels": {"a": "1", "b": "2"}, "tolerations": [{"key": "x"}], "n": 1});
        let over = json!({"labels": {"b": "3"}, "tolerations": [{"key": "y"}], "n": null});

        assert_eq!(
            merge(base, over),
            json!({"labels": {"a": "1", "b": "3"}, "tolerations": [{"key": "y"}], "n": 1})
        );
    }

    #[test]
    fn merging_nothing_changes_nothing() {
        let base =
            json!({"spec": {"containers": [{"name": "a"}]}, "metadata": {"labels": {"x": "y"}}});

        assert_eq!(
            merge(base.clone(), json!({"spec": {"containers": []}})),
            base
        );
    }
}
