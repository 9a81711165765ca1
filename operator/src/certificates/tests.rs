use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn job() -> Uid {
    Uid::new("0b5e31ee-5a52-4b0a-9b8f-0d3c0c2f7a11").unwrap()
}

#[test]
fn leaf_holds_ninety_days_and_is_due_after_sixty() {
    let now = at("2026-11-30T10:00:00Z");
    let authority = Authority::create(now).unwrap();
    let leaf = authority.issue_to_job(&job(), now).unwrap();
    let due = |now| authority.is_due(&job(), &leaf.certificate, &leaf.authority, at(now));

    let validity = Validity::of(&leaf.certificate).unwrap();
    assert_eq!(validity.from, at("2026-11-29T00:00:00Z"));
    assert_eq!(validity.until, at("2027-02-28T00:00:00Z"));
    assert!(!due("2027-01-28T00:00:00Z"));
    assert!(due("2027-01-29T00:00:00Z"));
    assert!(due("2030-01-01T00:00:00Z"));
}

#[test]
fn authority_holds_ten_years_and_is_read_back() {
    let now = at("2026-11-30T10:00:00Z");
    let authority = Authority::create(now).unwrap();
    let read = Authority::read(authority.certificate(), authority.key().reveal()).unwrap();

    let validity = Validity::of(read.certificate()).unwrap();
    assert_eq!(validity.until, at("2036-11-29T00:00:00Z"));
    assert_eq!(read.key(), authority.key());
    let leaf = read.issue_to_coordinator(now).unwrap();
    assert!(contains(
        &CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap(),
        b"coordinator.streamforge"
    ));
}

#[test]
fn certificate_of_another_authority_or_another_job_is_due() {
    let now = at("2026-11-30T10:00:00Z");
    let (authority, other) = (
        Authority::create(now).unwrap(),
        Authority::create(now).unwrap(),
    );
    let leaf = authority.issue_to_job(&job(), now).unwrap();
    let namesake = Uid::new("another").unwrap();

    assert!(!authority.is_due(&job(), &leaf.certificate, &leaf.authority, now));
    assert!(other.is_due(&job(), &leaf.certificate, &leaf.authority, now));
    assert!(authority.is_due(&namesake, &leaf.certificate, &leaf.authority, now));
    assert!(authority.is_due(&job(), "", &leaf.authority, now));
}

#[test]
fn authority_whose_key_is_of_another_is_refused() {
    let now = at("2026-11-30T10:00:00Z");
    let (authority, other) = (
        Authority::create(now).unwrap(),
        Authority::create(now).unwrap(),
    );

    let mixed = Authority::read(authority.certificate(), other.key().reveal());
    assert!(matches!(mixed, Err(Error::NoPair)));
    assert!(matches!(
        Authority::read("", other.key().reveal()),
        Err(Error::Certificate)
    ));
    assert!(matches!(
        Authority::read(authority.certificate(), "x"),
        Err(Error::Key(_))
    ));
}

/// Judged as both ends of a connection judge it.
fn holds(leaf: &Leaf, authority: &str, name: &str, now: Timestamp) -> bool {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(authority)).unwrap();
    let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
    let seconds = u64::try_from(now.as_second()).unwrap();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let (leaf, name) = (der(&leaf.certificate), ServerName::try_from(name).unwrap());
    let client =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let client = client.build().unwrap().verify_client_cert(&leaf, &[], time);
    let server = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .unwrap();
    let server = server.verify_server_cert(&leaf, &[], &name, &[], time);
    client.is_ok() && server.is_ok()
}

#[test]
fn leaf_holds_at_both_ends_for_its_name_its_time_and_its_authority_only() {
    let now = at("2026-11-30T10:00:00Z");
    let (authority, other) = (
        Authority::create(now).unwrap(),
        Authority::create(now).unwrap(),
    );
    let leaf = authority.issue_to_job(&job(), now).unwrap();
    let name = job().dns_name();

    assert!(holds(&leaf, authority.certificate(), &name, now));
    let behind = at("2026-11-29T10:00:00Z");
    assert!(
        holds(&leaf, authority.certificate(), &name, behind),
        "a clock that is behind"
    );
    let over = at("2027-03-01T00:00:00Z");
    assert!(!holds(&leaf, authority.certificate(), &name, over));
    assert!(!holds(
        &leaf,
        authority.certificate(),
        "another.jobs.streamforge",
        now
    ));
    assert!(!holds(&leaf, other.certificate(), &name, now));
    let coordinator = authority.issue_to_coordinator(now).unwrap();
    assert!(holds(
        &coordinator,
        &leaf.authority,
        "coordinator.streamforge",
        now
    ));
}

#[test]
fn no_key_is_shown_by_debug() {
    let now = at("2026-11-30T10:00:00Z");
    let authority = Authority::create(now).unwrap();
    let leaf = authority.issue_to_job(&job(), now).unwrap();

    let shown = format!(
        "{authority:?} {leaf:?} {:?} {:?}",
        leaf.key,
        authority.key()
    );
    assert_eq!(
        shown,
        "Authority { .. } Leaf { .. } (private key) (private key)"
    );
    assert!(leaf.key.reveal().contains("PRIVATE KEY"));
}

#[test]
fn times_of_both_forms_are_read() {
    let time = |tag, text: &str| {
        Element {
            tag,
            content: text.as_bytes(),
            rest: &[],
        }
        .time()
    };

    assert_eq!(
        time(UTC_TIME, "261130095959Z"),
        Some(at("2026-11-30T09:59:59Z"))
    );
    assert_eq!(
        time(UTC_TIME, "500101000000Z"),
        Some(at("1950-01-01T00:00:00Z"))
    );
    assert_eq!(
        time(GENERALIZED_TIME, "20501231235959Z"),
        Some(at("2050-12-31T23:59:59Z"))
    );
    assert_eq!(time(UTC_TIME, "26113009"), None);
    assert_eq!(time(SEQUENCE, "261130095959Z"), None);
}

proptest! {
    #[test]
    fn no_bytes_make_reading_a_certificate_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _validity = Validity::of_der(&bytes);
    }

    #[test]
    fn no_damage_makes_reading_a_certificate_panic(at_byte in 0_usize..400, value in any::<u8>()) {
        let now = at("2026-11-30T10:00:00Z");
        let authority = Authority::create(now).unwrap();
        let mut der = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap().to_vec();
        let length = der.len();
        der[at_byte % length] = value;
        der.truncate(length - at_byte % 7);

        let _validity = Validity::of_der(&der);
    }
}
