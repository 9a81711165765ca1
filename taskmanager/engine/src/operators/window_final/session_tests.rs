use std::collections::BTreeMap;

use streamforge_core::event_time::Watermark;
use streamforge_core::job_graph::{AggregateFunction, Emit};

use super::testing::{Pipe, Row, call, session, spec};
use crate::operator::Operator;

/// Rows of key 1; the value is the position.
fn rows(times: &[i64]) -> Vec<Row> {
    times
        .iter()
        .zip(1..)
        .map(|(time, n)| (*time, 1, n))
        .collect()
}

fn counting(gap: i64) -> Pipe {
    let mut spec = spec(session(gap));
    spec.calls = vec![call(AggregateFunction::Count, None)];
    Pipe::new(spec)
}

/// All orders of a few times.
fn permutations(times: &[i64]) -> Vec<Vec<i64>> {
    let Some((first, rest)) = times.split_first() else {
        return vec![vec![]];
    };
    let mut all = Vec::new();
    for order in permutations(rest) {
        for at in 0..=order.len() {
            let mut order = order.clone();
            order.insert(at, *first);
            all.push(order);
        }
    }
    all
}

#[test]
fn records_merge_below_the_gap_and_not_at_it_in_every_order_kf_v5() {
    for (times, expected) in [
        (vec![0, 9], vec!["+I 1 0 19 2"]),
        (vec![0, 10], vec!["+I 1 0 10 1", "+I 1 10 20 1"]),
        (vec![0, 15, 8], vec!["+I 1 0 25 3"]),
    ] {
        for order in permutations(&times) {
            let mut pipe = counting(10);
            pipe.rows(&rows(&order)).end();
            assert_eq!(pipe.take(), expected, "{order:?}");
        }
    }
}

#[test]
fn bridging_record_merges_whatever_the_batches_and_restarts_kf_e6() {
    for restarts in 0..8u64 {
        for order in permutations(&[0, 15, 8]) {
            let mut pipe = counting(10);
            for (idx, row) in rows(&order).into_iter().enumerate() {
                pipe.rows(&[row]);
                if restarts & (1 << idx) != 0 {
                    pipe.restart(idx as u64 + 1);
                }
            }
            pipe.end();
            assert_eq!(pipe.take(), ["+I 1 0 25 3"], "{order:?} {restarts}");
        }
    }
}

#[test]
fn record_that_would_touch_a_final_session_is_late_whole_t4_kf_e3_attack_40() {
    for restart in [false, true] {
        let mut pipe = counting(5);

        pipe.rows(&[(0, 1, 1)]).watermark(6);
        assert_eq!(pipe.take(), ["+I 1 0 5 1"]);
        if restart {
            pipe.restart(1);
        }
        // Its own window [3,8) is open at 6, but a second session would overlap [0,5).
        pipe.rows(&[(3, 1, 2)]).end();

        assert!(pipe.take().is_empty());
        assert_eq!(pipe.seen.late, ["+I 1 2 0 5 6 f 2:0"]);
        assert_eq!(pipe.take_log(), ["+I f 2:0 0 5 6"]);
        let counters = pipe.last.counters();
        assert_eq!((counters.late, counters.late_windows), (1, 1));
        assert!(counters.balances());
    }
}

#[test]
fn record_at_the_end_of_a_final_session_begins_its_own_t4() {
    let mut pipe = counting(5);

    pipe.rows(&[(0, 1, 1)])
        .watermark(6)
        .rows(&[(5, 1, 2)])
        .end();

    assert_eq!(pipe.take(), ["+I 1 0 5 1", "+I 1 5 10 1"]);
    assert!(pipe.seen.late.is_empty());
}

#[test]
fn late_record_is_not_folded_into_the_next_session_kf_e5() {
    let mut pipe = counting(5);

    // 20 closes [0,5) and [1,6); 2 is late; the next session starts at 20 with its own count.
    pipe.rows(&[(0, 1, 1), (20, 1, 2)])
        .watermark(20)
        .rows(&[(2, 1, 3), (22, 1, 4)])
        .end();

    assert_eq!(pipe.take(), ["+I 1 0 5 1", "+I 1 20 27 2"]);
    assert_eq!(pipe.last.counters().late, 1);
    assert_eq!(pipe.seen.late, ["+I 1 3 2 7 20 f 3:0"]);
}

#[test]
fn record_whose_own_window_is_closed_is_late_even_beside_an_open_session_t4() {
    // At 31 the window of 12, [12,22), is closed. Were 12 let into the open session of 20 and 28, a
    // chain of such records could lead back into a session that was sent and forgotten.
    let mut pipe = counting(10);

    pipe.rows(&[(20, 1, 1), (28, 1, 2)])
        .watermark(31)
        .rows(&[(12, 1, 3), (22, 1, 4)])
        .end();

    assert_eq!(pipe.take(), ["+I 1 20 38 3"]);
    assert_eq!(pipe.seen.late, ["+I 1 3 12 22 31 f 3:0"]);
}

#[test]
fn forgotten_session_is_not_overlapped_through_a_later_one_t4() {
    // [-3,3) is final and forgotten at 9; 6 opens a session; 2 is within a gap of both.
    let mut pipe = counting(6);

    pipe.rows(&[(-3, 1, 1)])
        .watermark(9)
        .rows(&[(6, 1, 2), (2, 1, 3)])
        .end();

    assert_eq!(pipe.take(), ["+I 1 -3 3 1", "+I 1 6 12 1"]);
    assert_eq!(pipe.seen.late, ["+I 1 3 2 8 9 f 3:0"]);
}

#[test]
fn merge_takes_back_both_sessions_before_it_sends_the_merged_one_kf_e7() {
    for restart in [false, true] {
        let mut spec = spec(session(10));
        spec.calls = vec![call(AggregateFunction::Count, None)];
        spec.allowed_lateness_us = 20;
        let mut pipe = Pipe::new(spec);

        pipe.rows(&rows(&[0, 15])).watermark(25);
        assert_eq!(pipe.take(), ["+I 1 0 10 1", "+I 1 15 25 1"]);
        if restart {
            pipe.restart(1);
        }
        pipe.rows(&[(8, 1, 3)]).flush();

        assert_eq!(
            pipe.seen.main,
            ["-D 1 0 10 1", "-D 1 15 25 1", "+I 1 0 25 3"]
        );
        pipe.take();
        pipe.end();
        assert!(pipe.take().is_empty());
    }
}

#[test]
fn extended_session_is_taken_back_at_once_and_sent_when_it_closes_again() {
    let mut spec = spec(session(10));
    spec.calls = vec![call(AggregateFunction::Count, None)];
    spec.allowed_lateness_us = 20;
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(0, 1, 1)])
        .watermark(12)
        .rows(&[(9, 1, 2)])
        .flush();
    assert_eq!(pipe.take(), ["+I 1 0 10 1", "-D 1 0 10 1"]);

    pipe.watermark(19);
    assert_eq!(pipe.take(), ["+I 1 0 19 2"]);
    pipe.rows(&[(3, 1, 3)]).flush();
    assert_eq!(pipe.seen.main, ["-U 1 0 19 2", "+U 1 0 19 3"]);
}

#[test]
fn once_sends_a_session_when_it_is_final() {
    let mut spec = spec(session(10));
    spec.calls = vec![call(AggregateFunction::Count, None)];
    spec.allowed_lateness_us = 20;
    spec.emit = Emit::Once;
    let mut pipe = Pipe::new(spec);

    pipe.rows(&[(0, 1, 1)])
        .watermark(29)
        .rows(&[(9, 1, 2)])
        .flush()
        .watermark(38);
    assert!(pipe.take().is_empty());

    pipe.watermark(39);
    assert_eq!(pipe.take(), ["+I 1 0 19 2"]);
}

#[test]
fn keys_do_not_share_sessions() {
    let mut pipe = counting(10);

    pipe.rows(&[(0, 1, 1), (5, 2, 2), (9, 1, 3)]).end();

    assert_eq!(pipe.take(), ["+I 1 0 19 2", "+I 2 5 15 1"]);
}

#[test]
fn million_single_event_keys_are_gone_after_the_watermark_passes_kf_e23() {
    let mut pipe = counting(10);
    let n = 1_000_000;
    for start in (0..n).step_by(8192) {
        let rows: Vec<Row> = (start..n.min(start + 8192))
            .map(|key| (key / 1000, key, 1))
            .collect();
        pipe.rows(&rows);
    }
    let held = pipe.last.state_size();
    pipe.watermark(n / 1000 + 10);
    assert_eq!(pipe.take().len(), 1_000_000);

    // Extents stay for another gap.
    pipe.watermark(n / 1000 + 100).flush();

    let left = pipe.last.state_size();
    assert!(held > 10_000_000 && left < 10_000, "{held} -> {left}");
    assert_eq!(pipe.checkpoint(1).1.len(), 0);
}

#[test]
fn watermark_waits_while_sweeping_would_cost_more_than_it_brings() {
    let mut pipe = counting(3200);
    for start in 0..10 {
        let rows: Vec<Row> = (0..8192).map(|n| (n % 100, start * 8192 + n, 1)).collect();
        pipe.rows(&rows);
    }
    pipe.watermark(1000);
    assert_eq!(pipe.checkpoint(1).0, Watermark(1000));

    // An eighth of the gap is 400, a thirty-second 100; state of 81,920 fragments is above both.
    pipe.watermark(1100);
    assert_eq!(pipe.checkpoint(2).0, Watermark(1000));
    pipe.watermark(1101);
    assert_eq!(pipe.checkpoint(3).0, Watermark(1101));

    pipe.watermark(3250).watermark(3251).end();
    assert_eq!(pipe.take().len(), 81_920);
}

/// Sessions of rows by brute force, as lines.
fn oracle(rows: &[Row], gap: i64) -> Vec<String> {
    let mut by_key: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (time, key, _) in rows {
        by_key.entry(*key).or_default().push(*time);
    }
    let mut lines = Vec::new();
    for (key, mut times) in by_key {
        times.sort_unstable();
        let mut start = 0;
        for end in 1..=times.len() {
            if end == times.len() || times[end] - times[end - 1] >= gap {
                let (first, last) = (times[start], times[end - 1] + gap);
                lines.push(format!("+I {key} {first} {last} {}", end - start));
                start = end;
            }
        }
    }
    lines.sort();
    lines
}

/// Folds a changelog; panics if it takes back what it did not say.
fn fold(lines: &[String]) -> Vec<String> {
    let mut rows: BTreeMap<String, i64> = BTreeMap::new();
    for line in lines {
        let (op, row) = line.split_at(2);
        let count = rows.entry(row.to_owned()).or_default();
        *count += if op.starts_with('+') { 1 } else { -1 };
        assert!((0..=1).contains(count), "{line} in {lines:#?}");
    }
    rows.retain(|_, count| *count > 0);
    rows.into_keys().map(|row| format!("+I{row}")).collect()
}

mod random {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Rows(Vec<(i64, i64)>),
        Advance(i64),
        Flush,
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => proptest::collection::vec((-15i64..15, 0i64..3), 1..6).prop_map(Step::Rows),
            3 => (0i64..12).prop_map(Step::Advance),
            1 => Just(Step::Flush),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        /// The sessions of what was not late are those of a batch query, whatever the order, the
        /// watermarks, the batches and the restarts; and sessions of a key never overlap (T4).
        #[test]
        fn sessions_are_those_of_a_batch_query_minus_the_late_log(
            steps in proptest::collection::vec(step(), 1..30),
            gap in 1i64..8, lateness in prop_oneof![Just(0i64), 1i64..12], once in any::<bool>(),
        ) {
            let mut spec = spec(session(gap));
            spec.calls = vec![call(AggregateFunction::Count, None)];
            spec.allowed_lateness_us = lateness;
            spec.emit = if once { Emit::Once } else { Emit::OnTime };
            let mut pipe = Pipe::new(spec);
            let (mut all, mut late) = (Vec::<Row>::new(), Vec::new());
            let (mut now, mut watermark) = (0, i64::MIN);
            for (id, step) in steps.iter().enumerate() {
                match step {
                    Step::Rows(rows) => {
                        let first = all.len() as i64;
                        let rows: Vec<Row> = rows
                            .iter()
                            .zip(first..)
                            .map(|((ahead, key), n)| (now + ahead, *key, n))
                            .collect();
                        all.extend(&rows);
                        pipe.rows(&rows);
                    }
                    Step::Advance(by) => {
                        now += by;
                        watermark = now - 5;
                        pipe.watermark(watermark);
                    }
                    Step::Flush => {
                        pipe.flush();
                    }
                    Step::Restart => {
                        late.extend(pipe.take_log());
                        pipe.restart(id as u64 + 1);
                    }
                }
            }
            let _ = watermark;
            pipe.end();
            late.extend(pipe.take_log());

            let number = |line: &String| -> i64 {
                let position = line.split(' ').nth(2).unwrap();
                position.split(':').next().unwrap().parse().unwrap()
            };
            let late: std::collections::BTreeSet<i64> = late.iter().map(number).collect();
            let counted: Vec<Row> =
                all.iter().filter(|row| !late.contains(&row.2)).copied().collect();
            prop_assert_eq!(fold(&pipe.seen.main), oracle(&counted, gap));
        }
    }
}
