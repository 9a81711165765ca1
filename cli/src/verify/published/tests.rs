use super::*;

fn columns() -> Vec<Column> {
    let column = |name: &str, data_type: &str| Column {
        name: name.to_owned(),
        data_type: data_type.parse().unwrap(),
        nullable: true,
    };
    vec![
        column("user", "TEXT"),
        column("n", "BIGINT"),
        column("day", "DATE"),
    ]
}

fn published<'a>(root: &Path, columns: &'a [Column], format: &'a Format) -> Published<'a> {
    Published {
        root: root.to_owned(),
        prefix: "part-00000001-".to_owned(),
        columns,
        partition_by: vec![],
        format,
        changelog: ChangelogMode::AppendOnly,
    }
}

fn rows(published: &Published<'_>) -> Result<Vec<(Vec<Cell>, i64)>> {
    let mut rows = Vec::new();
    published.read(&mut |row, sign| rows.push((row.to_vec(), sign)))?;
    Ok(rows)
}

fn text(text: &str) -> Cell {
    Cell::Text(text.into())
}

#[test]
fn only_files_of_the_job_outside_of_staging_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let line = "{\"user\":\"a\",\"n\":1,\"day\":null}\n";
    fs::create_dir(dir.path().join(STAGING)).unwrap();
    for name in [
        "part-00000001-1-1-0-0.ndjson",
        "part-0000beef-1-1-0-0.ndjson",
        "notes.txt",
    ] {
        fs::write(dir.path().join(name), line).unwrap();
    }
    fs::write(
        dir.path()
            .join(STAGING)
            .join("part-00000001-1-2-0-0.ndjson"),
        line,
    )
    .unwrap();

    let rows = rows(&published(dir.path(), &columns(), &Format::Json)).unwrap();

    assert_eq!(rows, [(vec![text("a"), Cell::Int(1), Cell::Null], 1)]);
}

#[test]
fn partition_columns_come_from_folders_and_are_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let columns = columns();
    for (folder, n) in [
        ("user=a%2Fb/day=1970-01-02", 1),
        ("user=__HIVE_DEFAULT_PARTITION__/day=1970-01-01", 2),
    ] {
        let folder = dir.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join("part-00000001-x.ndjson"),
            format!("{{\"n\":{n}}}\n"),
        )
        .unwrap();
    }
    let mut published = published(dir.path(), &columns, &Format::Json);
    published.partition_by = vec!["user".to_owned(), "day".to_owned()];

    let mut rows = rows(&published).unwrap();

    rows.sort_by(|a, b| a.0[1].order(&b.0[1]));
    assert_eq!(rows[0].0, [text("a/b"), Cell::Int(1), Cell::Int(1)]);
    assert_eq!(rows[1].0, [Cell::Null, Cell::Int(2), Cell::Int(0)]);
}

#[test]
fn files_of_an_earlier_partition_by_are_read_by_their_folders_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let columns = columns();
    for (folder, line) in [
        ("", r#"{"user":"a","n":1,"day":"1970-01-02"}"#),
        ("user=a", r#"{"n":2,"day":"1970-01-02"}"#),
        ("day=1970-01-02", r#"{"user":"a","n":3}"#),
        ("user=a/day=1970-01-02", r#"{"n":4}"#),
        // No folders of a sink's.
        ("day", "rubbish"),
        ("other=1", "rubbish"),
        ("user=a/user=b", "rubbish"),
    ] {
        let folder = dir.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("part-00000001-x.ndjson"), format!("{line}\n")).unwrap();
    }
    let mut published = published(dir.path(), &columns, &Format::Json);
    published.partition_by = vec!["user".to_owned()];

    let mut found = Vec::new();
    let files = published
        .read(&mut |row, _| found.push(row.to_vec()))
        .unwrap();

    found.sort_by(|a, b| a[1].order(&b[1]));
    let row = |n| vec![text("a"), Cell::Int(n), Cell::Int(1)];
    assert_eq!(found, [row(1), row(2), row(3), row(4)]);
    let laid_otherwise_n = 3;
    assert_eq!(
        files,
        Files {
            files_n: 4,
            laid_otherwise_n
        }
    );
}

#[test]
fn csv_tells_null_from_the_empty_string_and_carries_signs() {
    let dir = tempfile::tempdir().unwrap();
    let columns = columns();
    let csv = "_op,user,n,day\n+I,\"\",1,\n-U,,1,1970-01-01\n+U,\"a,\"\"b\n\",2,\n";
    fs::write(dir.path().join("part-00000001-x.csv"), csv).unwrap();
    let format = Format::Csv {
        header: true,
        delimiter: ',',
        null: None,
    };
    let mut published = published(dir.path(), &columns, &format);
    published.changelog = ChangelogMode::Retract;

    let rows = rows(&published).unwrap();

    assert_eq!(rows[0], (vec![text(""), Cell::Int(1), Cell::Null], 1));
    assert_eq!(rows[1], (vec![Cell::Null, Cell::Int(1), Cell::Int(0)], -1));
    assert_eq!(
        rows[2],
        (vec![text("a,\"b\n"), Cell::Int(2), Cell::Null], 1)
    );
}

#[test]
fn a_half_written_file_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let columns = columns();
    for cut in ["{\"user\":\"a\",\"n\":1,\"day\":null}", "{\"user\":\"a\"\n"] {
        fs::write(dir.path().join("part-00000001-x.ndjson"), cut).unwrap();

        let error = rows(&published(dir.path(), &columns, &Format::Json)).unwrap_err();

        assert!(
            format!("{error:#}").contains("part-00000001-x.ndjson"),
            "{error:#}"
        );
    }
}
