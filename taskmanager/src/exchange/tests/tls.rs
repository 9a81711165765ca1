//! With certificates: mutual TLS, and nothing else.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use super::*;

const NAME: &str = "task-manager.streamforge";

/// An authority that signs certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    fn sign(&self, name: &str) -> Tls {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Tls {
            ca: self.pem.clone().into_bytes(),
            certificate: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
            peer_name: NAME.to_owned(),
        }
    }
}

fn with(tls: Option<Tls>) -> Config {
    Config {
        tls,
        open_timeout: Duration::from_millis(300),
        ..config()
    }
}

#[test]
fn rows_travel_under_mutual_tls() {
    let tls = Authority::new().sign(NAME);
    let rig = Rig::start(Config {
        tls: Some(tls),
        ..config()
    });
    let receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));

    assert!(sender.push(Element::Batch(batch(5, 7))));

    let Element::Batch(arrived) = receiver.next() else {
        panic!("no rows");
    };
    frame::tests::check_equal(&arrived, &batch(5, 7));
}

/// Opens a channel with other settings than the receiver's.
fn opened(receiver: Option<Tls>, sender: Option<Tls>) -> Result<Sender, Error> {
    let there = Rig::start(with(receiver));
    let _receiver = there.accept(channel(0));
    let here = Rig::start(with(sender));
    here.try_open_at(channel(0), &there.address())
}

#[test]
fn plaintext_is_refused_by_a_listener_with_certificates() {
    let authority = Authority::new();

    let error = opened(Some(authority.sign(NAME)), None).unwrap_err();

    assert!(
        matches!(error, Error::Unreachable { .. } | Error::Refused { .. }),
        "{error}"
    );
}

#[test]
fn certificate_of_another_authority_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    // Knows our authority, is signed by another one.
    let foreign = Tls {
        ca: ours.pem.clone().into_bytes(),
        ..theirs.sign(NAME)
    };

    let error = opened(Some(ours.sign(NAME)), Some(foreign)).unwrap_err();

    assert!(
        matches!(error, Error::Unreachable { .. } | Error::Refused { .. }),
        "{error}"
    );
}

#[test]
fn sender_of_another_job_is_refused_though_its_authority_is_the_same() {
    let authority = Authority::new();

    let error = opened(
        Some(authority.sign(NAME)),
        Some(authority.sign("another.job")),
    )
    .unwrap_err();

    assert!(
        matches!(error, Error::Unreachable { .. } | Error::Refused { .. }),
        "{error}"
    );
}

#[test]
fn listener_of_another_name_is_not_talked_to() {
    let authority = Authority::new();
    let other = authority.sign("somebody.else");

    let error = opened(Some(other), Some(authority.sign(NAME))).unwrap_err();

    assert!(
        matches!(error, Error::Unreachable { .. } | Error::Refused { .. }),
        "{error}"
    );
}

#[test]
fn unusable_certificates_are_an_error_at_start() {
    let tls = Tls {
        key: b"no key".to_vec(),
        ..Authority::new().sign(NAME)
    };

    let error = Exchange::start(with(Some(tls))).unwrap_err();

    assert!(matches!(error, Error::Transport { .. }), "{error}");
}
