//! Certificates: the operator's own authority, and what it issues.
//!
//! Owns: who is called what, how long a certificate holds, and when it is time for the next. Reads no
//! clock. A private key is handed out by one function only and is never shown by `Debug`.
//! Start at: [`Authority`].

use std::fmt;

use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::names::{COORDINATOR_DNS_NAME, Uid};
use crate::seal::Seal;

/// How long the authority holds: ten years.
const AUTHORITY_HOURS: i64 = 24 * 3_652;

/// How long a certificate holds that the authority issues. It is renewed when two thirds are over, so a
/// month is left to notice that it is not.
const LEAF_HOURS: i64 = 24 * 90;

/// Clocks of nodes may be behind by this much.
const CLOCK_HOURS: i64 = 24;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key could not be made, or something could not be signed.
    #[error("make a certificate")]
    Make(#[source] rcgen::Error),
    /// The private key of the authority cannot be read.
    #[error("read the authority's private key")]
    Key(#[source] rcgen::Error),
    /// A certificate cannot be read.
    #[error("read a certificate: it is not one in PEM")]
    Certificate,
    /// Certificate and key of the authority are not a pair.
    #[error("read the authority: its certificate is not of its private key")]
    NoPair,
}

/// The operator's own authority.
pub struct Authority {
    certificate: String,
    key: KeyPair,
}

/// A certificate with its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: PrivateKey,
    /// The certificate of the authority.
    pub authority: String,
}

/// A private key in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(String);

impl PrivateKey {
    /// The key itself, for the Secret that keeps it and the listener that uses it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(private key)")
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf").finish_non_exhaustive()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new one.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn create(now: Timestamp) -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(Error::Make)?;
        let mut params = authority_params();
        set_validity(&mut params, now, AUTHORITY_HOURS);
        let certificate = params.self_signed(&key).map_err(Error::Make)?.pem();
        Ok(Self { certificate, key })
    }

    /// Reads a kept one.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(certificate: &str, key: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key).map_err(Error::Key)?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes());
        let der = der.map_err(|_| Error::Certificate)?;
        Validity::of_der(&der).ok_or(Error::Certificate)?;
        if !contains(&der, key.public_key_raw()) {
            return Err(Error::NoPair);
        }
        let certificate = certificate.to_owned();
        Ok(Self { certificate, key })
    }

    /// Its certificate, in PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its private key, for the Secret that keeps it.
    #[must_use]
    pub fn key(&self) -> PrivateKey {
        PrivateKey(self.key.serialize_pem())
    }

    /// A certificate for the listener of the coordinators.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn issue_to_coordinator(&self, now: Timestamp) -> Result<Leaf, Error> {
        self.issue(COORDINATOR_DNS_NAME, now)
    }

    /// A certificate for the task managers of a job.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn issue_to_job(&self, job: &Uid, now: Timestamp) -> Result<Leaf, Error> {
        self.issue(&job.dns_name(), now)
    }

    /// A certificate for the webhook, which the API server reaches by the name of its Service.
    ///
    /// # Errors
    /// When the system has no randomness, or this is no name.
    pub fn issue_to_webhook(&self, service: &str, now: Timestamp) -> Result<Leaf, Error> {
        self.issue(service, now)
    }

    /// A seal that only operators with this authority have.
    #[must_use]
    pub fn seal(&self) -> Seal {
        Seal::of(&self.key.serialize_der())
    }

    fn issue(&self, dns_name: &str, now: Timestamp) -> Result<Leaf, Error> {
        let mut params = CertificateParams::new(vec![dns_name.to_owned()]).map_err(Error::Make)?;
        params.distinguished_name = common_name("streamforge");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, LEAF_HOURS);
        let key = KeyPair::generate().map_err(Error::Make)?;
        let issuer = Issuer::new(authority_params(), &self.key);
        let certificate = params.signed_by(&key, &issuer).map_err(Error::Make)?;
        Ok(Leaf {
            certificate: certificate.pem(),
            key: PrivateKey(key.serialize_pem()),
            authority: self.certificate.clone(),
        })
    }

    /// Whether the task managers of a job need a new certificate: the one they have was issued by
    /// another authority or to somebody else, or two thirds of its time are over.
    #[must_use]
    pub fn is_due(&self, job: &Uid, certificate: &str, authority: &str, now: Timestamp) -> bool {
        let Ok(der) = CertificateDer::from_pem_slice(certificate.as_bytes()) else {
            return true;
        };
        let validity = Validity::of_der(&der);
        authority != self.certificate
            || !contains(&der, job.dns_name().as_bytes())
            || validity.is_none_or(|validity| validity.is_due(now))
    }
}

/// What says who the authority is: the same whenever it issues something.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("streamforge authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

/// Days are fine enough, and need no clock that agrees.
fn set_validity(params: &mut CertificateParams, now: Timestamp, hours: i64) {
    let midnight = |hours: i64| {
        let date = later(now, hours).to_zoned(TimeZone::UTC).date();
        let part = |n: i8| n.unsigned_abs();
        date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
    };
    params.not_before = midnight(-CLOCK_HOURS);
    params.not_after = midnight(hours);
}

fn later(now: Timestamp, hours: i64) -> Timestamp {
    now.checked_add(SignedDuration::from_hours(hours))
        .unwrap_or(now)
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes
        .windows(wanted.len().max(1))
        .any(|window| window == wanted)
}

/// From when until when a certificate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// From.
    pub from: Timestamp,
    /// Until.
    pub until: Timestamp,
}

impl Validity {
    /// Reads it from the first certificate of a PEM text.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(certificate: &str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes());
        let der = der.map_err(|_| Error::Certificate)?;
        Self::of_der(&der).ok_or(Error::Certificate)
    }

    /// Whether two thirds of it are over, which is when the next one is made.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        let all = self.until.duration_since(self.from);
        let over = now.duration_since(self.from);
        over.as_secs().saturating_mul(3) >= all.as_secs().saturating_mul(2)
    }

    /// It stands behind version, serial number, algorithm and issuer (RFC 5280, section 4.1).
    fn of_der(der: &[u8]) -> Option<Self> {
        let certificate = Element::sequence(der)?.content;
        let mut rest = Element::sequence(certificate)?.content;
        let version = Element::read(rest)?;
        if version.tag == VERSION {
            rest = version.rest;
        }
        for _ in ["serial number", "algorithm", "issuer"] {
            rest = Element::read(rest)?.rest;
        }
        let from = Element::read(Element::sequence(rest)?.content)?;
        let until = Element::read(from.rest)?;
        Some(Self {
            from: from.time()?,
            until: until.time()?,
        })
    }
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// One element of DER.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Element<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&tag, rest) = bytes.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = if first < 0x80 {
            usize::from(first)
        } else {
            let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = after;
            // A certificate has no part that is larger.
            let in_range = digits.len() <= 3;
            let value = digits
                .iter()
                .fold(0, |value, digit| (value << 8) | usize::from(*digit));
            in_range.then_some(value)?
        };
        let (content, rest) = rest.split_at_checked(length)?;
        Some(Self { tag, content, rest })
    }

    fn sequence(bytes: &'a [u8]) -> Option<Self> {
        Self::read(bytes).filter(|element| element.tag == SEQUENCE)
    }

    fn time(&self) -> Option<Timestamp> {
        let text = std::str::from_utf8(self.content).ok()?;
        let (century, text) = match self.tag {
            // Two digits: 1950 to 2049.
            UTC_TIME if text < "5" => ("20", text),
            UTC_TIME => ("19", text),
            GENERALIZED_TIME => text.split_at_checked(2)?,
            _ => return None,
        };
        let part = |at: usize| text.get(at..at + 2);
        let (year, month, day) = (part(0)?, part(2)?, part(4)?);
        let (hour, minute, second) = (part(6)?, part(8)?, part(10)?);
        format!("{century}{year}-{month}-{day}T{hour}:{minute}:{second}Z")
            .parse()
            .ok()
    }
}

#[cfg(test)]
mod tests;
