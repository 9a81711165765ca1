use super::*;

fn split(id: &str, watermark: Watermark) -> SplitState {
    SplitState {
        split: SplitId(id.to_owned()),
        progress: SplitProgress::At("0".to_owned()),
        watermark,
        description: String::new(),
        weight: 1,
    }
}

fn rows(tracker: &mut SplitTracker, id: &str, max: EventTime) {
    tracker.on_rows(
        &SplitId(id.to_owned()),
        Some(max),
        SplitProgress::At("1".to_owned()),
    );
}

#[test]
fn two_partitions_and_an_idle_one_kf_v8() {
    let mut tracker = SplitTracker::new(Some((5, Some(1000))), false);
    tracker.add(split("p0", Watermark::NONE));
    tracker.add(split("p1", Watermark::NONE));
    assert_eq!(
        tracker.promise(),
        Promise::Watermark(Watermark::NONE),
        "unread splits hold W"
    );

    rows(&mut tracker, "p0", 100);
    rows(&mut tracker, "p1", 40);
    assert_eq!(tracker.promise(), Promise::Watermark(Watermark(35)));

    let p1 = SplitId("p1".to_owned());
    tracker.on_nothing_new(&p1, 10_000);
    tracker.on_nothing_new(&p1, 10_999);
    assert_eq!(
        tracker.promise(),
        Promise::Watermark(Watermark(35)),
        "not yet idle"
    );
    tracker.on_nothing_new(&p1, 11_000);
    assert_eq!(tracker.promise(), Promise::Watermark(Watermark(95)));

    rows(&mut tracker, "p1", 60);
    assert_eq!(tracker.idle_returns(), 1);
}

/// Attack 32: the leader is away, or the reader paused, for longer than `idleTimeout`. What it says first
/// afterwards is one word and no silence of a minute.
#[test]
fn attack_32_time_in_which_nobody_was_told_that_there_is_nothing_makes_no_split_idle_t2() {
    let mut tracker = SplitTracker::new(Some((0, Some(60_000))), false);
    tracker.add(split("ahead", Watermark::NONE));
    tracker.add(split("away", Watermark::NONE));
    rows(&mut tracker, "ahead", 100);
    rows(&mut tracker, "away", 40);
    let away = SplitId("away".to_owned());
    let words = |tracker: &mut SplitTracker, from_ms: u64, to_ms: u64| {
        for now_ms in (from_ms..=to_ms).step_by(250) {
            tracker.on_nothing_new(&away, now_ms);
        }
    };

    words(&mut tracker, 0, 59_000);
    words(&mut tracker, 130_000, 189_750);
    let held = Promise::Watermark(Watermark(40));
    assert_eq!(tracker.promise(), held, "not yet for a minute");

    words(&mut tracker, 190_000, 190_000);
    assert_eq!(tracker.promise(), Promise::Watermark(Watermark(100)));
}

#[test]
fn attack_32_words_further_apart_than_a_short_timeout_make_no_split_idle_t2() {
    let mut tracker = SplitTracker::new(Some((0, Some(600))), false);
    tracker.add(split("ahead", Watermark(100)));
    tracker.add(split("away", Watermark(40)));
    let away = SplitId("away".to_owned());

    for now_ms in [0, 601, 1_202] {
        tracker.on_nothing_new(&away, now_ms);
        assert_eq!(tracker.promise(), Promise::Watermark(Watermark(40)));
    }
    for now_ms in [1_502, 1_802] {
        tracker.on_nothing_new(&away, now_ms);
    }
    assert_eq!(tracker.promise(), Promise::Watermark(Watermark(100)));
}

#[test]
fn holder_of_the_watermark_says_for_how_long() {
    let id = SplitId("p0".to_owned());
    let until = |event_time, bounded, nothing_at_ms: Option<u64>| {
        let mut tracker = SplitTracker::new(event_time, bounded);
        tracker.add(split("p0", Watermark(5)));
        tracker.add(split("p1", Watermark(7)));
        rows(&mut tracker, "p0", 9);
        rows(&mut tracker, "p1", 11);
        if let Some(now_ms) = nothing_at_ms {
            tracker.on_nothing_new(&id, now_ms);
        }
        let holder = tracker.held_back_by(30_000)?;
        assert_eq!(holder.split, &id);
        Some(holder.until)
    };
    let (minute, never) = (Some((0, Some(60_000))), Some((0, None)));

    assert_eq!(until(minute, false, None), Some(Until::ItsRows));
    let idle = Until::Idle { in_ms: 52_000 };
    assert_eq!(until(minute, false, Some(22_000)), Some(idle));
    let comes = Until::SomethingComes;
    assert_eq!(until(never, false, Some(22_000)), Some(comes));
    assert_eq!(until(minute, true, Some(22_000)), Some(Until::ItsRows));
    assert_eq!(until(None, false, Some(22_000)), None, "no event time");
}

#[test]
fn bounded_split_is_never_idle_t2() {
    let mut tracker = SplitTracker::new(Some((0, Some(1))), true);
    tracker.add(split("f", Watermark(7)));

    tracker.on_nothing_new(&SplitId("f".to_owned()), 0);
    tracker.on_nothing_new(&SplitId("f".to_owned()), 1_000_000);

    assert_eq!(tracker.promise(), Promise::Watermark(Watermark(7)));
}

#[test]
fn reader_without_splits_is_idle_or_ended_t2() {
    assert_eq!(
        SplitTracker::new(Some((0, None)), false).promise(),
        Promise::Idle(Watermark::NONE)
    );
    assert_eq!(
        SplitTracker::new(Some((0, None)), true).promise(),
        Promise::Watermark(Watermark::END)
    );
}

#[test]
fn restored_reader_starts_at_the_minimum_of_the_splits_it_holds_t6() {
    let mut tracker = SplitTracker::new(Some((0, None)), false);
    tracker.add(split("ahead", Watermark(100)));
    tracker.add(split("behind", Watermark(50)));

    assert_eq!(tracker.promise(), Promise::Watermark(Watermark(50)));
    tracker.on_split_ended(&SplitId("behind".to_owned()));
    assert_eq!(tracker.promise(), Promise::Watermark(Watermark(100)));
}

#[test]
fn splits_that_end_together_leave_the_watermark_of_the_one_with_rows_t2() {
    // Two files of a watched folder, the second without a good row: by hand, 100 - 5.
    for order in [["good", "bare"], ["bare", "good"]] {
        let mut tracker = SplitTracker::new(Some((5, None)), false);
        tracker.add(split("good", Watermark::NONE));
        tracker.add(split("bare", Watermark::NONE));
        rows(&mut tracker, "good", 100);
        assert_eq!(tracker.promise(), Promise::Watermark(Watermark::NONE));

        for id in order {
            tracker.on_split_ended(&SplitId(id.to_owned()));
        }

        assert_eq!(tracker.promise(), Promise::Idle(Watermark(95)), "{order:?}");
    }
}

#[test]
fn operator_watermark_is_the_minimum_over_live_lanes_t1() {
    let mut lanes = Lanes::new(2);
    lanes.on_watermark(0, Watermark(10));
    assert_eq!(lanes.promise(), Promise::Watermark(Watermark::NONE));

    lanes.on_watermark(1, Watermark(5));
    assert_eq!(lanes.promise(), Promise::Watermark(Watermark(5)));
    lanes.on_idle(1);
    assert_eq!(lanes.promise(), Promise::Watermark(Watermark(10)));
    lanes.on_rejoin(1, Watermark(10));
    lanes.on_watermark(1, Watermark(7));
    assert_eq!(
        lanes.promise(),
        Promise::Watermark(Watermark(10)),
        "a lane never falls below its rejoin"
    );
    lanes.on_idle(0);
    lanes.on_idle(1);
    assert_eq!(lanes.promise(), Promise::Idle(Watermark(10)));
}
