//! What lies in the bucket, read as any other program would.
//!
//! Owns: listing and reading objects by curl. Writes nothing.

use std::process::Command;

use crate::namespace::variable;

/// The keys that begin with a prefix, at most a thousand of them.
pub fn keys(prefix: &str) -> Vec<String> {
    let listed = curl(&[format!(
        "?list-type=2&prefix={}",
        prefix.replace('/', "%2F")
    )]);
    let parts = listed.split("<Key>").skip(1);
    parts
        .filter_map(|part| part.split("</Key>").next().map(str::to_owned))
        .collect()
}

/// The keys of the objects below a place like `s3://bucket/prefix`.
pub fn keys_below(uri: &str) -> Vec<String> {
    let place = uri.trim_start_matches("s3://").split_once('/');
    let (_, prefix) = place.expect("it has a prefix");
    keys(&format!("{prefix}/"))
}

/// What is in the stores below a place, but for savepoints, which outlive their jobs.
pub fn checkpoints_below(uri: &str) -> Vec<String> {
    let mut keys = keys_below(uri);
    keys.retain(|key| !key.contains("/savepoints/"));
    keys
}

/// The lines of objects, sorted: their order means nothing.
pub fn lines(keys: &[String]) -> Vec<String> {
    if keys.is_empty() {
        return Vec::new();
    }
    let paths: Vec<String> = keys.iter().map(|key| format!("/{key}")).collect();
    let mut lines: Vec<String> = curl(&paths).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// The checkpoint behind which an output file begins; the next one has its rows:
/// `part-<uid8>-<epoch>-<checkpoint>-<subtask>-<n>.ndjson`.
pub fn begun_behind(key: &str) -> u64 {
    let name = key.rsplit('/').next().unwrap_or_default();
    let checkpoint = name.split('-').nth(3);
    let checkpoint = checkpoint.and_then(|text| text.parse().ok());
    checkpoint.unwrap_or_else(|| panic!("no output file: {key}"))
}

fn curl(paths: &[String]) -> String {
    let region = variable("AWS_REGION");
    let keys = format!(
        "{}:{}",
        variable("AWS_ACCESS_KEY_ID"),
        variable("AWS_SECRET_ACCESS_KEY")
    );
    let root = format!("{}/{}", variable("S3_ENDPOINT"), variable("S3_BUCKET"));
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--user", &keys])
        .args(["--aws-sigv4", &format!("aws:amz:{region}:s3")])
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
        .args(paths.iter().map(|path| format!("{root}{path}")))
        .output()
        .expect("curl is there");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
