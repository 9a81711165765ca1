//! Places in S3 and the way to them, as a document writes them.

use glob::Pattern;
use streamforge_core::s3::{AddressError, S3Access, S3Place, SCHEME};
use streamforge_crds::v1alpha1 as written;

use super::nodes::Context;

/// Reads an address together with the access that stands beside it.
///
/// # Errors
/// When the text is no address of a bucket.
pub fn s3_place(text: &str, access: Option<&written::S3Access>) -> Result<S3Place, AddressError> {
    S3Place::parse(text, access.map_or_else(S3Access::default, s3_access))
}

fn s3_access(written: &written::S3Access) -> S3Access {
    S3Access {
        endpoint: written.endpoint.clone(),
        region: written.region.clone(),
        path_style: written.path_style,
        credentials_secret: written
            .credentials_secret
            .as_ref()
            .map(|secret| secret.name.clone()),
    }
}

/// Whether this text means a bucket.
pub(super) fn is_s3(text: &str) -> bool {
    text.starts_with(SCHEME)
}

/// Checks an address and the access at `access_path` beside it.
pub(super) fn check(
    (text, path): (&str, &str),
    (access, access_path): (Option<&written::S3Access>, &str),
    context: &mut Context<'_>,
) {
    if let Err(error) = s3_place(text, access) {
        let hint = "write `s3://bucket/prefix`, as in `s3://team-data/jobs/clicks`";
        context.add(path, error.to_string(), Some(hint.to_owned()));
    }
    check_access(access, access_path, context);
}

/// Checks the path of files in a bucket, which may be a glob, and the access at `access_path` beside it.
pub(super) fn check_files(
    (text, path): (&str, &str),
    (access, access_path): (Option<&written::S3Access>, &str),
    context: &mut Context<'_>,
) {
    let rest = text.strip_prefix(SCHEME).unwrap_or(text);
    let (bucket, keys) = rest.split_once('/').unwrap_or((rest, ""));
    let hint = "write `s3://bucket/prefix/`, or a glob like `s3://bucket/in/*.ndjson`";
    if let Err(error) = s3_place(&format!("{SCHEME}{bucket}"), access) {
        let message = format!("`{text}` is no address of a bucket: {}", error.reason);
        context.add(path, message, Some(hint.to_owned()));
    } else if let Err(error) = Pattern::new(keys) {
        let message = format!("`{keys}` is no glob: {error}");
        context.add(path, message, Some(hint.to_owned()));
    }
    check_access(access, access_path, context);
}

/// Checks the access of a place that is no bucket: there must be none.
pub(super) fn check_none(
    access: Option<&written::S3Access>,
    access_path: &str,
    context: &mut Context<'_>,
) {
    if access.is_some() {
        let message = "`s3` means nothing here: the path is not in a bucket";
        let hint = "remove it, or write a path like `s3://bucket/prefix`";
        context.add(access_path, message, Some(hint.to_owned()));
    }
}

fn check_access(access: Option<&written::S3Access>, path: &str, context: &mut Context<'_>) {
    let Some(access) = access else { return };
    if let Some(endpoint) = &access.endpoint {
        let host = ["http://", "https://"]
            .iter()
            .find_map(|scheme| endpoint.strip_prefix(scheme));
        let path = format!("{path}.endpoint");
        match host {
            None | Some("") => {
                let hint = "write `https://host:port`".to_owned();
                context.add(&path, format!("`{endpoint}` is no URL"), Some(hint));
            }
            // A log or an error may show the endpoint.
            Some(host) if host.contains('@') => {
                let hint = "name a secret with `credentialsSecret: {name: …}`".to_owned();
                context.add(&path, "a URL must not hold credentials", Some(hint));
            }
            Some(_) => {}
        }
    }
    if access
        .region
        .as_ref()
        .is_some_and(|region| region.trim().is_empty())
    {
        context.add(&format!("{path}.region"), "the region is empty", None);
    }
    let secret = access.credentials_secret.as_ref();
    if secret.is_some_and(|secret| !is_secret_name(&secret.name)) {
        let message = "the name of a secret has only lower-case letters, digits, - and .";
        context.add(&format!("{path}.credentialsSecret.name"), message, None);
    }
}

/// The rule of Kubernetes. A folder of that name cannot lead out of `--secrets` either.
fn is_secret_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.chars().all(|c| plain(c) || matches!(c, '-' | '.'))
        && name.starts_with(plain)
        && name.ends_with(plain)
}
