use streamforge_core::data_type::DataType;
use streamforge_core::event_time::Watermark;
use streamforge_core::job_graph::{AggregateFunction, Emit, Expr, WindowSpec};
use streamforge_core::key_group::KeyGroup;

use super::testing::{
    GROUPS, Pipe, Row, batch, call, hopping, last, lines, partial, restored_parts, session, spec,
    tumbling,
};
use crate::operator::{Operator, Outputs, RestoredState};

#[test]
fn tumbling_counts_fire_when_the_watermark_reaches_their_end() {
    let mut pipe = Pipe::new(spec(tumbling(10)));

    pipe.rows(&[(1, 7, 1), (9, 7, 2), (10, 7, 4), (3, 8, 8)])
        .watermark(9);
    assert!(pipe.take().is_empty());

    pipe.watermark(10);
    assert_eq!(pipe.take(), ["+I 7 0 10 2 3", "+I 8 0 10 1 8"]);

    pipe.end();
    assert_eq!(pipe.take(), ["+I 7 10 20 1 4"]);
}

#[test]
fn row_is_late_at_its_windows_end_and_on_time_at_the_next_start_kf_v6() {
    let mut pipe = Pipe::new(spec(tumbling(10)));

    pipe.watermark(10).rows(&[(9, 1, 100), (10, 1, 200)]).end();

    assert_eq!(pipe.take(), ["+I 1 10 20 1 200"]);
    assert_eq!(pipe.seen.late, ["+I 1 100 0 10 10 f 100:0"]);
    assert_eq!(pipe.take_log(), ["+I f 100:0 0 10 10"]);
    let counters = pipe.first.counters();
    assert_eq!(
        (counters.rows_in, counters.passed, counters.late),
        (2, 1, 1)
    );
    assert_eq!(counters.late_windows, 1);
    assert!(counters.balances());
}

#[test]
fn hopping_row_is_late_for_its_closed_windows_only_t3() {
    // Windows of 10 every 5: ts 7 is in [0,10) and [5,15); W = 10 has closed the first.
    let mut pipe = Pipe::new(spec(hopping(10, 5)));

    pipe.rows(&[(6, 1, 1)])
        .watermark(10)
        .rows(&[(7, 1, 2)])
        .end();

    assert_eq!(pipe.take(), ["+I 1 0 10 1 1", "+I 1 5 15 2 3"]);
    assert_eq!(pipe.seen.late, ["+I 1 2 0 10 10 f 2:0"]);
    let counters = pipe.first.counters();
    assert_eq!(
        (counters.passed, counters.late, counters.late_windows),
        (2, 0, 1)
    );
    assert!(counters.balances());
}

#[test]
fn record_late_at_the_sender_is_not_counted_where_the_window_is_still_open_t3() {
    // The sender is at 10 while the receiver still waits for another sender.
    let mut pipe = Pipe::new(spec(hopping(10, 5)));
    let mut out = crate::operator::Outputs::new(true, true);
    pipe.first
        .on_watermark(streamforge_core::event_time::Watermark(10), &mut out)
        .unwrap();

    pipe.rows(&[(7, 1, 2)]).flush().end();

    assert_eq!(pipe.take(), ["+I 1 5 15 1 2"]);
    assert_eq!(pipe.seen.late.len(), 1);
}

#[test]
fn correction_takes_back_exactly_what_was_sent_g2() {
    let mut spec = spec(tumbling(10));
    spec.allowed_lateness_us = 5;
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(1, 7, 1), (2, 8, 5)]).watermark(10);
    assert_eq!(pipe.take(), ["+I 7 0 10 1 1", "+I 8 0 10 1 5"]);

    pipe.rows(&[(3, 7, 2), (4, 9, 9)]).watermark(14).flush();
    assert_eq!(
        pipe.take(),
        ["+I 9 0 10 1 9", "+U 7 0 10 2 3", "-U 7 0 10 1 1"]
    );

    pipe.restart(1).rows(&[(5, 7, 4)]).flush();
    assert_eq!(pipe.take(), ["+U 7 0 10 3 7", "-U 7 0 10 2 3"]);

    pipe.watermark(15).rows(&[(6, 7, 100)]).end();
    assert!(pipe.take().is_empty());
    assert_eq!(pipe.seen.late.len(), 1);
}

#[test]
fn unchanged_result_emits_nothing() {
    let mut spec = spec(tumbling(10));
    spec.allowed_lateness_us = 5;
    spec.calls = vec![call(AggregateFunction::Max, Some("v"))];
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(1, 7, 9)]).watermark(10).take();
    pipe.rows(&[(2, 7, 3)]).flush();

    assert!(pipe.take().is_empty());
}

#[test]
fn once_waits_for_the_lateness_and_sends_one_result() {
    let mut spec = spec(tumbling(10));
    spec.allowed_lateness_us = 5;
    spec.emit = Emit::Once;
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(1, 7, 1)])
        .watermark(14)
        .rows(&[(2, 7, 2)])
        .flush();
    assert!(pipe.take().is_empty());

    pipe.watermark(15);
    assert_eq!(pipe.take(), ["+I 7 0 10 2 3"]);
}

#[test]
fn state_survives_a_restart_between_any_two_rows() {
    let rows = [(1, 7, 1), (12, 7, 2), (3, 8, 4), (14, 7, 8), (23, 7, 16)];
    let mut straight = Pipe::new(spec(hopping(20, 10)));
    straight.rows(&rows).end();
    let mut pipe = Pipe::new(spec(hopping(20, 10)));

    for (id, row) in rows.iter().enumerate() {
        pipe.rows(&[*row]).restart(id as u64 + 1);
    }
    pipe.end();

    let expected = [
        "+I 7 -10 10 1 1",
        "+I 7 0 20 3 11",
        "+I 7 10 30 3 26",
        "+I 7 20 40 1 16",
        "+I 8 -10 10 1 4",
        "+I 8 0 20 1 4",
    ];
    assert_eq!(pipe.take(), expected);
    assert_eq!(straight.take(), expected);
}

#[test]
fn result_without_a_value_is_one_bad_row_with_key_and_window() {
    let mut spec = spec(tumbling(10));
    spec.calls = vec![call(AggregateFunction::ArrayAgg, Some("v"))];
    let mut pipe = Pipe::new(spec);
    let many: Vec<Row> = (0..=10_000).map(|v| (1, 7, v)).collect();

    pipe.rows(&many).rows(&[(2, 8, 5), (2, 8, 4)]).end();

    assert_eq!(pipe.take(), ["+I 8 0 10 [4, 5]"]);
    let raw =
        r#"{"k":7,"window_start":"1970-01-01T00:00:00","window_end":"1970-01-01T00:00:00.000010"}"#;
    assert_eq!(
        pipe.seen.bad,
        [format!("{raw} array_agg has more than 10000 items")]
    );
    assert_eq!(pipe.last.counters().bad_results, 1);
}

#[test]
fn result_that_becomes_bad_is_taken_back_once_g2() {
    let mut spec = spec(tumbling(10));
    spec.calls = vec![call(AggregateFunction::ArrayAgg, Some("v"))];
    spec.allowed_lateness_us = 100;
    let mut pipe = Pipe::new(spec);
    let many: Vec<Row> = (0..10_000).map(|v| (1, 7, v)).collect();

    pipe.rows(&[(1, 7, 0)]).watermark(10);
    assert_eq!(pipe.take(), ["+I 7 0 10 [0]"]);
    pipe.rows(&many).flush();
    assert_eq!(pipe.take(), ["-D 7 0 10 [0]"]);
    pipe.restart(1).rows(&[(1, 7, 1)]).flush();

    assert!(pipe.take().is_empty());
    assert_eq!(pipe.seen.bad.len(), 1);
}

#[test]
fn watermark_goes_on_behind_the_lateness_and_after_its_rows_t5() {
    let mut spec = spec(tumbling(10));
    spec.allowed_lateness_us = 3;
    let mut last = last(&spec);
    let mut out = Outputs::new(true, true);

    assert_eq!(
        last.on_watermark(Watermark(10), &mut out).unwrap(),
        Watermark(7)
    );
    assert_eq!(last.flush(&mut out).unwrap(), Some(Watermark(7)));
    assert_eq!(
        last.on_watermark(Watermark::END, &mut out).unwrap(),
        Watermark::END
    );
}

#[test]
fn global_aggregate_has_one_row_per_window_that_has_rows() {
    let mut spec = spec(tumbling(10));
    spec.keys.clear();
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(1, 7, 1), (2, 8, 2), (25, 7, 4)])
        .restart(1)
        .end();

    assert_eq!(pipe.take(), ["+I 0 10 2 3", "+I 20 30 1 4"]);
}

#[test]
fn global_session_needs_no_key() {
    let mut spec = spec(session(10));
    spec.keys.clear();
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(1, 7, 1), (9, 8, 2)])
        .watermark(12)
        .rows(&[(3, 1, 3), (25, 7, 4)])
        .restart(1)
        .end();

    assert_eq!(pipe.take(), ["+I 1 19 3 6", "+I 25 35 1 4"]);
}

#[test]
fn filter_of_an_aggregate_keeps_its_rows_only() {
    let mut spec = spec(tumbling(10));
    // The tests' only BOOLEAN expression: whether the value is above 2.
    let filter = Expr {
        sql: "v > 2".to_owned(),
        data_type: DataType::Boolean,
        nullable: true,
    };
    spec.calls[0].filter = Some(filter);
    for window in [tumbling(10), session(10)] {
        spec.window = window;
        let mut pipe = Pipe::new(spec.clone());

        pipe.rows(&[(1, 7, 1), (1, 7, 3), (1, 8, 2)]).end();

        let rows: Vec<String> = pipe.take();
        assert!(
            rows[0].ends_with(" 1 4") && rows[1].ends_with(" 0 2"),
            "{rows:?}"
        );
    }
}

#[test]
fn partials_wait_until_a_window_closes_and_leave_before_the_watermark() {
    let spec = spec(tumbling(10));
    let mut first = partial(&spec);
    let mut out = Outputs::new(true, true);
    first
        .on_batch(0, batch(&spec, &[(1, 7, 1), (2, 7, 2)]), &mut out)
        .unwrap();

    // No window closes between NONE's slice ... and 9: but the first promise ends the unknown.
    first.on_watermark(Watermark(1), &mut out).unwrap();
    out.take();
    first
        .on_batch(0, batch(&spec, &[(1, 7, 1), (2, 8, 2)]), &mut out)
        .unwrap();
    let held = first.on_watermark(Watermark(9), &mut out).unwrap();
    assert_eq!(held, Watermark(1));
    assert!(out.take().is_empty());

    let promised = first.on_watermark(Watermark(10), &mut out).unwrap();

    assert_eq!(promised, Watermark(10));
    let sent = out.take();
    assert_eq!(sent.len(), 1);
    assert_eq!(lines(&sent[0].1), ["+I 7 0 0 1 1", "+I 8 0 0 1 2"]);
}

#[test]
fn flush_sends_what_is_held_and_the_full_promise() {
    let spec = spec(tumbling(10));
    let mut first = partial(&spec);
    let mut out = Outputs::new(true, true);
    first.on_watermark(Watermark(1), &mut out).unwrap();
    first
        .on_batch(0, batch(&spec, &[(5, 7, 1)]), &mut out)
        .unwrap();
    assert_eq!(
        first.on_watermark(Watermark(4), &mut out).unwrap(),
        Watermark(1)
    );

    assert_eq!(first.flush(&mut out).unwrap(), Some(Watermark(4)));

    assert_eq!(out.take().len(), 1);
}

#[test]
fn hot_key_costs_the_wire_one_row_per_flush() {
    let spec = spec(tumbling(1_000_000));
    let mut first = partial(&spec);
    let mut out = Outputs::new(true, true);
    for _ in 0..10 {
        let rows: Vec<Row> = (0..8192).map(|n| (n, 7, 1)).collect();
        first.on_batch(0, batch(&spec, &rows), &mut out).unwrap();
    }

    first.flush(&mut out).unwrap();

    let sent: usize = out.take().iter().map(|(_, batch)| batch.len()).sum();
    assert_eq!(sent, 1);
}

#[test]
fn partial_groups_are_bounded_b1() {
    let spec = spec(tumbling(1_000_000));
    let mut first = partial(&spec);
    let mut out = Outputs::new(true, true);
    let mut sent = 0;
    for start in 0..40 {
        let rows: Vec<Row> = (0..8192).map(|n| (n, start * 8192 + n, 1)).collect();
        first.on_batch(0, batch(&spec, &rows), &mut out).unwrap();
        sent += out
            .take()
            .iter()
            .map(|(_, batch)| batch.len())
            .sum::<usize>();
    }

    assert!(40 * 8192 - sent <= super::super::window_partial::PARTIAL_GROUPS_MAX);
}

#[test]
fn row_that_cannot_be_evaluated_is_bad_and_the_others_go_on_f3() {
    let mut spec = spec(tumbling(10));
    spec.keys[0].expr.sql = "100 / v".to_owned();
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(1, 7, 10), (2, 7, 0), (3, 7, 20)]).end();

    assert_eq!(pipe.take(), ["+I 10 0 10 1 10", "+I 5 0 10 1 20"]);
    assert_eq!(
        pipe.seen.bad,
        [r#"{"k":7,"v":0} `100 / v`: division by zero"#]
    );
    let counters = pipe.first.counters();
    assert_eq!((counters.rows_in, counters.passed, counters.bad), (3, 2, 1));
    assert!(counters.balances());
}

#[test]
fn late_partial_is_a_broken_promise_t3() {
    let spec = spec(tumbling(10));
    let mut pipe = Pipe::new(spec);
    pipe.last_watermark(Watermark(10));
    let mut out = Outputs::new(true, true);
    pipe.first
        .on_batch(0, batch(&pipe.spec, &[(1, 7, 1)]), &mut out)
        .unwrap();
    pipe.first.flush(&mut out).unwrap();
    let (_, partials) = out.take().remove(0);

    let error = pipe.last.on_batch(0, partials, &mut out).unwrap_err();

    assert!(error.to_string().contains("T3"), "{error}");
}

#[test]
fn panes_kept_after_a_watermark_are_those_of_open_windows_kf_e10() {
    let mut pipe = Pipe::new(spec(hopping(30, 10)));
    for n in 0..1000 {
        pipe.rows(&[(n, n % 7, 1)]).watermark(n - 5).flush();
        assert!(pipe.last.state_panes() <= 4, "{}", pipe.last.state_panes());
    }
}

#[test]
fn watermark_of_a_snapshot_is_bit_equal_kf_e30() {
    for watermark in [i64::MIN + 1, -1, 0, i64::MAX - 1] {
        let mut pipe = Pipe::new(spec(tumbling(10)));
        pipe.watermark(watermark);

        assert_eq!(pipe.checkpoint(1).0, Watermark(watermark));
    }
}

/// One task that received the key groups of two keepers: one at 20, one at 10. Of each of 50 keys
/// there is 1 at 5, 2 at 15 and 4 at 25.
fn of_two_keepers(window: WindowSpec) -> Pipe {
    let spec = spec(window);
    let rows: Vec<Row> = (0..50)
        .flat_map(|key| [(5, key, 1), (15, key, 2), (25, key, 4)])
        .collect();
    let mut ahead = Pipe::new(spec.clone());
    let mut behind = Pipe::new(spec.clone());
    ahead.rows(&rows).watermark(20);
    behind.rows(&rows).watermark(10);
    let (high, ahead_parts) = ahead.checkpoint(1);
    let (low, behind_parts) = behind.checkpoint(2);
    let mine = |groups: std::ops::Range<u16>, watermark| {
        groups.map(move |group| (KeyGroup(group), watermark))
    };
    // Each keeper's parts hold all keys here; a restore reads only the blocks of its groups.
    let half = GROUPS as u16 / 2;
    let mut parts = restored_parts(&ahead_parts, 0..half);
    parts.extend(restored_parts(&behind_parts, half..GROUPS as u16));
    let groups = mine(0..half, high)
        .chain(mine(half..GROUPS as u16, low))
        .collect();
    let mut last = last(&spec);
    last.restore(RestoredState {
        groups,
        watermark: high,
        parts,
    })
    .unwrap();
    let mut pipe = Pipe::new(spec);
    pipe.last = last;
    pipe
}

#[test]
fn group_behind_the_highest_watermark_is_caught_up_before_anything_else_t6() {
    // The keeper at 20 fired [0,10) and [10,20), the one at 10 did not fire [10,20).
    let mut pipe = of_two_keepers(tumbling(10));

    pipe.last_watermark(Watermark(20));
    let caught_up = pipe.take();
    pipe.last_watermark(Watermark::END);
    let rest = pipe.take();

    assert!(!caught_up.is_empty() && caught_up.len() < 50);
    assert!(
        caught_up.iter().all(|line| line.ends_with(" 10 20 1 2")),
        "{caught_up:?}"
    );
    assert_eq!(rest.len(), 50);
    assert!(
        rest.iter().all(|line| line.ends_with(" 20 30 1 4")),
        "{rest:?}"
    );
}

#[test]
fn window_that_fired_before_its_groups_moved_does_not_fire_again_t6() {
    // The keeper at 20 fired [0,20); the rows at 15 stay for [10,30). The one at 10 did not.
    let mut pipe = of_two_keepers(hopping(20, 10));

    pipe.last_watermark(Watermark(20));
    let caught_up = pipe.take();
    pipe.last_watermark(Watermark::END);
    let rest = pipe.take();

    assert!(!caught_up.is_empty() && caught_up.len() < 50);
    assert!(
        caught_up.iter().all(|line| line.ends_with(" 0 20 2 3")),
        "{caught_up:?}"
    );
    let count = |end: &str| rest.iter().filter(|line| line.ends_with(end)).count();
    assert_eq!((count(" 10 30 2 6"), count(" 20 40 1 4")), (50, 50));
    assert_eq!(rest.len(), 100);
}
