//! Certificates of a listener or client: mutual TLS for everything that StreamForge speaks.
//!
//! Owns: turning PEM bytes into tonic's settings. With certificates a listener answers nobody who
//! shows none of the same authority, plaintext included; without, everything is plaintext. Reads no
//! file. The key never shows in `Debug`.

use std::fmt;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;

use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// What the other end of a connection showed, its own certificate first.
pub type Certificates = Arc<Vec<CertificateDer<'static>>>;

/// Whether the certificate that was shown bears this name. That it is the authority's, the
/// handshake has found.
#[must_use]
pub fn bears(shown: &Certificates, name: &str) -> bool {
    let Some(Ok(certificate)) = shown.first().map(ParsedCertificate::try_from) else {
        return false;
    };
    let name = ServerName::try_from(name);
    name.is_ok_and(|name| verify_server_name(&certificate, &name).is_ok())
}

/// One process's certificates.
#[derive(Clone)]
pub struct Tls {
    /// PEM of the authority that signed everybody's certificate.
    pub ca: Vec<u8>,
    /// PEM of this process's certificate, with intermediates; for both ends of a connection.
    pub certificate: Vec<u8>,
    /// PEM of its private key.
    pub key: Vec<u8>,
    /// Name that the certificate of whoever is called must bear, whatever its address.
    pub peer_name: String,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("peer_name", &self.peer_name)
            .finish_non_exhaustive()
    }
}

impl Tls {
    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }

    /// For a listener: clients must show a certificate of the authority.
    pub fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(self.identity())
            .client_ca_root(Certificate::from_pem(&self.ca))
    }

    /// For a client: the listener's certificate must be the authority's and bear `peer_name`.
    pub fn client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .identity(self.identity())
            .ca_certificate(Certificate::from_pem(&self.ca))
            .domain_name(&self.peer_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_key() {
        let tls = Tls {
            ca: b"CA".to_vec(),
            certificate: b"CERT".to_vec(),
            key: b"SECRET".to_vec(),
            peer_name: "streamforge".to_owned(),
        };

        let shown = format!("{tls:?}");

        assert!(shown.contains("streamforge"));
        assert!(
            !shown.contains("SECRET") && !shown.contains("83"),
            "{shown}"
        );
    }
}
