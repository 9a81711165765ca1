use http_body_util::Full;
use hyper::client::conn::http1 as client;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::*;
use crate::certificates::{Authority, Leaf};

const HOST: &str = "streamforge-webhook.sf.svc";

/// Says what it was asked.
struct Echo;

impl Answer for Echo {
    async fn answer(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        match body {
            b"wrong" => Err("this is wrong".to_owned()),
            body => Ok(body.to_vec()),
        }
    }
}

fn server(leaf: &Leaf) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(leaf.key.reveal().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    Arc::new(config.unwrap())
}

fn connector(authority: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn started() -> (SocketAddr, Leaf) {
    let now = "2026-11-30T10:00:00Z".parse().unwrap();
    let authority = Authority::create(now).unwrap();
    // The clock of whoever runs this test decides whether a certificate holds.
    let now = k8s_openapi::jiff::Timestamp::now().max(now);
    let leaf = authority.issue_to_webhook(HOST, now).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let bound = start(address, server(&leaf), Arc::new(Echo)).await.unwrap();
    (bound, leaf)
}

/// Status and text of one answer.
async fn ask(
    address: SocketAddr,
    leaf: &Leaf,
    (method, path, body): (Method, &str, &'static [u8]),
) -> (u16, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let stream = connector(&leaf.authority)
        .connect(name, stream)
        .await
        .unwrap();
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", HOST)
        .body(Full::new(Bytes::from_static(body)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn question_is_answered_to_whoever_knows_the_authority() {
    let (address, leaf) = started().await;

    for (question, wanted) in [
        ((Method::POST, "/validate", &b"{}"[..]), (200, "{}")),
        ((Method::POST, "/validate?timeout=5s", b"{}"), (200, "{}")),
        (
            (Method::POST, "/validate", b"wrong"),
            (400, "this is wrong\n"),
        ),
        (
            (Method::GET, "/validate", b""),
            (405, "POST an AdmissionReview\n"),
        ),
        (
            (Method::POST, "/", b"{}"),
            (404, "there is only /validate\n"),
        ),
    ] {
        let (status, text) = ask(address, &leaf, question).await;
        assert_eq!((status, text.as_str()), wanted);
    }
}

#[tokio::test]
async fn question_that_is_too_large_is_not_read() {
    static LARGE: [u8; BODY_BYTES_MAX + 1] = [b' '; BODY_BYTES_MAX + 1];
    let (address, leaf) = started().await;

    let (status, text) = ask(address, &leaf, (Method::POST, "/validate", &LARGE)).await;

    assert_eq!(
        (status, text.as_str()),
        (400, "read the body: length limit exceeded\n")
    );
}

#[tokio::test]
async fn questions_that_do_not_come_to_their_end_keep_no_other_one_waiting() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let (address, leaf) = started().await;
    let mut slow = Vec::new();
    for _ in 0..QUESTIONS_MAX {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(HOST).unwrap();
        let connector = connector(&leaf.authority);
        let mut stream = connector.connect(name, stream).await.unwrap();
        let head = "POST /validate HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // It is being read.
        let mut continues = [0; 21];
        stream.read_exact(&mut continues).await.unwrap();
        assert!(continues.starts_with(b"HTTP/1.1 100 Continue"));
        slow.push(stream);
    }

    let asked = ask(address, &leaf, (Method::POST, "/validate", b"{}"));
    let answered = tokio::time::timeout(BODY_WITHIN / 2, asked).await;

    assert_eq!(answered.expect("it is answered at once").0, 200);
    let mut last = slow.pop().unwrap();
    let mut said = Vec::new();
    // Behind the blank line of the interim answer.
    while !said.windows(3).any(|text| text == b"408") {
        let more = tokio::time::timeout(BODY_WITHIN * 2, last.read_buf(&mut said));
        let more = more.await.expect("it is told that it is too slow").unwrap();
        assert!(more > 0, "{}", String::from_utf8_lossy(&said));
    }
}

#[tokio::test]
async fn caller_without_tls_or_with_another_authority_gets_nowhere() {
    let (address, leaf) = started().await;
    let (_, other) = started().await;

    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    let refused = connector(&other.authority).connect(name, stream).await;
    assert!(refused.is_err());

    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("/validate")
        .body(Full::new(Bytes::new()))
        .unwrap();
    assert!(sender.send_request(request).await.is_err());

    // And is no trouble to others.
    let (status, _) = ask(address, &leaf, (Method::POST, "/validate", b"{}")).await;
    assert_eq!(status, 200);
}
