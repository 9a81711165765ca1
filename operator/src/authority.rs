//! The operator's authority: a Secret of its own namespace.
//!
//! Owns: reading it, making it once, and knowing when a certificate is due.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::certificates::{Authority, Validity};

/// How often it is looked whether a certificate is due.
const LOOK_EVERY: Duration = Duration::from_secs(600);

const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";

/// The authority; made, and kept in the Secret, if there is none. Of several operators that make one
/// the first wins.
///
/// # Errors
/// When the Secret cannot be read or made, or holds something else.
pub async fn load(client: &Client, namespace: &str, name: &str) -> Result<Authority> {
    if let Some(authority) = find(client, namespace, name).await? {
        return Ok(authority);
    }
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let reading = || format!("read secret {namespace}/{name}");
    let authority = Authority::create(Timestamp::now())?;
    let value = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(
            [
                (CERTIFICATE.to_owned(), value(authority.certificate())),
                (KEY.to_owned(), value(authority.key().reveal())),
            ]
            .into(),
        ),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(authority),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            read(&secrets.get(name).await.with_context(reading)?).with_context(reading)
        }
        Err(error) => Err(error).with_context(|| format!("make secret {namespace}/{name}")),
    }
}

/// The authority, if there is one.
///
/// # Errors
/// When the Secret cannot be read, or holds something else.
pub async fn find(client: &Client, namespace: &str, name: &str) -> Result<Option<Authority>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let reading = || format!("read secret {namespace}/{name}");
    let found = secrets.get_opt(name).await.with_context(reading)?;
    found
        .map(|secret| read(&secret).with_context(reading))
        .transpose()
}

fn read(secret: &Secret) -> Result<Authority> {
    let data = secret.data.as_ref();
    let text = |key: &str| {
        let value = data.and_then(|data| data.get(key));
        let value = value.with_context(|| format!("it has no key {key}"))?;
        String::from_utf8(value.0.clone()).with_context(|| format!("{key} is no text"))
    };
    Ok(Authority::read(&text(CERTIFICATE)?, &text(KEY)?)?)
}

/// Waits until a certificate is to be made anew.
pub async fn due(certificate: &str) {
    loop {
        let validity = Validity::of(certificate);
        if validity.is_ok_and(|validity| validity.is_due(Timestamp::now())) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
