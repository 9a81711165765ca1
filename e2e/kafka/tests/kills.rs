//! Kills at random moments, Kafka to Kafka and Kafka to S3. `KAFKA_KILLS=200` makes the long ledger and
//! writes it down (`make kills-kafka`).

use streamforge_e2e_kafka::kills::{Output, run};

async fn kills(output: Output) {
    let long = std::env::var("KAFKA_KILLS").ok();
    let kills_n = long.as_ref().map_or(10, |n| n.parse().expect("a number"));
    let seed = std::env::var("SEED").map_or(5, |n| n.parse().expect("a number"));

    let ledger = run(output, kills_n, seed).await;

    if long.is_some() {
        ledger.write();
    }
    println!("repeat with SEED={seed}");
    let complaints = ledger.complaints();
    assert!(
        complaints.is_empty(),
        "seed {seed}: {}",
        complaints.join("\n")
    );
}

/// KF-V16, KF-X1.
#[tokio::test(flavor = "multi_thread")]
async fn kf_v16_killed_at_random_moments_every_window_is_in_the_topic_once() {
    kills(Output::Topic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x6_killed_at_random_moments_every_window_is_in_the_bucket_once() {
    kills(Output::Bucket).await;
}
