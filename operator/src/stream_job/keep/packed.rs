//! What was kept of a job, as an operator remembers it between passes.
//!
//! Owns: keeping it small. A document as a tree of values and a pod template as structs of mostly absent fields
//! take twenty times what they take as compressed text, and an operator remembers a thousand of each, to look at
//! each of them once a minute.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Kept, compressed};
use crate::record::Record;
use crate::stream_job::build::KeptPods;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// As [`Kept::version`].
    pub version: Option<String>,
    form: Form,
}

#[derive(Clone, Debug, Default)]
enum Form {
    #[default]
    Nothing,
    /// [`Text`] as JSON, compressed.
    Text(Arc<[u8]>),
    /// What comes back from text as something else: a few numbers do, in their last digit. The document would look
    /// edited.
    Whole(Arc<Kept>),
}

#[derive(Serialize, Deserialize)]
struct Text<R, P> {
    record: Option<R>,
    pods: Option<P>,
}

impl Packed {
    /// Packs it.
    #[must_use]
    pub fn of(kept: &Kept) -> Self {
        let version = kept.version.clone();
        if kept.record.is_none() && kept.pods.is_none() {
            let form = Form::Nothing;
            return Self { version, form };
        }
        let text = Text {
            record: kept.record.as_ref(),
            pods: kept.pods.as_ref(),
        };
        let json = serde_json::to_vec(&text).expect("records and pods have texts as keys");
        let bytes = compressed(&json);
        let form = if read(&bytes, version.clone()).as_ref() == Some(kept) {
            Form::Text(bytes.into())
        } else {
            Form::Whole(Arc::new(kept.clone()))
        };
        Self { version, form }
    }

    /// What was packed.
    #[must_use]
    pub fn unpacked(&self) -> Kept {
        let version = self.version.clone();
        match &self.form {
            Form::Nothing => Kept {
                version,
                ..Kept::default()
            },
            Form::Text(bytes) => read(bytes, version).expect("it was read when it was packed"),
            Form::Whole(kept) => Kept {
                version,
                ..Kept::clone(kept)
            },
        }
    }
}

fn read(bytes: &[u8], version: Option<String>) -> Option<Kept> {
    let json = zstd::decode_all(bytes).ok()?;
    let text: Text<Record, KeptPods> = serde_json::from_slice(&json).ok()?;
    Some(Kept {
        record: text.record,
        pods: text.pods,
        version,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stream_job::testing::{UID, job, settings};
    use crate::stream_job::validate::validate;

    fn kept(document: serde_json::Value) -> Kept {
        let desired = validate(&job(), &settings()).unwrap();
        Kept {
            record: Some(Record::new(UID, document, 3)),
            pods: Some(KeptPods::of(&desired, &settings(), None)),
            version: Some("7".to_owned()),
        }
    }

    #[test]
    fn record_and_pods_are_remembered_as_they_were_in_little_room() {
        let kept = kept(serde_json::to_value(&job().spec).unwrap());

        let packed = Packed::of(&kept);

        assert_eq!(packed.unpacked(), kept);
        let Form::Text(bytes) = &packed.form else {
            panic!("it is text")
        };
        assert!(bytes.len() < 3 << 10, "{} bytes", bytes.len());
        assert_eq!(Packed::default().unpacked(), Kept::default());
    }

    #[test]
    fn document_with_a_number_that_text_does_not_bring_back_is_remembered_exactly() {
        let is_changed = |number: &f64| {
            let text = serde_json::to_string(number).unwrap();
            serde_json::from_str::<f64>(&text).unwrap().to_bits() != number.to_bits()
        };
        let number = (1..1_000_u32).map(|n| f64::from(n).sqrt()).find(is_changed);
        let kept = kept(json!({"skew": number.expect("some are")}));

        assert_eq!(Packed::of(&kept).unpacked(), kept);
    }
}
