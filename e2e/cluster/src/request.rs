//! What a request to the API server asks for, in the words of its rights.
//!
//! Owns: reading method and path. Pure.

use std::fmt;

/// A request to the API server.
#[derive(Clone, Debug)]
pub struct Request {
    /// GET, POST, ...
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The body.
    pub body: Vec<u8>,
    /// The verb of a right.
    pub verb: &'static str,
    /// `group/resource`, with its subresource: `apps/statefulsets`, `/pods`, `streamforge.io/streamjobs/status`.
    pub resource: String,
    /// The namespace; empty: it is about all of them.
    pub namespace: String,
    /// The object; empty: it is about all of them.
    pub name: String,
}

impl Request {
    /// Reads it.
    pub fn new(method: &str, target: &str, body: Vec<u8>) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let group = match parts.next() {
            Some("apis") => parts.next().unwrap_or_default(),
            _ => "",
        };
        let _version = parts.next();
        let mut rest: Vec<&str> = parts.collect();
        let namespace = if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            rest.drain(..2).nth(1).unwrap_or_default()
        } else {
            ""
        };
        let mut resource = format!("{group}/{}", rest.first().unwrap_or(&""));
        let name = rest.get(1).copied().unwrap_or_default();
        if let Some(part) = rest.get(2) {
            resource = format!("{resource}/{part}");
        }
        let is_watch = query
            .split('&')
            .any(|it| it == "watch=true" || it == "watch=1");
        let verb = match (method, name) {
            ("GET", _) if is_watch => "watch",
            ("GET", "") => "list",
            ("GET", _) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", "") => "deletecollection",
            ("DELETE", _) => "delete",
            _ => "unknown",
        };
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            body,
            verb,
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Whether it changes something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// Whether it is about who leads.
    pub fn is_lease(&self) -> bool {
        self.resource == "coordination.k8s.io/leases"
    }

    /// Whether it tells people something.
    pub fn is_event(&self) -> bool {
        self.resource == "events.k8s.io/events"
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {}/{}",
            self.verb, self.resource, self.namespace, self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(method: &str, target: &str) -> String {
        Request::new(method, target, Vec::new()).to_string()
    }

    #[test]
    fn requests_are_named_as_rights_name_them() {
        let jobs = "/apis/streamforge.io/v1alpha1";
        assert_eq!(
            said(
                "PATCH",
                &format!("{jobs}/namespaces/a/streamjobs/b/status?force=true")
            ),
            "patch streamforge.io/streamjobs/status a/b"
        );
        assert_eq!(
            said("GET", &format!("{jobs}/streamjobs?limit=500")),
            "list streamforge.io/streamjobs /"
        );
        assert_eq!(
            said("GET", &format!("{jobs}/streamjobs?&watch=true&limit=1")),
            "watch streamforge.io/streamjobs /"
        );
        assert_eq!(
            said("POST", "/api/v1/namespaces/a/secrets?"),
            "create /secrets a/"
        );
        assert_eq!(
            said("DELETE", "/apis/apps/v1/namespaces/a/statefulsets/b"),
            "delete apps/statefulsets a/b"
        );
        assert_eq!(said("GET", "/api/v1/namespaces/a"), "get /namespaces /a");
    }
}
