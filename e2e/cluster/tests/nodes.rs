//! A node is drained, a node is lost. Wants two nodes.

use std::process::Command;

use serde_json::Value;
use streamforge_e2e_cluster::{
    COORDINATOR_GONE, ClicksJob, Namespace, TASK_MANAGERS_DIE, eventually, kubectl, leading_pod,
    variable,
};

fn running(namespace: &Namespace) -> ClicksJob<'_> {
    let job = ClicksJob {
        namespace,
        name: "clicks",
        rows: Some(600_000),
        rate: 20_000,
        parallelism: 4,
        slots: 2,
        more: "",
    };
    job.apply();
    eventually("the job runs", 90, || {
        (namespace.phase("clicks") == "Running").then_some(())
    });
    job
}

fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

/// A node that has one of two task managers and is not the first: in a local cluster that one holds the API server.
fn other_node(namespace: &Namespace) -> String {
    let pods = namespace.pods();
    let nodes: Vec<&str> = pods.iter().map(node_of).collect();
    assert!(
        nodes.len() == 2 && nodes[0] != nodes[1],
        "task managers are not spread: {nodes:?}"
    );
    let other = nodes
        .iter()
        .find(|node| !node.ends_with('1') && !node.ends_with("control-plane"));
    (*other.expect("one of two nodes is not the first")).to_owned()
}

fn cluster(verb: &str, node: &str) {
    let status = Command::new(variable("STREAMFORGE_CLUSTER"))
        .args([verb, node])
        .status();
    assert!(
        status.expect("the script is there").success(),
        "{verb} {node}"
    );
}

/// Makes the node usable again, however the test ends.
struct Usable<'a> {
    verb: &'a str,
    node: &'a str,
}

impl Drop for Usable<'_> {
    fn drop(&mut self) {
        match self.verb {
            "uncordon" => drop(kubectl(&["uncordon", self.node])),
            verb => cluster(verb, self.node),
        }
        kubectl(&[
            "wait",
            "--for=condition=Ready",
            &format!("node/{}", self.node),
            "--timeout=90s",
        ]);
    }
}

#[test]
fn drained_node_hands_its_work_over() {
    let namespace = Namespace::create("drain");
    // The operator may be on that node, too.
    namespace.announce(&COORDINATOR_GONE);
    let job = running(&namespace);
    let node = other_node(&namespace);
    // If it leads, the next one finds the task manager of that node gone.
    if leading_pod().is_some_and(|pod| node_of(&pod) == node) {
        namespace.announce(&TASK_MANAGERS_DIE);
    }
    let _usable = Usable {
        verb: "uncordon",
        node: &node,
    };

    kubectl(&[
        "drain",
        &node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=90s",
    ]);

    job.finish(180);
}

#[test]
fn lost_node_does_not_change_the_result() {
    let namespace = Namespace::create("node-loss");
    namespace.announce(&TASK_MANAGERS_DIE);
    // The lost node's, which goes on behind its cut until it is back.
    namespace.announce(&COORDINATOR_GONE);
    let job = running(&namespace);
    let node = other_node(&namespace);
    let _usable = Usable {
        verb: "plug",
        node: &node,
    };

    cluster("unplug", &node);

    job.finish(240);
}
