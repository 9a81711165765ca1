//! A secret that is replaced while its job runs, as the kubelet does it, and what logs show of one.

use std::os::unix::fs::symlink;
use std::path::Path;

use streamforge_process::{Bucket, OwnServer, Workspace, free_address};

/// Files of a secret with the keys of a store.
const KEYS: [&str; 2] = ["accessKeyId", "secretAccessKey"];

/// Writes a secret as the kubelet does: each file is a link through `..data`, and `..data` is turned to
/// another folder at one stroke.
fn mount(secret: &Path, version: &str, values: [&str; 2]) {
    let folder = secret.join(format!("..{version}"));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    for (key, value) in KEYS.into_iter().zip(values) {
        std::fs::write(folder.join(key), value).expect("a file can be written");
        let link = secret.join(key);
        if !link.is_symlink() {
            // What was there as a plain file, or nothing.
            let _none = std::fs::remove_file(&link);
            symlink(format!("..data/{key}"), link).expect("a link can be made");
        }
    }
    let beside = secret.join("..data_tmp");
    symlink(format!("..{version}"), &beside).expect("a link can be made");
    std::fs::rename(beside, secret.join("..data")).expect("a link can be turned");
}

fn completed_n(log: &str) -> usize {
    log.matches("checkpoint completed").count()
}

#[test]
fn keys_that_are_replaced_under_a_job_are_used_without_a_restart_and_nothing_is_lost() {
    let server = OwnServer::new();
    let bucket = server.start("key-of-march", "hush-march");
    let base = bucket.folder("rotated");
    // Fifteen seconds: the server finishes what it has begun before it goes, which can take half of that.
    let workspace = bucket.clicks(&base, "rows: 300000, ", 20_000);
    let secret = workspace
        .path("secrets")
        .join(bucket.secret().expect("it has keys"));
    mount(&secret, "march", ["key-of-march", "hush-march"]);
    let mut running = workspace.start(&["--task-managers", "2", "--progress", "lines"]);
    let log = workspace.path("stderr.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(
        running.wait_until(|| completed_n(&read()) > 3),
        "{}",
        read()
    );
    let task_managers = running.children();

    // Replaced in time, and only later refused.
    mount(&secret, "april", ["key-of-april", "hush-april"]);
    server.start("key-of-april", "hush-april");

    // Only the new keys open this server: one that was being written at the change, and one more.
    let before_n = completed_n(&read());
    assert!(
        running.wait_until(|| completed_n(&read()) > before_n + 1),
        "{}",
        read()
    );
    assert_eq!(running.children(), task_managers, "one was started anew");
    running.wait().check_code(0);
    let log = read();
    assert!(!log.contains("attempt failed"), "{log}");
    assert!(!log.contains("hush"), "{log}");
    workspace.verify();
}

#[test]
fn every_line_of_a_task_managers_log_is_an_object_without_a_secret_when_that_is_asked_for() {
    let server = OwnServer::new();
    let bucket: Bucket = server.start("key-of-march", "hush-march");
    let workspace: Workspace = bucket.clicks(&bucket.folder("logs"), "rows: 20000, ", 1_000_000);
    let address = free_address();
    let coordinator = workspace.start(&["--listen", &address.to_string()]);
    let variables = [("STREAMFORGE_LOG_FORMAT", "json"), ("RUST_LOG", "trace")];
    let task_manager = workspace.start_task_manager_with("tm-1", address, 2, &variables);

    coordinator.wait().check_code(0);
    let log = task_manager.wait().check_code(0).stderr.clone();

    let mut levels = std::collections::BTreeSet::new();
    let mut ours_n = 0;
    for line in log.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let is_ours = line["target"]
            .as_str()
            .is_some_and(|it| it.starts_with("streamforge"));
        // Libraries say some things by fields alone.
        let keys = ["timestamp", "level", "target", "message"];
        for key in &keys[..if is_ours { 4 } else { 3 }] {
            assert!(line[key].is_string(), "no {key}: {line}");
        }
        ours_n += usize::from(is_ours);
        levels.insert(line["level"].to_string());
    }
    assert!(
        levels.contains("\"INFO\"") && levels.contains("\"TRACE\""),
        "{levels:?}"
    );
    assert!(ours_n > 3, "{ours_n}");
    assert!(!log.contains("hush-march"), "a secret");
    workspace.verify();
}
