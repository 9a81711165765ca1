//! A broker that encrypts and wants to know who asks: SCRAM over TLS, and certificates of clients.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};
use streamforge_e2e_kafka::sink::{Sink, restore};
use streamforge_e2e_kafka::source::Source;
use streamforge_e2e_kafka::{Broker, Topic};

const PORT: u16 = 19_772;

/// Where SCRAM is asked for.
const SCRAM_PORT: u16 = PORT + 5;

/// Where a certificate is asked for.
const CERTIFICATE_PORT: u16 = PORT + 6;

/// An authority of this test's own.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no name is a right list");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        // OpenSSL takes a certificate for self-signed whose subject is its issuer.
        params.distinguished_name = named("authority");
        let key = KeyPair::generate().expect("the system has random numbers");
        let pem = params.self_signed(&key).expect("it signs itself").pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// A certificate with its key, in PEM.
    fn certify(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.distinguished_name = named(name);
        let key = KeyPair::generate().expect("the system has random numbers");
        let certificate = params.signed_by(&key, &self.issuer);
        let pem = certificate.expect("it is signed").pem();
        (pem, key.serialize_pem())
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

/// A broker whose two encrypted listeners have certificates of `authority`, and what its clients need.
struct Rig {
    broker: Broker,
    folder: tempfile::TempDir,
}

impl Rig {
    fn start(authority: &Authority) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(&path, text).expect("a file");
            path
        };
        let (certificate, key) = authority.certify("127.0.0.1");
        let own = write("broker.pem", &format!("{key}{certificate}"));
        let trusted = write("clients.pem", &authority.pem);
        write("secrets/ca/ca.crt", &authority.pem);
        write("secrets/user/username", "tester");
        write("secrets/user/password", "correct-horse");
        let (certificate, key) = authority.certify("a-job");
        write("client.crt", &certificate);
        write("client.key", &key);
        let broker = Broker::own(PORT, &encrypted(&own, &trusted));
        broker.add_scram_user("tester", "correct-horse");
        Self { broker, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self, port: u16, topic: &Topic, block: Value) -> Source {
        let mut config = json!({
            "bootstrapServers": format!("127.0.0.1:{port}"),
            "topics": [topic.name],
            "endAt": "Latest",
        });
        for (field, value) in block.as_object().expect("it is a block") {
            config[field] = value.clone();
        }
        Source::new(config, &[]).with_secrets(&self.path("secrets"))
    }
}

/// Server properties of two listeners beside the others.
fn encrypted(own: &Path, trusted: &Path) -> String {
    let (own, trusted, control) = (own.display(), trusted.display(), PORT + 10);
    let (scram, certificate) = (SCRAM_PORT, CERTIFICATE_PORT);
    format!(
        "listeners=PLAINTEXT://127.0.0.1:{PORT},CONTROLLER://127.0.0.1:{control},SCRAM://127.0.0.1:{scram},\
        CERT://127.0.0.1:{certificate}\n\
        advertised.listeners=PLAINTEXT://127.0.0.1:{PORT},SCRAM://127.0.0.1:{scram},CERT://127.0.0.1:{certificate}\n\
        listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL,CERT:SSL\n\
        ssl.keystore.type=PEM\n\
        ssl.keystore.location={own}\n\
        ssl.truststore.type=PEM\n\
        ssl.truststore.location={trusted}\n\
        listener.name.cert.ssl.client.auth=required\n\
        sasl.enabled.mechanisms=SCRAM-SHA-512\n\
        listener.name.scram.scram-sha-512.sasl.jaas.config=\
        org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
    )
}

fn scram(ca: &str) -> Value {
    json!({
        "protocol": "SaslSsl",
        "mechanism": "ScramSha512",
        "credentialsSecret": {"name": "user"},
        "caSecret": {"name": ca},
    })
}

/// One broker for all: to start one takes longer than what is asked of it.
#[tokio::test(flavor = "multi_thread")]
async fn scram_and_certificates_of_clients_work_over_tls() {
    let rig = Rig::start(&Authority::new());
    let topic = rig.broker.topic("tls", 1, &[]).await;

    // An exactly-once sink: its writer asks about the topic, its publisher writes in transactions.
    let servers = format!("127.0.0.1:{SCRAM_PORT}");
    let sink = Sink::at(&servers, &topic, json!({})).secured(scram("ca"), &rig.path("secrets"));
    let staged = sink.stage(1, &[&["a"], &["b"]]).await;
    assert!(topic.written().is_empty());
    restore(&sink.publisher(1), &staged, 2).await.unwrap();
    let rows = [r#"{"v":"a"}"#, r#"{"v":"b"}"#];
    assert_eq!(topic.committed().values(), rows);

    let source = rig.source(SCRAM_PORT, &topic, json!({"security": scram("ca")}));
    assert_eq!(source.read_all().await.unwrap().rows, rows);

    // The certificate of a client, from files.
    let block = json!({
        "security": {"protocol": "Ssl", "caSecret": {"name": "ca"}},
        "properties": {
            "ssl.certificate.location": rig.path("client.crt"),
            "ssl.key.location": rig.path("client.key"),
        },
    });
    let source = rig.source(CERTIFICATE_PORT, &topic, block);
    assert_eq!(source.read_all().await.unwrap().rows, rows);
}
