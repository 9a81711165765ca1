//! A bucket with bad days: requests that are lost before and after they were done, errors, slowness,
//! a bucket that is not there or may not be written.

use std::time::Duration;

use streamforge_process::{Bucket, Random, Spoiler, Weather, Workspace};

fn workspace(bucket: &Bucket, base: &str, rows: u32) -> Workspace {
    bucket.clicks(base, &format!("rows: {rows}, "), 20_000)
}

#[test]
fn job_whose_bucket_loses_requests_and_answers_errs_and_dawdles_is_equal_to_the_oracle_x6() {
    let mut random = Random::from_environment();
    let real = Bucket::up();
    let spoiler = Spoiler::start(real.endpoint());
    let bucket = real.at(&spoiler.endpoint);
    let workspace = workspace(&bucket, &bucket.folder("foul"), 120_000);
    spoiler.set(Weather::Foul(Random::seeded(random.below(1 << 32))));

    let ended = workspace.run(&[]);

    ended.check_code(0);
    assert!(spoiler.spoiled_n() > 50, "{} spoiled", spoiler.spoiled_n());
    spoiler.set(Weather::Fair);
    workspace.verify();
}

#[test]
fn run_on_a_bucket_that_is_not_there_or_read_only_ends_and_says_so() {
    let real = Bucket::up();
    let spoiler = Spoiler::start(real.endpoint());
    let bucket = real.at(&spoiler.endpoint);
    for (status, code, words) in [
        (404, "NoSuchBucket", "there is no bucket of this name"),
        (403, "AccessDenied", "permission denied (AccessDenied)"),
    ] {
        spoiler.set(Weather::Refused(status, code));
        let workspace = workspace(&bucket, &bucket.folder(code), 1_000);

        let ended = workspace.run(&[]);

        ended.check_code(1);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

/// Of a bucket that is away no attempt fails before its first row: there would be as many as may, one after the
/// other, and an outage of minutes would be the end of the job.
#[test]
fn job_waits_for_the_bucket_of_its_sink_and_goes_on_by_itself() {
    let real = Bucket::up();
    let spoiler = Spoiler::start(real.endpoint());
    let bucket = real.at(&spoiler.endpoint);
    let (folder, s3) = (bucket.folder("away"), bucket.settings());
    let workspace = Workspace::new(&format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: waits}}
spec:
  sources:
    - name: clicks
      generator: {{clicks: {{rows: 1000, users: 50, seed: 7}}}}
      eventTime: {{column: ts}}
  sinks:
    - {{name: out, from: clicks, file: {{path: "{folder}/out/", s3: {s3}}}, format: {{json: {{}}}}}}
  restart: {{maxFailures: 0}}
"#
    ))
    .at(&["--secrets", "secrets"]);
    bucket.hand_keys_to(&workspace);
    spoiler.set(Weather::Refused(503, "SlowDown"));

    let mut running = workspace.start(&[]);
    while !running.log().contains("sink waits") {
        assert!(!running.has_ended(), "{}", running.log());
        running.let_run(Duration::from_millis(50));
    }
    spoiler.set(Weather::Fair);

    running.wait().check_code(0);
    workspace.verify();
}
