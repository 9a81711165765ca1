//! As much HTTP/1.1 as the proxy and the small server of these tests need.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One request, as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// With the query.
    pub target: String,
    /// Everything up to the empty line, without it.
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    /// Reads the next request of a connection; `None` at its end.
    pub async fn read(stream: &mut TcpStream) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let head_n = loop {
            if let Some(at) = find(&bytes, b"\r\n\r\n") {
                break at;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        };
        let head = String::from_utf8_lossy(&bytes[..head_n]).into_owned();
        let mut body = bytes.split_off(head_n + 4);
        let mut words = head.split(' ');
        let mut request = Self {
            method: words.next().unwrap_or_default().to_owned(),
            target: words.next().unwrap_or_default().to_owned(),
            head,
            body: Vec::new(),
        };
        if request.header("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body_n = request
            .header("content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        while body.len() < body_n {
            if stream.read_buf(&mut body).await? == 0 {
                return Ok(None);
            }
        }
        request.body = body;
        Ok(Some(request))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The path without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

/// An answer with a body of XML, after which the connection ends.
pub fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/xml\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

/// The body of an error.
pub fn error_body(code: &str) -> String {
    format!("<Error><Code>{code}</Code><Message>said by the test</Message></Error>")
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
