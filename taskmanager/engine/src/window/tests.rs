use proptest::prelude::*;

use super::split::{Rows, split};
use super::*;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

fn tumbling(size_us: i64, offset_us: i64, zone: &str) -> SlicedWindows {
    let spec = WindowSpec::Tumbling {
        size_us,
        offset_us,
        time_zone: zone.to_owned(),
    };
    SlicedWindows::new(&spec).unwrap().unwrap()
}

fn hopping(size_us: i64, slide_us: i64, offset_us: i64) -> SlicedWindows {
    let time_zone = "UTC".to_owned();
    let spec = WindowSpec::Hopping {
        size_us,
        slide_us,
        offset_us,
        time_zone,
    };
    SlicedWindows::new(&spec).unwrap().unwrap()
}

/// All windows of a time, as (start, end).
fn windows_of(windows: &SlicedWindows, time: i64) -> Vec<(i64, i64)> {
    windows
        .windows_of(windows.slice_of(time))
        .map(|window| (windows.window_start(window), windows.window_end(window)))
        .collect()
}

#[test]
fn times_before_the_epoch_fall_into_their_own_window_kf_e1_kf_v1() {
    let windows = tumbling(10_000, 0, "UTC");
    let window = |time| windows_of(&windows, time);

    assert_eq!(window(-10_001), [(-20_000, -10_000)]);
    assert_eq!(window(-10_000), [(-10_000, 0)]);
    assert_eq!(window(-1), [(-10_000, 0)]);
    assert_eq!(window(0), [(0, 10_000)]);
    assert_eq!(window(9_999), [(0, 10_000)]);
    assert_eq!(window(10_000), [(10_000, 20_000)]);
}

#[test]
fn offset_moves_the_grid_kf_v2() {
    let windows = tumbling(10_000, 3_000, "UTC");

    assert_eq!(windows_of(&windows, 2_999), [(-7_000, 3_000)]);
    assert_eq!(windows_of(&windows, 3_000), [(3_000, 13_000)]);
}

#[test]
fn negative_offset_is_the_same_grid_as_its_complement_kf_e2() {
    let negative = tumbling(HOUR, -HOUR / 4, "UTC");
    let positive = tumbling(HOUR, 3 * HOUR / 4, "UTC");

    for time in [-1, 0, HOUR / 4, 3 * HOUR / 4 - 1, 3 * HOUR / 4, 12 * HOUR] {
        assert_eq!(windows_of(&negative, time), windows_of(&positive, time));
    }
}

#[test]
fn hopping_windows_of_a_time_are_those_that_contain_it() {
    let windows = hopping(10, 4, 0);

    assert_eq!(windows_of(&windows, 0), [(-8, 2), (-4, 6), (0, 10)]);
    assert_eq!(windows_of(&windows, 2), [(-4, 6), (0, 10)]);
    assert_eq!(windows_of(&windows, 9), [(0, 10), (4, 14), (8, 18)]);
}

#[test]
fn windows_that_leave_gaps_or_have_no_length_are_refused() {
    for (size_us, slide_us) in [(0, 1), (10, 0), (10, 11), (-5, -5)] {
        let time_zone = "UTC".to_owned();
        let spec = WindowSpec::Hopping {
            size_us,
            slide_us,
            offset_us: 0,
            time_zone,
        };
        assert!(SlicedWindows::new(&spec).is_err(), "{size_us} {slide_us}");
    }
    let zoned = |size_us, zone: &str| {
        SlicedWindows::new(&WindowSpec::Tumbling {
            size_us,
            offset_us: 0,
            time_zone: zone.to_owned(),
        })
    };
    assert_eq!(zoned(HOUR, "Europe/Berlin").unwrap_err(), Error::Days(HOUR));
    assert_eq!(
        zoned(DAY, "Mars/Base").unwrap_err(),
        Error::Zone("Mars/Base".to_owned())
    );
}

#[test]
fn local_days_have_23_to_25_hours_kf_e19_kf_v10() {
    let days = tumbling(DAY, 0, "America/Los_Angeles");
    let day = |date: &str| {
        let time = chrono::DateTime::parse_from_rfc3339(date)
            .unwrap()
            .timestamp_micros();
        windows_of(&days, time)[0]
    };
    let at = |date: &str| {
        chrono::DateTime::parse_from_rfc3339(date)
            .unwrap()
            .timestamp_micros()
    };

    let (start, end) = day("2021-03-14T20:00:00Z");
    assert_eq!(
        (start, end - start),
        (at("2021-03-14T08:00:00Z"), 23 * HOUR)
    );
    let (start, end) = day("2021-11-07T20:00:00Z");
    assert_eq!(
        (start, end - start),
        (at("2021-11-07T07:00:00Z"), 25 * HOUR)
    );
}

#[test]
fn local_day_of_kolkata_begins_at_1830_utc_kf_e19() {
    let days = tumbling(DAY, 0, "Asia/Kolkata");

    let (start, end) = windows_of(&days, 0)[0];

    assert_eq!((start, end), (-5 * HOUR - HOUR / 2, 18 * HOUR + HOUR / 2));
}

#[test]
fn day_whose_midnight_does_not_exist_begins_behind_the_gap() {
    // Sao Paulo skipped 2018-11-04 00:00..01:00; that day begins at 03:00Z and has 23 hours.
    let days = tumbling(DAY, 0, "America/Sao_Paulo");
    let at = |date: &str| {
        chrono::DateTime::parse_from_rfc3339(date)
            .unwrap()
            .timestamp_micros()
    };

    let window = windows_of(&days, at("2018-11-04T12:00:00Z"))[0];

    assert_eq!(
        window,
        (at("2018-11-04T03:00:00Z"), at("2018-11-05T02:00:00Z"))
    );
    assert_eq!(
        windows_of(&days, at("2018-11-04T02:59:59Z"))[0].1,
        at("2018-11-04T03:00:00Z")
    );
}

#[test]
fn split_cuts_a_batch_by_slice() {
    let windows = tumbling(10, 0, "UTC");

    assert_eq!(split(&windows, &[]), []);
    assert_eq!(split(&windows, &[0, 9, 5]), [(0, Rows::All)]);
    assert_eq!(
        split(&windows, &[12, 3, 4]),
        [
            (
                0,
                Rows::Run {
                    offset: 1,
                    length: 2
                }
            ),
            (
                1,
                Rows::Run {
                    offset: 0,
                    length: 1
                }
            )
        ]
    );
    assert_eq!(
        split(&windows, &[1, 11, 2, -1]),
        [
            (
                -1,
                Rows::Run {
                    offset: 3,
                    length: 1
                }
            ),
            (0, Rows::Some(vec![0, 2].into())),
            (
                1,
                Rows::Run {
                    offset: 1,
                    length: 1
                }
            )
        ]
    );
}

/// What the numbers of 1 us slices need beside the times: an offset and a size must still fit an
/// i64. Event times end at year 9999, long before.
const MARGIN: i64 = 300;

/// Times everywhere, most of them near an end of i64 or the epoch.
fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![
        i64::MIN + MARGIN..=i64::MAX - MARGIN,
        (0i64..1000).prop_map(|n| i64::MIN + MARGIN + n),
        (0i64..1000).prop_map(|n| i64::MAX - MARGIN - n),
        -100_000i64..100_000,
    ]
}

proptest! {
    #[test]
    fn window_contains_its_times_and_every_such_window_is_found_kf_e1(
        time in any_time(), slide in 1i64..50, extra in 0i64..100, offset in -50i64..50,
    ) {
        let windows = hopping(slide + extra, slide, offset);
        let found = windows_of(&windows, time);

        for (start, end) in &found {
            // Borders beyond i64 saturate: then the last instant itself is inside.
            prop_assert!(*start <= time && (time < *end || *end == i64::MAX));
        }
        let (size, slide, offset) =
            (i128::from(slide + extra), i128::from(slide), i128::from(offset));
        let last = (i128::from(time) - offset).div_euclid(slide) * slide + offset;
        let expected = (0..).map(|n| last - n * slide).take_while(|s| s + size > i128::from(time));
        let clamp = |v: i128| v.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        let mut expected: Vec<(i64, i64)> =
            expected.map(|s| (clamp(s), clamp(s + size))).collect();
        expected.reverse();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn local_slices_follow_each_other_without_a_hole(
        day in -20_000i64..40_000, micros in 0..DAY, days in 1i64..4,
        offset in 0..DAY, zone in prop_oneof![
            Just("America/Los_Angeles"), Just("Asia/Kolkata"), Just("America/Sao_Paulo"),
            Just("Australia/Lord_Howe"), Just("Africa/Casablanca"), Just("Pacific/Apia"),
        ],
    ) {
        let windows = tumbling(days * DAY, offset, zone);
        let time = day * DAY + micros;
        let slice = windows.slice_of(time);

        let (start, end) = (windows.slice_start(slice), windows.slice_start(slice + 1));

        prop_assert!(start <= time && time < end);
        prop_assert_eq!(windows.slice_of(start), slice);
        prop_assert_eq!(windows.slice_of(end - 1), slice);
    }

    #[test]
    fn split_puts_every_row_into_its_own_slice(
        times in proptest::collection::vec(any_time(), 0..60), size in 1i64..1000,
    ) {
        let windows = tumbling(size, 0, "UTC");
        let mut found = vec![None; times.len()];
        let mut before = None;

        for (slice, rows) in split(&windows, &times) {
            prop_assert!(before < Some(slice));
            before = Some(slice);
            let rows: Vec<usize> = match rows {
                Rows::All => (0..times.len()).collect(),
                Rows::Run { offset, length } => (offset..offset + length).collect(),
                Rows::Some(rows) => rows.values().iter().map(|row| *row as usize).collect(),
            };
            for row in rows {
                prop_assert_eq!(found[row].replace(slice), None);
            }
        }

        let expected: Vec<_> = times.iter().map(|time| Some(windows.slice_of(*time))).collect();
        prop_assert_eq!(found, expected);
    }
}
