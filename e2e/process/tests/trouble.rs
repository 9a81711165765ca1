//! A store that is damaged, a disk that is full: said clearly, and nothing lost.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up must fail")]

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use streamforge_process::Workspace;

const JOB: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {clicks: {rows: 200000, users: 5000, outOfOrderness: 1s, seed: 5}}
      eventTime: {column: ts, maxOutOfOrderness: 1s}
      rateLimit: {rowsPerSecond: 100000}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: 1s}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {name: results, from: per_user, file: {path: out/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
  restart: {maxFailures: 1, backoff: {initial: 10ms, max: 20ms}}
"#;

/// The manifest with the highest id.
fn newest_manifest(workspace: &Workspace) -> PathBuf {
    let id = |path: &PathBuf| -> u64 {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let digits = name.rsplit("-c").next().unwrap_or_default();
        digits.parse().expect("a manifest's name ends with its id")
    };
    let entries = std::fs::read_dir(workspace.path("store/manifests")).unwrap();
    let manifests = entries.map(|entry| entry.unwrap().path());
    manifests
        .filter(|p| p.to_string_lossy().contains("-c"))
        .max_by_key(id)
        .unwrap()
}

fn stopped_half_way() -> Workspace {
    let workspace = Workspace::new(JOB);
    let mut running = workspace.start(&[]);
    assert!(running.wait_until(|| workspace.published().files_n() > 2));
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    workspace
}

#[test]
fn damaged_newest_checkpoint_is_named_before_any_output_with_the_way_back_c7() {
    let workspace = stopped_half_way();
    let manifest = newest_manifest(&workspace);
    let mut bytes = std::fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let before = workspace.published();

    let ended = workspace.run(&[]);

    ended.check_code(1);
    let after = workspace.published();
    after.check_keeps(&before);
    assert_eq!(
        after.files_n(),
        before.files_n(),
        "no output before the error"
    );
    let (_, way_back) = ended
        .stderr
        .split_once("--rewind-to ")
        .expect(&ended.stderr);
    let id: String = way_back.chars().take_while(char::is_ascii_digit).collect();
    workspace.run(&["--rewind-to", &id]).check_code(0);
}

#[test]
fn store_without_its_head_is_refused_and_never_begun_anew_c7() {
    let workspace = stopped_half_way();
    std::fs::remove_file(workspace.path("store/head")).unwrap();
    let before = workspace.published();

    let ended = workspace.run(&[]);

    ended.check_code(1);
    assert!(ended.stderr.contains("head"), "{}", ended.stderr);
    assert_eq!(workspace.published().files_n(), before.files_n());
}

/// A store that takes nothing any more: a stop says so soon, ends in bounded time, and loses nothing.
#[test]
fn stop_with_a_store_that_takes_nothing_says_what_it_waits_for_and_is_bounded() {
    let workspace = Workspace::new(JOB);
    let mut running = workspace.start(&["--stop-timeout", "4s"]);
    assert!(running.wait_until(|| workspace.published().files_n() > 2));
    let (manifests, aside) = (workspace.path("store/manifests"), workspace.path("aside"));
    std::fs::rename(&manifests, &aside).unwrap();
    std::fs::write(&manifests, "in the way").unwrap();

    let asked = std::time::Instant::now();
    running.signal(Signal::TERM);
    let log = workspace.path("stderr.log");
    let says = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    assert!(running.wait_until(|| says("still stopping: waiting for the store (")));
    assert!(asked.elapsed().as_secs() < 3, "{:?}", asked.elapsed());
    let ended = running.wait();

    ended.check_code(130);
    assert!(
        ended.stderr.contains("did not stop within 4 s"),
        "{}",
        ended.stderr
    );
    assert!(
        (4..8).contains(&asked.elapsed().as_secs()),
        "{:?}",
        asked.elapsed()
    );
    std::fs::remove_file(&manifests).unwrap();
    std::fs::rename(&aside, &manifests).unwrap();
    workspace.run(&[]).check_code(0);
    workspace.verify();
}

#[test]
fn file_that_cannot_grow_fails_the_job_and_the_next_run_loses_nothing() {
    for arguments in [&[][..], &["--task-managers", "1"]] {
        let workspace = Workspace::new(JOB);
        let run = workspace.command("run", arguments);
        // A limit on file size instead of a full disk, which would need root: the same failing write.
        let limited = Command::new("sh")
            .args(["-c", "ulimit -f 16; exec \"$0\" \"$@\""])
            .arg(run.get_program())
            .args(run.get_args())
            .current_dir(workspace.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&limited.stderr);
        assert_eq!(limited.status.code(), Some(1), "{said}");
        assert!(said.contains("File too large"), "{said}");
        assert!(!said.contains("panicked at"), "{said}");
        workspace.published().check_whole();

        workspace.run(&["--parallelism", "3"]).check_code(0);

        workspace.verify();
    }
}
