use std::time::{Duration, Instant};

use streamforge_core::ids::SplitId;

use super::split::Progress;
use super::trouble::{Lasting, Saying, Trouble};
use crate::kafka::statistics::Place;

mod played;

fn place(told_end: i64, stable: i64, high: i64) -> Place {
    Place {
        told_end,
        stable,
        high,
        low: 0,
        leader_answers: true,
        leader_is_silent: false,
        connection: (1, 1),
        fetches_n: 9,
    }
}

/// KF-K5: the last offsets are control records, or were compacted away.
#[test]
fn kf_k5_a_bounded_read_ends_behind_control_records() {
    let mut progress = Progress::new(0, Some(12));
    progress.on_record(10, None);
    assert!(!progress.is_at_end(), "offset 11 is a control record");

    progress.on_place(place(12, 12, 12), Instant::now());
    assert!(!progress.is_at_end(), "records may still lie in the queue");
    assert!(progress.on_drained(), "the position moved without a row");

    assert!(progress.is_at_end());
}

/// KF-K13: an open transaction that began before the end is waited for.
#[test]
fn kf_k13_a_bounded_read_waits_for_an_open_transaction() {
    let mut progress = Progress::new(0, Some(12));
    progress.on_record(7, None);
    progress.on_place(place(8, 8, 12), Instant::now());
    progress.on_drained();

    assert!(!progress.is_at_end());
    let told = progress.trouble(&SplitId("t/0".to_owned()), Instant::now());
    let told = told.unwrap();
    let text = &told.text;
    assert!(text.contains("t/0 waits for an open transaction"), "{text}");
    assert!(!told.is_unreachable, "what is there is known");
}

#[test]
fn a_record_beyond_the_end_is_not_taken_and_ends_the_read() {
    let mut progress = Progress::new(5, Some(12));

    assert!(!progress.takes(4), "before the position");
    assert!(progress.takes(11));
    assert!(!progress.takes(12));
    progress.on_record(12, None);
    assert!(progress.is_at_end());
}

/// KF-K8: exactly one record to read, and none.
#[test]
fn kf_k8_a_read_of_one_record_and_of_none_ends() {
    assert!(Progress::new(0, Some(0)).is_at_end());
    let mut one = Progress::new(0, Some(1));
    assert!(!one.is_at_end());
    one.on_record(0, None);
    assert!(one.is_at_end());
}

#[test]
fn idle_is_told_only_when_the_queue_was_seen_empty_after_the_statistics_t2() {
    let mut progress = Progress::new(0, None);
    assert!(!progress.has_nothing_more(), "unread");
    progress.on_drained();
    assert!(!progress.has_nothing_more(), "nothing is known");

    progress.on_place(place(5, 5, 5), Instant::now());
    assert!(!progress.has_nothing_more());
    progress.on_drained();
    assert!(progress.has_nothing_more());

    progress.on_record(5, None);
    assert!(!progress.has_nothing_more(), "a record came");
}

/// They were told while a record was on its way, and there may be more behind it.
#[test]
fn statistics_older_than_the_newest_record_make_nothing_idle_t2() {
    let mut progress = Progress::new(5, None);
    progress.on_record(5, None);
    progress.on_place(place(5, 5, 5), Instant::now());
    progress.on_drained();

    assert!(!progress.has_nothing_more());
    progress.on_place(place(6, 6, 6), Instant::now());
    progress.on_drained();
    assert!(progress.has_nothing_more());
}

#[test]
fn attack_32_a_silent_leader_is_told_and_holds_the_watermark_t2() {
    let mut progress = Progress::new(0, None);
    let away = Place {
        leader_answers: false,
        leader_is_silent: true,
        ..place(5, 5, 5)
    };
    let began = Instant::now();
    progress.on_place(away, began);
    progress.on_drained();
    let id = SplitId("t/0".to_owned());

    assert!(!progress.has_nothing_more());
    assert_eq!(progress.trouble(&id, began), None, "a moment is no trouble");
    let told = progress.trouble(&id, began + Duration::from_secs(9));
    let unreachable = Trouble {
        text: "no answer from the leader of t/0 for 9 s".to_owned(),
        is_unreachable: true,
    };
    assert_eq!(told, Some(unreachable));
    progress.on_place(place(5, 5, 5), began);
    progress.on_drained();
    assert_eq!(progress.trouble(&id, began + Duration::from_secs(9)), None);
}

#[test]
fn only_trouble_that_lasts_is_logged_once_and_that_it_is_over() {
    let began = Instant::now();
    let at = |seconds| began + Duration::from_secs(seconds);
    let mut lasting = Lasting::default();

    assert_eq!(lasting.look(true, at(0)), None);
    assert_eq!(lasting.look(true, at(4)), None);
    assert_eq!(lasting.look(false, at(4)), None, "nothing was said of it");
    assert_eq!(lasting.look(true, at(6)), None, "it begins anew");
    assert_eq!(lasting.look(true, at(11)), Some(Saying::Waits));
    assert_eq!(lasting.look(true, at(99)), None, "once");
    assert_eq!(lasting.look(false, at(99)), Some(Saying::GoesOn));
    assert_eq!(lasting.look(false, at(99)), None);
}

/// Attack 32: the leader is back, or another one leads; what is known of the partition is older, and whatever
/// the broker answered was no fetch. One of those that are counted may be of the connection before.
#[test]
fn attack_32_offsets_of_an_earlier_connection_make_nothing_idle_t2() {
    for connection in [(1, 2), (2, 1)] {
        let mut progress = Progress::new(5, None);
        let mut is_told = |place: Place| {
            progress.on_place(place, Instant::now());
            progress.on_drained();
            progress.has_nothing_more()
        };
        assert!(is_told(place(5, 5, 5)));
        let back = |fetches_n| Place {
            connection,
            fetches_n,
            ..place(5, 5, 5)
        };

        assert!(!is_told(back(20)), "connected");
        assert!(!is_told(back(21)), "asked");
        assert!(is_told(back(22)), "asked again, so it was answered");
    }
}

/// The same where the connection lasted, and nothing came over it for seconds.
#[test]
fn attack_32_a_leader_that_was_silent_must_answer_a_fetch_first_t2() {
    let mut progress = Progress::new(5, None);
    let mut is_told = |leader_answers: bool, fetches_n: u64| {
        let place = Place {
            leader_answers,
            fetches_n,
            ..place(5, 5, 5)
        };
        progress.on_place(place, Instant::now());
        progress.on_drained();
        progress.has_nothing_more()
    };
    assert!(is_told(true, 9));
    assert!(!is_told(false, 9));

    assert!(!is_told(true, 9), "it answered something");
    assert!(!is_told(true, 10));
    assert!(is_told(true, 11));
}

/// What was told while the queue was not looked into says less than what was told before.
#[test]
fn newest_statistics_count_once_the_queue_was_seen_empty_t2() {
    let mut progress = Progress::new(5, None);
    progress.on_place(place(5, 5, 5), Instant::now());
    progress.on_drained();
    assert!(progress.has_nothing_more());

    progress.on_place(place(5, 5, 5), Instant::now());
    assert!(!progress.has_nothing_more());
}

#[test]
fn lag_is_what_is_there_and_not_read() {
    let mut progress = Progress::new(3, None);
    assert_eq!(progress.lag(), None, "not known yet");
    progress.on_place(place(3, 10, 10), Instant::now());

    assert_eq!(progress.lag(), Some(7));
    progress.on_record(9, None);
    assert_eq!(progress.lag(), Some(0));
}
