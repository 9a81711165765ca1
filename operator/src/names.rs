//! Names of a job's children.
//!
//! Owns: what the children of a job are called and labelled, within the limits of Kubernetes. A name of
//! a type of this module was checked: the API server takes it. Start at: [`Names`].

use std::collections::BTreeMap;
use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// Longest name of a child. A StatefulSet puts a dash and a hash of ten characters behind its name to
/// label its pods, and a label holds 63.
pub const CHILD_BYTES_MAX: usize = 52;

/// The longest suffix of a child.
const LONGEST_SUFFIX: &str = "-document";

/// What is put behind a name that was cut: a dash and eight hexadecimal digits.
const CUT_MARK_BYTES: usize = 9;

/// Longest value of a label.
const LABEL_BYTES_MAX: usize = 63;

/// The label by which a job's pods are found.
pub const JOB_LABEL: &str = "streamforge.io/job";

/// Who writes the fields that we own (server-side apply).
pub const FIELD_MANAGER: &str = "streamforge-operator";

/// Names of certificates of jobs end with this.
const JOB_DOMAIN: &str = "jobs.streamforge";

/// The name of the coordinator's certificate.
pub const COORDINATOR_DNS_NAME: &str = "coordinator.streamforge";

/// Why a text cannot be a name of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` cannot be {what}: {rule}")]
pub struct BadName {
    /// The text.
    pub text: String,
    /// What it was to be.
    pub what: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
}

/// Name of a child object: a label of RFC 1035, as a Service wants it, of at most
/// [`CHILD_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildName(String);

/// Value of a label that is not empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelValue(String);

/// The unique id of an object. A job that is deleted and created anew has another; it is a part of
/// DNS names and of keys in the store, so it is a label of RFC 1123.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(String);

impl ChildName {
    /// Takes a name that keeps the rule.
    ///
    /// # Errors
    /// [`BadName`] with the rule.
    pub fn new(text: &str) -> Result<Self, BadName> {
        let starts_right = text.starts_with(|c: char| c.is_ascii_lowercase());
        if starts_right && is_dns_label(text) && text.len() <= CHILD_BYTES_MAX {
            return Ok(Self(text.to_owned()));
        }
        Err(BadName {
            text: text.to_owned(),
            what: "the name of a child",
            rule: "up to 52 of a-z, 0-9 and -, beginning with a letter and ending with a letter or digit",
        })
    }
}

impl LabelValue {
    /// Takes a value that keeps the rule.
    ///
    /// # Errors
    /// [`BadName`] with the rule.
    pub fn new(text: &str) -> Result<Self, BadName> {
        let plain = |c: char| c.is_ascii_alphanumeric();
        let right = (1..=LABEL_BYTES_MAX).contains(&text.len())
            && text
                .chars()
                .all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
            && text.starts_with(plain)
            && text.ends_with(plain);
        if right {
            return Ok(Self(text.to_owned()));
        }
        Err(BadName {
            text: text.to_owned(),
            what: "the value of a label",
            rule: "up to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit",
        })
    }
}

impl Uid {
    /// Takes a unique id.
    ///
    /// # Errors
    /// [`BadName`] with the rule.
    pub fn new(text: &str) -> Result<Self, BadName> {
        if is_dns_label(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(BadName {
            text: text.to_owned(),
            what: "a unique id",
            rule: "up to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit",
        })
    }

    /// The name that the certificates of this job's task managers bear.
    #[must_use]
    pub fn dns_name(&self) -> String {
        format!("{self}.{JOB_DOMAIN}")
    }

    /// The job whose certificates bear this name.
    #[must_use]
    pub fn of_dns_name(name: &str) -> Option<Self> {
        let uid = name.strip_suffix(JOB_DOMAIN)?.strip_suffix('.')?;
        Self::new(uid).ok()
    }
}

macro_rules! shown_as_text {
    ($($name:ident),*) => {$(
        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

shown_as_text!(ChildName, LabelValue, Uid);

/// A label of RFC 1123.
fn is_dns_label(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.chars().all(|c| plain(c) || c == '-')
        && text.starts_with(plain)
        && text.ends_with(plain)
}

/// What the children of one job are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    base: String,
    label: LabelValue,
}

impl Names {
    /// The names for the children of a job. A job's own name may be longer than theirs can be, and have
    /// dots; then it is cut and a hash of all of it put behind, so that two jobs share no child.
    ///
    /// # Errors
    /// When this is no name that a Kubernetes object can have.
    pub fn of(job: &str) -> Result<Self, BadName> {
        if job.len() > 253 || job.is_empty() || !job.split('.').all(is_dns_label_of_any_length) {
            return Err(BadName {
                text: job.to_owned(),
                what: "the name of a job",
                rule: "up to 253 of a-z, 0-9, - and ., each part beginning and ending with a letter or digit",
            });
        }
        let label = if job.len() <= LABEL_BYTES_MAX {
            job.to_owned()
        } else {
            cut(job, LABEL_BYTES_MAX)
        };
        Ok(Self {
            base: base(job),
            label: LabelValue(label),
        })
    }

    /// Of the StatefulSet, its Service, its PodDisruptionBudget, its NetworkPolicy and its
    /// ServiceAccount.
    #[must_use]
    pub fn task_managers(&self) -> ChildName {
        self.child("-tm")
    }

    /// Of the ConfigMap with the document that runs.
    #[must_use]
    pub fn document(&self) -> ChildName {
        self.child(LONGEST_SUFFIX)
    }

    /// Of the Secret with the certificates of the job.
    #[must_use]
    pub fn tls(&self) -> ChildName {
        self.child("-tls")
    }

    /// The value of [`JOB_LABEL`].
    #[must_use]
    pub fn label(&self) -> &LabelValue {
        &self.label
    }

    /// The labels of all children and of the pods.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            ("app.kubernetes.io/name", "streamforge"),
            ("app.kubernetes.io/component", "task-manager"),
            ("app.kubernetes.io/managed-by", FIELD_MANAGER),
            ("app.kubernetes.io/instance", self.label.as_str()),
            (JOB_LABEL, self.label.as_str()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }

    /// The labels that select the pods; those of a StatefulSet can never change.
    #[must_use]
    pub fn selector(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(JOB_LABEL.to_owned(), self.label.to_string())])
    }

    /// The same as one text, for the scale subresource.
    #[must_use]
    pub fn selector_text(&self) -> String {
        format!("{JOB_LABEL}={}", self.label)
    }

    fn child(&self, suffix: &str) -> ChildName {
        ChildName(format!("{}{suffix}", self.base))
    }
}

fn is_dns_label_of_any_length(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.chars().all(|c| plain(c) || c == '-') && text.starts_with(plain) && text.ends_with(plain)
}

fn base(job: &str) -> String {
    let bytes_max = CHILD_BYTES_MAX - LONGEST_SUFFIX.len();
    let starts_right = job.starts_with(|c: char| c.is_ascii_lowercase());
    if starts_right && !job.contains('.') && job.len() <= bytes_max {
        return job.to_owned();
    }
    let begin = if starts_right { "" } else { "job-" };
    let mark = mark(job);
    let readable = format!("{begin}{}", job.replace('.', "-"));
    let kept = readable
        .get(..bytes_max - CUT_MARK_BYTES)
        .unwrap_or(&readable);
    format!("{}{mark}", kept.trim_end_matches('-'))
}

/// A text of ASCII that is cut, with a hash of all of it.
fn cut(text: &str, bytes_max: usize) -> String {
    let kept = text.get(..bytes_max - CUT_MARK_BYTES).unwrap_or(text);
    format!("{}{}", kept.trim_end_matches(['-', '.']), mark(text))
}

fn mark(text: &str) -> String {
    format!("-{:08x}", xxh3_64(text.as_bytes()) & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn children(job: &str) -> [String; 3] {
        let names = Names::of(job).unwrap();
        [names.task_managers(), names.document(), names.tls()].map(|name| name.to_string())
    }

    #[test]
    fn short_name_is_kept_as_it_is() {
        assert_eq!(
            children("clicks-per-user"),
            [
                "clicks-per-user-tm",
                "clicks-per-user-document",
                "clicks-per-user-tls"
            ]
        );
        let longest = "a".repeat(43);
        assert_eq!(children(&longest)[1], format!("{longest}-document"));
    }

    #[test]
    fn long_or_dotted_name_is_cut_and_told_apart_by_a_hash() {
        let long = "a".repeat(44);
        let [pods, document, _] = children(&long);

        assert_eq!(
            pods,
            format!(
                "{}-{:08x}-tm",
                "a".repeat(34),
                xxh3_64(long.as_bytes()) & 0xffff_ffff
            )
        );
        assert_eq!(document.len(), CHILD_BYTES_MAX);
        assert_ne!(children("a.b")[0], children("a-b")[0]);
        assert!(children("a.b")[0].starts_with("a-b-"));
        assert!(
            children("2024")[0].starts_with("job-2024-"),
            "a Service begins with a letter"
        );
    }

    #[test]
    fn two_long_names_that_differ_at_their_end_share_nothing() {
        let (one, other) = (
            format!("{}1", "x".repeat(200)),
            format!("{}2", "x".repeat(200)),
        );

        assert_ne!(children(&one), children(&other));
        assert_ne!(
            Names::of(&one).unwrap().label(),
            Names::of(&other).unwrap().label()
        );
    }

    #[test]
    fn what_is_no_name_of_an_object_is_refused() {
        for job in [
            "",
            "-a",
            "a-",
            "A",
            "a_b",
            "a..b",
            ".a",
            "ä",
            "a b",
            &"a".repeat(254),
        ] {
            assert!(Names::of(job).is_err(), "{job}");
        }
    }

    #[test]
    fn certificate_of_a_job_names_that_job_and_no_other() {
        let uid = Uid::new("0b5e31ee-5a52-4b0a-9b8f-0d3c0c2f7a11").unwrap();

        assert_eq!(
            uid.dns_name(),
            "0b5e31ee-5a52-4b0a-9b8f-0d3c0c2f7a11.jobs.streamforge"
        );
        assert_eq!(Uid::of_dns_name(&uid.dns_name()), Some(uid));
        for other in [
            "coordinator.streamforge",
            "a.b.jobs.streamforge",
            ".jobs.streamforge",
            "jobs.streamforge",
        ] {
            assert_eq!(Uid::of_dns_name(other), None, "{other}");
        }
    }

    fn job_name() -> impl Strategy<Value = String> {
        proptest::string::string_regex(
            "[a-z0-9]([a-z0-9-]{0,70}[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?){0,3}",
        )
        .unwrap()
        .prop_filter("Kubernetes takes 253 bytes", |name| name.len() <= 253)
    }

    proptest! {
        #[test]
        fn every_name_of_a_job_gives_names_that_the_api_server_takes(job in job_name()) {
            let names = Names::of(&job).unwrap();

            for child in [names.task_managers(), names.document(), names.tls()] {
                prop_assert_eq!(ChildName::new(child.as_str()), Ok(child.clone()));
            }
            prop_assert_eq!(LabelValue::new(names.label().as_str()), Ok(names.label().clone()));
            // The pods of the largest StatefulSet, and the label with their revision.
            let longest_pod = format!("{}-32767", names.task_managers());
            prop_assert!(longest_pod.len() <= 63 && is_dns_label(&longest_pod));
            prop_assert_eq!(&names.labels()[JOB_LABEL], names.label().as_str());
            prop_assert_eq!(names.selector_text(), format!("streamforge.io/job={}", names.label()));
        }

        #[test]
        fn two_jobs_share_no_child(one in job_name(), other in job_name()) {
            prop_assume!(one != other);

            let (one, other) = (Names::of(&one).unwrap(), Names::of(&other).unwrap());
            prop_assert_ne!(one.base, other.base);
            prop_assert_ne!(one.label, other.label);
        }
    }
}
