//! As much of HTTP/1.1 as is needed between an operator, a proxy of ours and `kubectl proxy`.
//!
//! Owns: reading and writing heads, bodies and chunks, and one call. No TLS: that is `kubectl proxy`'s. Trusts
//! its peers.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

/// The first line of a request or an answer, and what follows it.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The first line.
    pub first: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
}

/// What somebody answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The code.
    pub status: u16,
    /// Names and values, without those that are about the connection.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Head {
    /// Reads one; `None`: the peer has no more to say.
    ///
    /// # Errors
    /// When the connection breaks in between.
    pub fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let mut head = Self {
            first: first.trim_end().to_owned(),
            headers: Vec::new(),
        };
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((name, value)) = line.trim_end().split_once(':') else {
                return Ok(Some(head)); // the empty line
            };
            head.headers
                .push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(this, _)| this.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// All headers but those that are about one connection or the length of the body.
    pub fn to_pass_on(&self) -> Vec<(String, String)> {
        let own = ["connection", "transfer-encoding", "content-length", "host"];
        let headers = self.headers.iter();
        headers
            .filter(|(name, _)| !own.iter().any(|it| name.eq_ignore_ascii_case(it)))
            .cloned()
            .collect()
    }

    /// The code of an answer.
    pub fn status(&self) -> u16 {
        let mut words = self.first.split(' ');
        let code = words.nth(1).and_then(|code| code.parse().ok());
        code.unwrap_or_default()
    }

    /// Whether the body comes in chunks.
    pub fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }

    /// The body that belongs to it; one of neither length nor chunks is empty in a request, and ends with
    /// the connection in an answer.
    ///
    /// # Errors
    /// When the connection breaks in between.
    pub fn read_body(&self, reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if self.is_chunked() {
            while let Some(chunk) = read_chunk(reader)? {
                body.extend(chunk);
            }
        } else if let Some(length) = self.header("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            body.resize(length, 0);
            reader.read_exact(&mut body)?;
        } else if self.first.starts_with("HTTP/") && self.status() != 204 {
            reader.read_to_end(&mut body)?;
        }
        Ok(body)
    }
}

/// One chunk; `None` after the last one.
///
/// # Errors
/// When the connection breaks, which is an end, too, for whoever reads a watch.
pub fn read_chunk(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let length = usize::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}

/// Writes one chunk; an empty one is the last.
///
/// # Errors
/// When the peer is gone.
pub fn write_chunk(writer: &mut impl Write, chunk: &[u8]) -> io::Result<()> {
    let mut text = format!("{:x}\r\n", chunk.len()).into_bytes();
    text.extend(chunk);
    text.extend(b"\r\n");
    writer.write_all(&text)
}

/// Writes a head.
///
/// # Errors
/// When the peer is gone.
pub fn write_head(
    writer: &mut impl Write,
    first: &str,
    headers: &[(String, String)],
    more: &[(&str, &str)],
) -> io::Result<()> {
    let mut text = format!("{first}\r\n");
    let more = more.iter().copied();
    let headers = headers.iter().map(|(name, value)| (&**name, &**value));
    for (name, value) in headers.chain(more) {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    writer.write_all(text.as_bytes())
}

/// Sends a request over a connection of its own.
///
/// # Errors
/// When nobody listens there, or the connection breaks.
pub fn send(
    address: &str,
    method: &str,
    target: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> io::Result<(Head, BufReader<TcpStream>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let length = body.len().to_string();
    let own = [
        ("host", address),
        ("connection", "close"),
        ("content-length", &length),
    ];
    let first = format!("{method} {target} HTTP/1.1");
    write_head(&mut stream, &first, headers, &own)?;
    stream.write_all(body)?;
    let mut reader = BufReader::new(stream);
    let head = Head::read(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((head, reader))
}

/// Sends a request and reads the whole answer.
///
/// # Errors
/// As [`send`].
pub fn call(
    address: &str,
    method: &str,
    target: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> io::Result<Answer> {
    let (head, mut reader) = send(address, method, target, headers, body)?;
    Ok(Answer {
        status: head.status(),
        body: head.read_body(&mut reader)?,
        headers: head.to_pass_on(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_in_chunks_is_put_together() {
        let text =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let mut reader = &text[..];

        let head = Head::read(&mut reader).unwrap().unwrap();

        assert_eq!(head.status(), 200);
        assert_eq!(head.read_body(&mut reader).unwrap(), b"abcde");
    }

    #[test]
    fn request_without_length_has_no_body() {
        let mut reader = &b"GET /a HTTP/1.1\r\nA: b\r\n\r\nGET"[..];

        let head = Head::read(&mut reader).unwrap().unwrap();

        assert_eq!(head.header("a"), Some("b"));
        assert!(head.read_body(&mut reader).unwrap().is_empty());
    }

    #[test]
    fn chunk_that_was_written_is_read() {
        let mut text = Vec::new();
        write_chunk(&mut text, b"0123456789abcdef").unwrap();
        write_chunk(&mut text, b"").unwrap();
        let mut reader = &text[..];

        assert_eq!(
            read_chunk(&mut reader).unwrap().unwrap(),
            b"0123456789abcdef"
        );
        assert_eq!(read_chunk(&mut reader).unwrap(), None);
    }
}
