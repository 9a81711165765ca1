//! The job that version 1 stopped half-way, kept in `testdata/formats/v1/job`: every later version
//! takes it up and brings it to the same end (C8).
//!
//! It was stopped after `in/3.csv`. In its checkpoint are open windows, windows that fired and may
//! be corrected, open and final sessions, staged output, a late log of each kind, a bad record. The
//! files come one by one, at most 2 s out of order, so the watermark W behind each is known, and
//! with it the end of every row; what is expected here was worked out with pencil and paper:
//!
//! | file | W before | rows `who amount @second` |
//! |--:|--:|---|
//! | 1 | none | a 1 @1, b 2 @3, a 4 @5, c 8 @12 |
//! | 2 | 10 | a 16 @9, b 32 @14, a 64 @18, one that is no number |
//! | 3 | 16 | b 128 @7, c 256 @23 |
//! | 4 | 21 | b 512 @17, d 1024 @24, a 2048 @8 |
//! | 5 | 22 | a 4096 @17, c 8192 @45 |
//! | 6 | 43 | b 16384 @22, e 32768 @41 |
//!
//! Windows of 10 s can be corrected for 5 s after their end; sessions end 6 s after their last row.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use streamforge_process::{Published, Workspace};

/// When every input file was changed last, as the checkpoint has it: 2026-01-01T00:00:00Z.
const CHANGED_S: u64 = 1_767_225_600;

fn frozen() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats/v1/job")
}

/// All files below `folder`, as paths relative to `root`.
fn files(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            files(root, &path, found);
        } else {
            let inside = path.strip_prefix(root).expect("it was listed there");
            found.push(inside.to_owned());
        }
    }
}

/// A copy of the job that may go on.
fn workspace() -> Workspace {
    let document = std::fs::read_to_string(frozen().join("job.yaml")).expect("it is kept");
    let workspace = Workspace::new(&document);
    let mut inside = Vec::new();
    files(&frozen(), &frozen(), &mut inside);
    for file in inside {
        let bytes = std::fs::read(frozen().join(&file)).expect("it was listed");
        let name = file.to_str().expect("all names are ASCII");
        let copy = workspace.write(name, bytes);
        if file.starts_with("in") {
            let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(CHANGED_S);
            let copy = File::options().write(true).open(copy);
            let set = copy.and_then(|copy| copy.set_modified(changed));
            set.expect("the copy is ours");
        }
    }
    workspace
}

/// Rows of one sink, sorted: these columns, times as seconds after 2026-01-01T00:00:00.
fn rows(workspace: &Workspace, sink: &str, columns: &[&str]) -> Vec<String> {
    let published = Published::read(&workspace.path("out").join(sink));
    published.check_whole();
    let cell = |row: &serde_json::Value, column: &str| match row[column].as_str() {
        Some(text) => text
            .strip_prefix("2026-01-01T00:00:")
            .map_or(text, |seconds| &seconds[..2])
            .to_owned(),
        None => row[column].to_string(),
    };
    let text = |row: &String| {
        let row: serde_json::Value = serde_json::from_str(row).expect("published rows are JSON");
        let cells: Vec<String> = columns.iter().map(|column| cell(&row, column)).collect();
        cells.join(" ")
    };
    let mut rows: Vec<String> = published.rows().iter().map(text).collect();
    rows.sort();
    rows
}

#[test]
fn job_that_version_1_stopped_is_brought_to_its_right_end_c8() {
    for parallelism in ["1", "2", "3"] {
        let workspace = workspace();
        let before = workspace.published();

        workspace.run(&["--parallelism", parallelism]).check_code(0);

        let window = ["_op", "who", "window_start", "window_end", "n", "total"];
        assert_eq!(
            rows(&workspace, "windows", &window),
            [
                "+I a 00 10 2 5",
                "+I a 10 20 1 64",
                "+I b 00 10 1 2",
                "+I b 10 20 1 32",
                "+I c 10 20 1 8",
                "+I c 20 30 1 256",
                "+I c 40 50 1 8192",
                "+I d 20 30 1 1024",
                "+I e 40 50 1 32768",
                "+U a 00 10 3 21",
                "+U a 10 20 2 4160",
                "+U b 10 20 2 544",
                "-U a 00 10 2 5",
                "-U a 10 20 1 64",
                "-U b 10 20 1 32",
            ]
        );
        assert_eq!(
            rows(&workspace, "sessions", &window[1..]),
            [
                "a 01 15 3 21",
                "a 17 24 2 4160",
                "b 03 09 1 2",
                "b 14 20 1 32",
                "c 12 18 1 8",
                "c 23 29 1 256",
                "c 45 51 1 8192",
                "d 24 30 1 1024",
                "e 41 47 1 32768",
            ]
        );
        let late = ["who", "amount", "window_start", "window_end", "watermark"];
        assert_eq!(
            rows(&workspace, "late", &late),
            ["a 2048 00 10 21", "b 128 00 10 16", "b 16384 20 30 43"]
        );
        // b @17 would touch [14, 20), which is final, though its own window is still open.
        assert_eq!(
            rows(&workspace, "late_of_sessions", &late),
            [
                "a 2048 08 14 21",
                "b 128 07 13 16",
                "b 16384 22 28 43",
                "b 512 14 20 21",
            ]
        );
        assert_eq!(
            rows(&workspace, "bad", &["source", "position", "reason"]),
            ["in/2.csv 3:92 column amount: not a number"]
        );
        workspace.published().check_keeps(&before);
        workspace.verify();
    }
}
