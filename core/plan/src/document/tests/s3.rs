//! Tests: places in S3.

use super::{Case, check, load, problems, with};

#[test]
fn stores_inputs_and_outputs_in_a_bucket_are_taken() {
    for (from, to) in [
        ("\"/data/*.ndjson\"", "\"s3://bucket\""),
        ("\"/data/*.ndjson\"", "\"s3://bucket/in/day=1/\""),
        (
            "\"/data/*.ndjson\"",
            "\"s3://bucket/a b/*.gz\", s3: {region: x}",
        ),
        (
            "parallelism: 4",
            "checkpoint: {storage: {uri: \"s3://bucket/jobs/one/\"}}",
        ),
        (
            "parallelism: 4",
            "checkpoint: {storage: {uri: \"s3://bucket/p\", s3: {endpoint: \"http://127.0.0.1:9000\", \
             region: eu-central-1, pathStyle: false, credentialsSecret: {name: store-keys}}}}",
        ),
        ("/data/out}", "\"s3://bucket/out/\"}"),
        (
            "/data/out}",
            "\"s3://bucket/out/\", partitionBy: [user_id], s3: {region: x}}",
        ),
        (
            "/data/out}",
            "\"s3://bucket/out/\", rollover: {size: 128Mi, every: 10m}}",
        ),
    ] {
        let found = problems(&with(from, to));
        assert!(found.is_empty(), "{to}: {found:#?}");
    }
}

#[test]
fn the_place_of_a_store_carries_its_access() {
    let storage = "checkpoint: {storage: {uri: \"s3://bucket/p\", s3: {endpoint: \"http://x:1\", \
                   credentialsSecret: {name: keys}}}}";
    let loaded = load(&with("parallelism: 4", storage), "job.yaml").expect("it is right");
    let storage = loaded.spec.checkpoint.storage.expect("it is written");

    let place = crate::s3_place(&storage.uri, storage.s3.as_ref()).expect("it is right");

    assert_eq!(
        (place.bucket.as_str(), place.prefix.as_str()),
        ("bucket", "p")
    );
    assert_eq!(place.access.endpoint.as_deref(), Some("http://x:1"));
    assert_eq!(place.access.credentials_secret.as_deref(), Some("keys"));
    assert!(place.access.path_style, "the default");
}

#[test]
fn mistakes_of_places_in_a_bucket_are_told() {
    const ADDRESS: &str = "write `s3://bucket/prefix`, as in `s3://team-data/jobs/clicks`";
    const FILES: &str = "write `s3://bucket/prefix/`, or a glob like `s3://bucket/in/*.ndjson`";
    let storage = "spec.checkpoint.storage";
    let path =
        |rest: &str| -> &'static str { Box::leak(format!("{storage}.{rest}").into_boxed_str()) };
    check(&[
        Case(
            "\"/data/*.ndjson\"",
            "\"s3://B/in/\"",
            8,
            "spec.sources[0].file.path",
            "`s3://B/in/` is no address of a bucket: the name of a bucket has 3 to 63 characters",
            FILES,
        ),
        Case(
            "\"/data/*.ndjson\"",
            "\"s3://bucket/in/***\"",
            8,
            "spec.sources[0].file.path",
            "`in/***` is no glob: Pattern syntax error near position 5: wildcards are either regular `*` \
             or recursive `**`",
            FILES,
        ),
        Case(
            "\"/data/*.ndjson\"",
            "\"/data/*.ndjson\", s3: {region: x}",
            8,
            "spec.sources[0].file.s3",
            "`s3` means nothing here: the path is not in a bucket",
            "remove it, or write a path like `s3://bucket/prefix`",
        ),
        Case(
            "parallelism: 4",
            "checkpoint: {storage: {uri: \"s3://b/p\"}}",
            5,
            path("uri"),
            "`s3://b/p` is no address of a bucket: the name of a bucket has 3 to 63 characters",
            ADDRESS,
        ),
        Case(
            "/data/out}",
            "\"s3://bucket//out\"}",
            29,
            "spec.sinks[0].file.path",
            "`s3://bucket//out` is no address of a bucket: the prefix has two slashes in a row",
            ADDRESS,
        ),
        Case(
            "/data/out}",
            "\"s3://bucket/out\", rollover: {every: 0s}}",
            29,
            "spec.sinks[0].file.rollover.every",
            "the time is zero",
            "",
        ),
        Case(
            "/data/out}",
            "/data/out, s3: {region: x}}",
            29,
            "spec.sinks[0].file.s3",
            "`s3` means nothing here: the path is not in a bucket",
            "remove it, or write a path like `s3://bucket/prefix`",
        ),
        Case(
            "parallelism: 4",
            "checkpoint: {storage: {uri: \"s3://bucket\", s3: {endpoint: \"minio:9000\"}}}",
            5,
            path("s3.endpoint"),
            "`minio:9000` is no URL",
            "write `https://host:port`",
        ),
        Case(
            "parallelism: 4",
            "checkpoint: {storage: {uri: \"s3://bucket\", s3: {endpoint: \"http://me:pw@h:1\"}}}",
            5,
            path("s3.endpoint"),
            "a URL must not hold credentials",
            "name a secret with `credentialsSecret: {name: …}`",
        ),
        Case(
            "parallelism: 4",
            "checkpoint: {storage: {uri: \"s3://bucket\", s3: {credentialsSecret: {name: ../up}}}}",
            5,
            path("s3.credentialsSecret.name"),
            "the name of a secret has only lower-case letters, digits, - and .",
            "",
        ),
    ]);
}

#[test]
fn output_in_a_bucket_that_would_be_read_back_is_refused_and_on_another_server_it_is_not() {
    let text = |sink: &str| {
        with("\"/data/*.ndjson\"", "\"s3://bucket/in/\"").replacen(
            "path: /data/out}",
            &format!("path: \"s3://bucket/in/out/\"{sink}}}"),
            1,
        )
    };

    let found = problems(&text(""));
    let [problem] = found.as_slice() else {
        panic!("{found:#?}");
    };
    assert_eq!(
        problem.message,
        "the job would read its own output: the source `clicks` reads `s3://bucket/in/`"
    );
    let elsewhere = problems(&text(", s3: {endpoint: \"http://other:9000\"}"));
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");
}
