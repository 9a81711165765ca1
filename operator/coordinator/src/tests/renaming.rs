//! Nodes that an edit gave another name, and no uid.

use streamforge_core::job_graph::{JobGraph, OperatorKind};

use super::words;
use crate::compatibility::foreseen;

#[test]
fn aggregate_and_source_by_another_name_are_told_how_to_keep_theirs() {
    let stored = words::graph();
    let renamed = |names: &[&str]| {
        let mut wanted = stored.clone();
        let all = wanted.stages.iter_mut().flat_map(|it| &mut it.operators);
        for operator in all.filter(|it| names.contains(&it.node.as_str())) {
            operator.uid.0 += "2";
            operator.node += "2";
        }
        wanted
    };
    let said = |wanted: &JobGraph| -> Vec<String> {
        foreseen(&stored, wanted).into_values().flatten().collect()
    };

    let both = said(&renamed(&["in", "agg"]));
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both[0].contains("\"agg2\"") && both[0].ends_with("`uid: agg`"));
    assert!(both[1].contains("\"in2\"") && both[1].ends_with("`uid: in`"));

    // One that computes something else is none that could take the state over.
    let mut another = renamed(&["agg"]);
    another.stages[1].operators[0].kind =
        OperatorKind::WindowFinal(words::aggregate(words::tumbling(20)));
    let another = said(&another);
    assert!(another[0].ends_with("would be dropped"), "{another:?}");
}
