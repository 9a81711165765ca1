//! Task managers whose clocks are set while they run, by libfaketime.

use std::path::PathBuf;

use streamforge_process::{Published, Workspace, every_window, free_address};

/// Where Debian's package puts it.
fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").expect("there are libraries");
    let places = folders.filter_map(|it| Some(it.ok()?.path().join("faketime/libfaketime.so.1")));
    let found = places.into_iter().find(|it| it.exists());
    found.expect("libfaketime is installed by `make setup`")
}

/// Nothing is lost, restarted or given up because somebody sets the clock of a machine: only event time and
/// steady clocks decide.
#[test]
fn clocks_that_jump_hours_ahead_and_back_change_nothing() {
    let workspace = Workspace::new(&every_window(400_000));
    let address = free_address();
    let mut coordinator = workspace.start(&["--listen", &address.to_string()]);
    let library = libfaketime();
    let set = |name: &str, offset: &str| {
        // At one stroke: it is read at every look at the clock.
        workspace.write(&format!("{name}.new"), offset);
        let (new, now) = (format!("{name}.new"), format!("{name}.clock"));
        std::fs::rename(workspace.path(&new), workspace.path(&now)).expect("it was written");
    };
    let task_managers = ["tm-1", "tm-2"].map(|name| {
        set(name, "+0s");
        let clock = workspace.path(&format!("{name}.clock"));
        let variables = [
            ("LD_PRELOAD", library.to_str().expect("a plain path")),
            (
                "FAKETIME_TIMESTAMP_FILE",
                clock.to_str().expect("a plain path"),
            ),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        workspace.start_task_manager_with(name, address, 1, &variables)
    });
    let published_n = || Published::read(&workspace.path("out/per_user")).files_n();

    // One ahead of the other, both, both back in the past, and apart again.
    for offsets in [
        ["+0s", "+3h"],
        ["+30h", "+30h"],
        ["-2h", "-2h"],
        ["-9d", "+9d"],
    ] {
        set("tm-1", offsets[0]);
        set("tm-2", offsets[1]);
        let before_n = published_n();
        let goes_on = coordinator.wait_until(|| published_n() > before_n + 2);
        assert!(goes_on, "{offsets:?}: {}", coordinator.log());
    }

    let log = coordinator.wait().check_code(0).stderr.clone();
    assert!(!log.contains("attempt failed"), "{log}");
    for task_manager in task_managers {
        task_manager.wait().check_code(0);
    }
    // Their logs show the clocks that they went by.
    let said = std::fs::read_to_string(workspace.path("tm-2.log")).expect("it has a log");
    let days = said.lines().filter_map(|line| line.get(..10));
    assert!(
        days.collect::<std::collections::BTreeSet<_>>().len() > 1,
        "{said}"
    );
    workspace.verify();
}
