//! docs/metrics.md says what is exported, no more and no less.

use streamforge_proto::metrics::page_lines;

#[test]
fn page_of_metrics_lists_exactly_the_exported_names() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let listed: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `streamforge_"))
        // Those are compared where they are made.
        .filter(|line| !line.starts_with("| `streamforge_operator_"))
        .filter(|line| !line.starts_with("| `streamforge_admission_"))
        .collect();

    let job = page_lines(streamforge_host::metrics::DESCRIBED);
    let task = page_lines(streamforge_taskmanager::metrics::DESCRIBED);
    let exported: Vec<String> = job.chain(task).collect();

    assert_eq!(
        listed,
        exported,
        "write these lines:\n{}",
        exported.join("\n")
    );
}
