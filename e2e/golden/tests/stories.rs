//! One test per file in `jobs/`, named after it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs")
}

macro_rules! stories {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let path = folder().join(concat!(stringify!($name), ".job"));
                let text = std::fs::read_to_string(path).unwrap();
                if let Err(error) = streamforge_golden::play::play_all(&text) {
                    panic!("{error:#}");
                }
            }
        )*

        #[test]
        fn every_file_is_played() {
            let name = |entry: std::io::Result<std::fs::DirEntry>| {
                entry.unwrap().file_name().into_string().unwrap().replace(".job", "")
            };
            let found: BTreeSet<String> = std::fs::read_dir(folder()).unwrap().map(name).collect();
            let played: BTreeSet<String> =
                [$(stringify!($name)),*].into_iter().map(str::to_owned).collect();

            assert_eq!(found, played);
        }
    };
}

stories! {
    aggregates_of_one_window
    bad_records_leave_and_the_others_go_on
    correction_that_changes_nothing_is_not_sent
    days_in_berlin_have_23_to_25_hours
    filter_keeps_only_what_is_true
    hopping_counts_each_row_in_every_window_it_is_in
    hopping_row_may_be_late_for_one_window_only
    late_record_is_diverted
    on_time_corrects_by_retraction
    once_sends_one_result_when_lateness_is_over
    select_sends_a_row_that_fails_to_bad
    session_retracts_before_it_merges
    session_that_is_final_takes_no_record
    session_windows_merge_when_record_bridges_the_gap
    sum_out_of_range_makes_its_group_bad
    times_before_1970_fall_into_their_own_window
    tumbling_counts_each_row_in_one_window
    union_waits_for_its_slowest_input
    unnest_makes_a_row_of_every_element
    windows_over_windows_see_each_result_once
}
