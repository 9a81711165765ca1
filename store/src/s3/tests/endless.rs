//! An answer that does not say how long it is, and has no end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::super::{Limits, S3Store};
use super::server::secret_folder;
use super::wire::Request;
use crate::{Error, ObjectStore as _};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nETag: \"1\"\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Sends until nobody listens; counts what was sent.
async fn send_for_ever(mut client: TcpStream, sent: Arc<AtomicU64>) {
    let asked = Request::read(&mut client).await;
    assert!(matches!(asked, Ok(Some(_))));
    let mut chunk = b"10000\r\n".to_vec();
    chunk.extend([b'x'; 0x10000]);
    chunk.extend(b"\r\n");
    let mut said = client.write_all(HEAD).await;
    while said.is_ok() {
        said = client.write_all(&chunk).await;
        sent.fetch_add(0x10000, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn object_without_an_end_is_read_no_further_than_it_may_be_long() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(send_for_ever(client, Arc::clone(&counted)));
        }
    });
    let folder = secret_folder("key", "secret");
    let place = super::opening::place(&format!("http://127.0.0.1:{port}"), "bucket");
    let store = S3Store::connect(&place, Some(folder.path()), Limits::default());
    let store = store.await.expect("the credentials are there");

    let read = store.get_within("head", 1 << 20).await;

    assert!(
        matches!(&read, Err(Error::TooLong { key, bytes_max: 0x10_0000, .. }) if key == "head"),
        "{read:?}"
    );
    let read = store.get_range("head", 0..10).await;
    assert!(matches!(&read, Err(Error::OutOfRange { .. })), "{read:?}");
    // What lies in the buffers of the connection comes to that.
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < 32 << 20, "{sent} bytes");
}
