//! A task between two others, whose sender was idle and comes back.

use super::*;

fn three_stages() -> JobGraph {
    let mut graph = graph();
    let mut last = graph.stages[1].clone();
    last.operators[0].uid = OperatorUid("last".to_owned());
    last.operators[0].inputs = vec![Input::Edge(1)];
    graph.stages.push(last);
    graph.edges.push(Edge {
        from_stage: StageIdx(1),
        from_operator: 0,
        port: Port::Main,
        to_stage: StageIdx(2),
        to_operator: 0,
        exchange: Exchange::Forward,
    });
    graph
}

/// The one of the second stage, and what it writes down. Its receiver stands at `below`.
fn between(below: i64) -> (TaskCore, Log) {
    let graph = three_stages();
    let assignment = Assignment::even(8, 1);
    let plan = TaskPlan {
        graph: &graph,
        id: task(1, 0),
        subtasks: vec![SubtaskIdx(0)],
        assignment: &assignment,
    };
    let mut logs = Vec::new();
    let mut core = TaskCore::new(&plan, vec![operator(1, &mut logs)]);
    core.start().unwrap();
    core.on_answer(1, SubtaskIdx(0), Watermark(below)).unwrap();
    let _asked = core.take_effects();
    (core, logs.remove(0))
}

fn answers(core: &mut TaskCore) -> Vec<Watermark> {
    let effects = core.take_effects().into_iter();
    let answers = effects.filter_map(|effect| match effect {
        Effect::Answer { watermark, .. } => Some(watermark),
        _ => None,
    });
    answers.collect()
}

/// Other inputs drove the receiver on meanwhile. What is behind that came back to a sender that did not know it: windows
/// that had fired got rows.
#[test]
fn sender_that_comes_back_hears_how_far_those_behind_its_receiver_are_t6() {
    let (mut core, log) = between(0);
    core.on_element(0, Element::Rejoin).unwrap();
    assert_eq!(answers(&mut core), [Watermark(0)]);
    core.on_element(0, Element::Watermark(Watermark(50)))
        .unwrap();
    core.on_element(0, Element::Idle).unwrap();
    let _idle = core.take_effects();

    core.on_element(0, Element::Rejoin).unwrap();
    assert_eq!(answers(&mut core), [], "it joins its own receiver first");
    core.on_answer(1, SubtaskIdx(0), Watermark(100)).unwrap();

    assert_eq!(answers(&mut core), [Watermark(100)]);
    assert_eq!(*log.lock().unwrap(), ["W 0us", "W 50us", "W 100us"]);
}
