//! Keys of a server, from a folder that looks like a mounted Secret.
//!
//! Owns: reading them, and never showing them: no `Debug`, no `Display`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use streamforge_core::s3::S3Access;
use streamforge_core::secret_name::{SECRET_NAME_RULE, is_secret_name};

use super::failure::Refusal;

/// Longest file that is read: a bundle of certificates fits, a wrong path does not fill memory.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The content of a secret, or that none was named.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Secret {
    /// `accessKeyId`, `secretAccessKey`, `sessionToken`; none when only a CA is given.
    pub(super) keys: Option<Keys>,
    /// `ca.crt`: certificates to trust besides the system's, PEM.
    pub(super) ca: Option<Vec<u8>>,
}

/// Who we are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keys {
    pub(super) id: String,
    pub(super) secret: String,
    pub(super) session: Option<String>,
}

/// Reads the secret that a document names.
///
/// # Errors
/// [`Refusal::Setup`] that names the file, never its content.
pub(super) fn of(access: &S3Access, folder: Option<&Path>) -> Result<Secret, Refusal> {
    let name = access.credentials_secret.as_deref();
    name.map_or_else(|| Ok(Secret::default()), |name| read(folder, name))
}

fn read(folder: Option<&Path>, name: &str) -> Result<Secret, Refusal> {
    let setup = |reason: String| Refusal::Setup { reason };
    let Some(folder) = folder else {
        return Err(setup(format!(
            "the document names the secret `{name}`: say with --secrets in which folder secrets are"
        )));
    };
    if !is_secret_name(name) {
        return Err(setup(format!("`{name}`: {SECRET_NAME_RULE}")));
    }
    let folder = folder.join(name);
    if !folder.is_dir() {
        return Err(setup(format!(
            "there is no secret `{name}`: no folder {}",
            folder.display()
        )));
    }
    let id = file(&folder, "accessKeyId")?;
    let secret = file(&folder, "secretAccessKey")?;
    let session = file(&folder, "sessionToken")?;
    let ca = file(&folder, "ca.crt")?;
    let keys = match (id, secret) {
        (Some(id), Some(secret)) => Some(Keys {
            id: text(&folder, "accessKeyId", id)?,
            secret: text(&folder, "secretAccessKey", secret)?,
            session: session
                .map(|bytes| text(&folder, "sessionToken", bytes))
                .transpose()?,
        }),
        (None, None) if ca.is_some() => None,
        (None, _) => return Err(missing(name, "accessKeyId")),
        (_, None) => return Err(missing(name, "secretAccessKey")),
    };
    Ok(Secret { keys, ca })
}

fn missing(name: &str, key: &str) -> Refusal {
    Refusal::Setup {
        reason: format!("the secret `{name}` has no key {key}"),
    }
}

fn file(folder: &Path, key: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let path = folder.join(key);
    let failed = |reason: String| Refusal::Setup {
        reason: format!("read {}: {reason}", path.display()),
    };
    match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => return Err(failed("it is too long".to_owned())),
        Ok(_) => {}
    }
    fs::read(&path)
        .map(Some)
        .map_err(|error| failed(error.to_string()))
}

fn text(folder: &Path, key: &str, bytes: Vec<u8>) -> Result<String, Refusal> {
    // An editor's line end is no part of a key.
    match String::from_utf8(bytes) {
        Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        _ => Err(Refusal::Setup {
            reason: format!("{} is empty or no text", folder.join(key).display()),
        }),
    }
}
