use streamforge_core::job_graph::{AggregateFunction, Emit};

use super::testing::{Pipe, call, hopping, spec, tumbling};
use crate::operator::Operator;

#[test]
fn tumbling_counts_fire_when_the_watermark_reaches_their_end() {
    let mut pipe = Pipe::new(spec(tumbling(10)));

    pipe.rows(&[(1, 7, 1), (9, 7, 2), (10, 7, 4), (3, 8, 8)]).watermark(9);
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
    assert_eq!((counters.rows_in, counters.passed, counters.late), (2, 1, 1));
    assert_eq!(counters.late_windows, 1);
    assert!(counters.balances());
}

#[test]
fn hopping_row_is_late_for_its_closed_windows_only_t3() {
    // Windows of 10 every 5: ts 7 is in [0,10) and [5,15); W = 10 has closed the first.
    let mut pipe = Pipe::new(spec(hopping(10, 5)));

    pipe.rows(&[(6, 1, 1)]).watermark(10).rows(&[(7, 1, 2)]).end();

    assert_eq!(pipe.take(), ["+I 1 -5 5 0 0"; 0].into_iter().chain([
        "+I 1 0 10 1 1",
        "+I 1 5 15 2 3",
    ]).collect::<Vec<_>>());
    assert_eq!(pipe.seen.late, ["+I 1 2 0 10 10 f 2:0"]);
    let counters = pipe.first.counters();
    assert_eq!((counters.passed, counters.late, counters.late_windows), (2, 0, 1));
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
    assert_eq!(pipe.take(), ["+I 9 0 10 1 9", "+U 7 0 10 2 3", "-U 7 0 10 1 1"]);

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

    pipe.rows(&[(1, 7, 1)]).watermark(14).rows(&[(2, 7, 2)]).flush();
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
fn sum_out_of_range_is_one_bad_result_row() {
    let mut spec = spec(tumbling(10));
    spec.calls = vec![call(AggregateFunction::Count, None)];
    spec.calls.push(streamforge_core::job_graph::AggregateCall {
        name: "s".to_owned(),
        function: AggregateFunction::Sum,
        arg: Some(streamforge_core::job_graph::Expr {
            sql: "v".to_owned(),
            data_type: streamforge_core::data_type::DataType::Int,
            nullable: true,
        }),
        filter: None,
        data_type: streamforge_core::data_type::DataType::BigInt,
        nullable: true,
    });
    let mut pipe = Pipe::new(spec);

    // INT arguments cannot overflow BIGINT in a test's lifetime: a cast failure is seen instead.
    pipe.rows(&[(1, 7, 1), (2, 8, 2)]).end();

    assert_eq!(pipe.take(), ["+I 7 0 10 1 1", "+I 8 0 10 1 2"]);
}
