//! The webhook's certificate.
//!
//! Owns: a certificate of the operator's authority that is always young enough, without a restart and
//! without a Secret of its own; and that the API server knows the authority: its certificate is written
//! into the ValidatingWebhookConfiguration, and nothing else of it is.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;
use serde_json::json;

use crate::args::Args;
use crate::authority;
use crate::certificates::{Authority, Leaf, Validity};
use crate::names::FIELD_MANAGER;

/// How often it is looked whether anything is due: a chart that was installed again has forgotten us.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// What is shown to whoever calls; replaced while calls go on.
struct Shown(RwLock<Arc<CertifiedKey>>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&shown))
    }
}

/// Keeps the certificate young and the API server informed.
pub struct Keeper {
    client: Client,
    namespace: String,
    secret: String,
    host: String,
    configuration: Option<String>,
    leaf: Leaf,
    shown: Arc<Shown>,
}

impl Keeper {
    /// Reads the authority and issues the first certificate.
    ///
    /// # Errors
    /// When the authority cannot be read.
    pub async fn new(args: &Args, client: Client) -> Result<Self> {
        let authority = authority::load(&client, &args.namespace, &args.ca_secret).await?;
        let host = args.webhook_host();
        let leaf = authority.issue_to_webhook(&host, Timestamp::now())?;
        Ok(Self {
            client,
            namespace: args.namespace.clone(),
            secret: args.ca_secret.clone(),
            host,
            configuration: args.webhook_configuration.clone(),
            shown: Arc::new(Shown(RwLock::new(certified(&leaf)?))),
            leaf,
        })
    }

    /// For the listener.
    ///
    /// # Errors
    /// When this process has no provider of cryptography.
    pub fn tls(&self) -> Result<Arc<ServerConfig>> {
        let mut config = ServerConfig::builder_with_provider(provider()?)
            .with_safe_default_protocol_versions()
            .context("choose a version of TLS")?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.shown) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// As long as the process lives.
    pub async fn keep(mut self) {
        loop {
            if let Err(error) = self.look().await {
                tracing::warn!("webhook's certificate: {error:#}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self) -> Result<()> {
        let authority = authority::find(&self.client, &self.namespace, &self.secret).await?;
        // Others make it anew at their start; what is known holds until then.
        if let Some(authority) = authority
            && is_due(&self.leaf, &authority, Timestamp::now())
        {
            self.leaf = authority.issue_to_webhook(&self.host, Timestamp::now())?;
            let certified = certified(&self.leaf)?;
            let mut shown = self.shown.0.write();
            let shown = shown.as_deref_mut().map(|shown| *shown = certified);
            tracing::info!(
                replaced = shown.is_ok(),
                "another certificate of the webhook"
            );
        }
        match &self.configuration {
            Some(name) => self.tell(name).await,
            None => Ok(()),
        }
    }

    /// Writes the authority's certificate where it is missing or another.
    async fn tell(&self, name: &str) -> Result<()> {
        let all: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let reading = || format!("read ValidatingWebhookConfiguration {name}");
        let found = all.get_opt(name).await.with_context(reading)?;
        let found = found.with_context(|| format!("{}: it is not there", reading()))?;
        let Some(patch) = told(&found, &self.leaf.authority) else {
            return Ok(());
        };
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patched = all.patch(name, &params, &Patch::Strategic(&patch)).await;
        patched
            .with_context(|| format!("write caBundle of ValidatingWebhookConfiguration {name}"))?;
        tracing::info!(
            name,
            "told the API server whose certificate the webhook has"
        );
        Ok(())
    }
}

/// The patch that tells the API server of the authority; none: it knows.
fn told(
    configuration: &ValidatingWebhookConfiguration,
    authority: &str,
) -> Option<serde_json::Value> {
    let bundle = ByteString(authority.as_bytes().to_vec());
    let webhooks = configuration.webhooks.iter().flatten();
    let ignorant: Vec<_> = webhooks
        .filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(&bundle))
        .map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    // The resource version keeps a list that somebody changes meanwhile as it is.
    let version = &configuration.metadata.resource_version;
    (!ignorant.is_empty())
        .then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": ignorant}))
}

/// Whether another certificate is needed: another authority signs now, or two thirds of its time are over.
fn is_due(leaf: &Leaf, authority: &Authority, now: Timestamp) -> bool {
    let validity = Validity::of(&leaf.certificate);
    leaf.authority != authority.certificate()
        || validity.map_or(true, |validity| validity.is_due(now))
}

fn provider() -> Result<Arc<CryptoProvider>> {
    let provider = CryptoProvider::get_default();
    Ok(Arc::clone(
        provider.context("find a provider of cryptography")?,
    ))
}

fn certified(leaf: &Leaf) -> Result<Arc<CertifiedKey>> {
    let certificate = CertificateDer::from_pem_slice(leaf.certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(leaf.key.reveal().as_bytes());
    let (certificate, key) = (
        certificate.context("read the certificate that was issued")?,
        key.context("read the key that was issued")?,
    );
    let certified = CertifiedKey::from_der(vec![certificate], key, &*provider()?);
    Ok(Arc::new(
        certified.context("use the certificate that was issued")?,
    ))
}

#[cfg(test)]
mod tests;
