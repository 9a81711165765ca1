//! Signals before there is a job.

use rustix::process::Signal;
use streamforge_process::Workspace;

#[test]
fn signal_before_a_job_has_begun_stops_it_with_code_3() {
    let workspace = Workspace::new("");
    let document = workspace.path("job.yaml");
    std::fs::remove_file(&document).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&document).status();
    assert!(made.unwrap().success());
    let running = workspace.start(&[]);

    // It can be opened for writing once the process reads its document.
    let held = std::fs::File::options()
        .write(true)
        .open(&document)
        .unwrap();
    running.signal(Signal::TERM);

    let ended = running.wait();
    ended.check_code(3);
    assert!(
        ended.stderr.contains("before the job began"),
        "{}",
        ended.stderr
    );
    drop(held);
}
