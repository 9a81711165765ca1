//! What opening a store refuses, and how it says so.

use std::path::Path;

use streamforge_core::s3::{S3Access, S3Place};

use super::careless::{self, Care};
use super::server::{SECRET, Server, secret_folder};
use super::{Limits, bytes};
use crate::s3::{Refusal, S3Store};
use crate::{Condition, Error, ObjectStore as _, Recovery};

pub(super) fn place(endpoint: &str, bucket: &str) -> S3Place {
    S3Place {
        bucket: bucket.to_owned(),
        prefix: "jobs/one".to_owned(),
        access: S3Access {
            endpoint: Some(endpoint.to_owned()),
            credentials_secret: Some(SECRET.to_owned()),
            ..S3Access::default()
        },
    }
}

/// The error of opening, in one line, after seeing that it shows no secret.
async fn refused(place: &S3Place, secrets: Option<&Path>) -> (Error, String) {
    let error = S3Store::open(place, secrets)
        .await
        .map(drop)
        .expect_err("it is refused");
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    let said = format!("{error}: {}", cause.unwrap_or_default());
    for shown in [said.clone(), format!("{error:?}")] {
        assert!(
            !shown.contains("testsecret") && !shown.contains("very-secret"),
            "{shown}"
        );
    }
    (error, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_keeps_its_conditions_is_opened_and_left_clean() {
    let server = Server::get();
    let place = server.place();

    let store = S3Store::open(&place, server.secrets())
        .await
        .expect("it is opened");

    assert_eq!(
        store.list("").await.expect("answered"),
        vec![],
        "the proof is tidied up"
    );
    assert!(
        store
            .location()
            .starts_with(&format!("s3://{}/test-", server.bucket))
    );
    assert!(!format!("{store:?}").contains("testsecret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn careless_servers_are_refused_and_a_careful_one_is_not_c2() {
    let secrets = secret_folder("id", "very-secret");
    for (care, finding) in [
        (Care::None, "16 were told that they won"),
        (Care::OneByOne, "were told that they won"),
        (Care::Unknown, "does not know conditional writes"),
    ] {
        let server = careless::Server::start(care).await;

        let (error, said) = refused(&place(&server.endpoint, "bucket"), Some(secrets.path())).await;

        let broken = Error::recovery(&error) == Recovery::Fatal;
        assert!(broken && said.contains(finding), "{care:?}: {said}");
        assert!(said.contains(&server.endpoint), "{said} names the server");
    }
    let server = careless::Server::start(Care::Full).await;
    let opened = S3Store::open(&place(&server.endpoint, "bucket"), Some(secrets.path())).await;
    assert!(opened.is_ok(), "{opened:?}");
}

/// The two real servers known to break their conditions, where `scripts/setup negative` put them.
#[tokio::test(flavor = "multi_thread")]
async fn real_servers_that_break_their_conditions_are_refused_c2() {
    let Some(found) = negative_servers() else {
        return;
    };
    for (name, endpoint, bucket, keys) in found {
        let secrets = secret_folder(&keys.0, &keys.1);

        let (error, said) = refused(&place(&endpoint, &bucket), Some(secrets.path())).await;

        assert!(
            matches!(
                &error,
                Error::S3 {
                    source: Refusal::BreaksConditions { .. },
                    ..
                }
            ),
            "{name}: {said}"
        );
    }
}

type Negative = (String, String, String, (String, String));

/// Name, endpoint, bucket and keys of each that is installed; `None`: none is.
fn negative_servers() -> Option<Vec<Negative>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/services/careless-s3");
    let output = std::process::Command::new(script).arg("up").output().ok()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let servers: Vec<Negative> = said
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            let (name, endpoint, bucket) = (words.next()?, words.next()?, words.next()?);
            Some((name, endpoint, bucket, (words.next()?, words.next()?)))
        })
        .collect();
    (!servers.is_empty()).then_some(servers)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_says_what_to_do() {
    let server = Server::get();
    let mut missing = server.place();
    missing.bucket = "no-such-bucket-here".to_owned();
    let wrong_secret = secret_folder("testkey", "very-secret-and-wrong");
    let wrong_key = secret_folder("nobody", "very-secret-and-wrong");
    let mut named = server.place();
    named.access.credentials_secret = Some(SECRET.to_owned());
    let mut unknown = server.place();
    unknown.access.credentials_secret = Some("other-keys".to_owned());

    for (place, secrets, words) in [
        (
            &missing,
            server.secrets(),
            "there is no bucket of this name",
        ),
        (
            &named,
            Some(wrong_secret.path()),
            "credentials are refused (SignatureDoesNotMatch)",
        ),
        (&named, Some(wrong_key.path()), "credentials are refused ("),
        (&named, None, "--secrets"),
        (
            &unknown,
            Some(wrong_key.path()),
            "there is no secret `other-keys`",
        ),
    ] {
        let (_, said) = refused(place, secrets).await;
        assert!(said.contains(words), "{said}");
        assert!(said.contains(&place.bucket), "{said} names the bucket");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_is_not_there_is_named() {
    let secrets = secret_folder("id", "very-secret");
    let limits = Limits {
        overall: std::time::Duration::from_millis(300),
        ..Limits::default()
    };
    // Port 9 of this machine: nobody listens.
    let place = place("http://127.0.0.1:9", "bucket");

    let error = S3Store::open_with(&place, Some(secrets.path()), limits)
        .await
        .map(drop)
        .expect_err("nobody listens");

    let said = error.to_string();
    assert!(matches!(error, Error::Unavailable { .. }), "{said}");
    assert!(
        said.contains("http://127.0.0.1:9") && said.contains("refused"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bucket_that_cannot_be_written_is_refused_and_can_be_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().to_string_lossy().into_owned();
    // A server of this test's own: filled first, then started again for reading only.
    let own = |flags: &'static str| {
        Server::with(
            "s3",
            &[("S3_RUN", &run), ("S3_PORT", "19261"), ("S3_FLAGS", flags)],
        )
    };
    let server = own("");
    let place = server.place();
    let store = server.connect(&place, Limits::default()).await;
    let put = store.put("k", bytes("x"), Condition::CreateIfAbsent).await;
    let stopped = Down(run.clone());
    drop(stopped);
    let server = own("--readonly");
    let _stopped = Down(run.clone());

    let (error, said) = refused(&place, server.secrets()).await;
    let reader = S3Store::open_read_only(&place, server.secrets())
        .await
        .expect("no question");
    let read = reader.get("k").await.expect("answered");
    let write = reader.put("k2", bytes("x"), Condition::None).await;

    assert!(put.is_ok(), "{put:?}");
    assert_eq!(error.recovery(), Recovery::Refused, "{said}");
    assert!(said.contains("permission denied (AccessDenied)"), "{said}");
    assert_eq!(read.map(|it| it.bytes), Some(bytes("x")));
    assert!(
        matches!(write, Err(Error::OpenedReadOnly { .. })),
        "{write:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn server_with_a_certificate_of_an_own_authority_is_trusted_by_ca_crt_only() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (ca, certificate, key) = certificates();
    std::fs::write(at("cert"), certificate).expect("it is writable");
    std::fs::write(at("key"), key).expect("it is writable");
    let (run, cert, key) = (at("run"), at("cert"), at("key"));
    let tls = [
        ("S3_RUN", &*run),
        ("S3_PORT", "19262"),
        ("S3_CERT", &*cert),
        ("S3_KEY", &*key),
    ];
    let server = Server::with("s3", &tls);
    let _stopped = Down(run.clone());
    let place = server.place();
    let secrets = server.secrets().expect("the script names the keys");
    let limits = Limits {
        overall: std::time::Duration::from_millis(300),
        ..Limits::default()
    };

    let stranger = S3Store::open_with(&place, Some(secrets), limits).await;
    std::fs::write(secrets.join(SECRET).join("ca.crt"), ca).expect("it is writable");
    let known = S3Store::open(&place, Some(secrets)).await;

    assert!(
        server.endpoint.starts_with("https://"),
        "{}",
        server.endpoint
    );
    let said = stranger
        .map(drop)
        .expect_err("nobody knows its authority")
        .to_string();
    assert!(said.contains("certificate"), "{said}");
    assert!(known.is_ok(), "{known:?}");
}

/// An authority of this test's own, and a certificate for this machine with its key; PEM.
fn certificates() -> (String, String, String) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
    let mut authority = CertificateParams::new(Vec::new()).expect("no name is a right list");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
    let authority_key = KeyPair::generate().expect("the system has random numbers");
    let ca = authority
        .self_signed(&authority_key)
        .expect("it signs itself")
        .pem();
    let issuer = Issuer::new(authority, authority_key);
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    let key = KeyPair::generate().expect("the system has random numbers");
    let certificate = params.signed_by(&key, &issuer).expect("it is signed").pem();
    (ca, certificate, key.serialize_pem())
}

/// Stops the server that runs in this folder when the test ends, however it ends.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/services/s3");
        let mut command = std::process::Command::new(script);
        let _ended = command.args(["down"]).env("S3_RUN", &self.0).status();
    }
}
