//! The SDK's client, set up the way the document and the environment say.
//!
//! Owns: who we are, which server, which certificates, and that the SDK neither retries nor decides
//! deadlines: [`super::retry`] does.
//!
//! The chain is: the named secret; else environment, profile, web identity, container. The instance
//! metadata service of a cloud is asked only when `AWS_EC2_METADATA_DISABLED=false` says so: on every
//! other machine looking for it takes seconds and finds nothing.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::{
    EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider,
};
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Builder, Credentials, ProvideCredentials, Region, SharedCredentialsProvider, SharedHttpClient,
    StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use streamforge_core::s3::S3Access;

use super::failure::Refusal;
use super::secret::{Keys, Secret};

/// How long a connection may take: a server that is up answers in a round trip or two.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// Sets of certificates whose connections are kept.
const CLIENTS_MAX: usize = 64;

/// Where nothing says otherwise. Servers other than AWS take any.
const REGION: &str = "us-east-1";

/// Makes the client with what the document's secret says, and proves that there are credentials.
///
/// # Errors
/// [`Refusal::Setup`] or [`Refusal::NoCredentials`].
pub(super) async fn connect(access: &S3Access, secret: Secret) -> Result<Client, Refusal> {
    let ca = secret
        .ca
        .map_or_else(ca_of_environment, |ca| Ok(Some(ca)))?;
    let Some(keys) = secret.keys else {
        return make(access, None, ca).await;
    };
    // Who we are and where is all that a client knows: jobs that say the same share one.
    let region = ["AWS_REGION", "AWS_DEFAULT_REGION"].map(|name| env::var(name).ok());
    let address = (
        access.endpoint.clone(),
        access.region.clone(),
        access.path_style,
        region,
    );
    let key = (address, keys.clone(), ca.clone());
    if let Some(client) = known().get(&key) {
        return Ok(client.clone());
    }
    let client = make(access, Some(keys), ca).await?;
    let mut known = known();
    // Keys and certificates that were replaced are not kept for ever.
    if known.len() >= CLIENTS_MAX {
        known.clear();
    }
    known.insert(key, client.clone());
    Ok(client)
}

type Address = (Option<String>, Option<String>, bool, [Option<String>; 2]);

type Known = BTreeMap<(Address, Keys, Option<Vec<u8>>), Client>;

/// Clients by what they were made of: each is a fifth of a mebibyte, and an operator has a thousand stores.
fn known() -> MutexGuard<'static, Known> {
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    // Every critical section leaves the table whole.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn make(
    access: &S3Access,
    keys: Option<Keys>,
    ca: Option<Vec<u8>>,
) -> Result<Client, Refusal> {
    let region = RegionProviderChain::first_try(access.region.clone().map(Region::new))
        .or_else(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new())
        .or_else(REGION);
    let http = http_client(ca)?;
    let credentials = credentials(keys).await?;
    let environment = aws_config::from_env()
        .http_client(http)
        .region(region)
        .credentials_provider(credentials)
        .load()
        .await;
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_WITHIN)
        .build();
    let mut config = Builder::from(&environment)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .force_path_style(access.path_style);
    if let Some(endpoint) = &access.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Ok(Client::from_conf(config.build()))
}

async fn credentials(keys: Option<Keys>) -> Result<SharedCredentialsProvider, Refusal> {
    if let Some(Keys {
        id,
        secret,
        session,
    }) = keys
    {
        let keys = Credentials::new(id, secret, session, None, "secret");
        return Ok(SharedCredentialsProvider::new(keys));
    }
    let mut chain = CredentialsProviderChain::first_try(
        "environment",
        EnvironmentVariableCredentialsProvider::new(),
    )
    .or_else("profile", ProfileFileCredentialsProvider::builder().build())
    .or_else(
        "web identity",
        WebIdentityTokenCredentialsProvider::builder().build(),
    )
    .or_else("container", EcsCredentialsProvider::builder().build());
    let ask_instance = env::var("AWS_EC2_METADATA_DISABLED").is_ok_and(|value| value == "false");
    if ask_instance {
        chain = chain.or_else("instance", ImdsCredentialsProvider::builder().build());
    }
    if let Err(error) = chain.provide_credentials().await {
        let asked = if ask_instance {
            "environment, profile, web identity, container and instance were asked"
        } else {
            "environment, profile, web identity and container were asked"
        };
        return Err(Refusal::NoCredentials {
            reason: format!(
                "{asked} ({error}); name a secret in s3.credentialsSecret, or set \
                 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ),
        });
    }
    Ok(SharedCredentialsProvider::new(chain))
}

/// What every AWS tool takes as its bundle of certificates.
fn ca_of_environment() -> Result<Option<Vec<u8>>, Refusal> {
    let Some(path) = env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    fs::read(&path).map(Some).map_err(|error| Refusal::Setup {
        reason: format!(
            "read the certificates of AWS_CA_BUNDLE, {}: {error}",
            Path::new(&path).display()
        ),
    })
}

/// The connections to all servers of which the same certificates are trusted: a process with a thousand stores would
/// otherwise keep as many copies of the system's roots, a mebibyte each.
fn http_client(ca: Option<Vec<u8>>) -> Result<SharedHttpClient, Refusal> {
    static KNOWN: Mutex<BTreeMap<Option<Vec<u8>>, SharedHttpClient>> = Mutex::new(BTreeMap::new());
    // Every critical section leaves the table whole.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = known.get(&ca) {
        return Ok(client.clone());
    }
    let client = match &ca {
        None => trusting(TrustStore::default())?,
        Some(ca) => {
            check_certificates(ca)?;
            trusting(TrustStore::default().with_pem_certificate(ca.clone()))?
        }
    };
    // Certificates that were replaced are not kept for ever.
    if known.len() >= CLIENTS_MAX {
        known.clear();
    }
    known.insert(ca, client.clone());
    Ok(client)
}

fn trusting(roots: TrustStore) -> Result<SharedHttpClient, Refusal> {
    let context = TlsContext::builder()
        .with_trust_store(roots)
        .build()
        .map_err(|error| Refusal::Setup {
            reason: format!("use the CA certificates: {error}"),
        })?;
    Ok(aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
        .tls_context(context)
        .build_https())
}

/// The SDK takes certificates to be right and panics over those that are not.
fn check_certificates(pem: &[u8]) -> Result<(), Refusal> {
    let failed = |reason: String| Refusal::Setup {
        reason: format!("read the CA certificates: {reason}"),
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| failed(format!("{error:?}")))?;
        roots
            .add(certificate)
            .map_err(|error| failed(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(failed("there is none, or it is not PEM".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::secret;
    use super::*;

    #[test]
    fn what_is_no_certificate_is_refused_before_the_sdk_panics() {
        for pem in [
            "",
            "not a certificate",
            "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE-----\nAAAA\n",
        ] {
            let refused = http_client(Some(pem.as_bytes().to_vec())).map(drop);
            assert!(
                matches!(refused, Err(Refusal::Setup { .. })),
                "{pem:?}: {refused:?}"
            );
        }
    }

    #[tokio::test]
    async fn stores_of_one_server_and_one_secret_share_their_connections_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("keys");
        fs::create_dir(&secret).unwrap();
        let write = |key: &str, value: &str| fs::write(secret.join(key), value).unwrap();
        write("accessKeyId", "shared-1");
        write("secretAccessKey", "secret");
        let access = S3Access {
            credentials_secret: Some("keys".to_owned()),
            ..S3Access::default()
        };
        let connect_now = async || {
            let secret = secret::of(&access, Some(folder.path())).unwrap();
            connect(&access, secret).await.unwrap();
        };
        let count = || {
            let known = known();
            known
                .keys()
                .filter(|(_, keys, _)| keys.id.starts_with("shared-"))
                .count()
        };

        connect_now().await;
        assert_eq!(count(), 1);
        connect_now().await;
        assert_eq!(count(), 1);
        write("accessKeyId", "shared-2");
        connect_now().await;
        assert_eq!(count(), 2);
    }
}
