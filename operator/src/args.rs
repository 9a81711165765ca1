//! What the operator is told when it starts.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;

/// Runs StreamJobs on Kubernetes: makes their pods, and coordinates them.
#[derive(Debug, Parser)]
#[command(name = "streamforge-operator", version)]
pub struct Args {
    /// Address to listen on for task managers
    #[arg(
        long,
        env = "STREAMFORGE_LISTEN",
        value_name = "ADDR",
        default_value = "0.0.0.0:7100"
    )]
    pub listen: SocketAddr,
    /// Address to show /metrics, /livez and /readyz at
    #[arg(
        long,
        env = "STREAMFORGE_METRICS_LISTEN",
        value_name = "ADDR",
        default_value = "0.0.0.0:8080"
    )]
    pub metrics_listen: SocketAddr,
    /// Host name under which task managers reach this operator [default:
    /// streamforge-coordinator.<namespace>.svc]
    #[arg(long, env = "STREAMFORGE_SERVICE", value_name = "HOST")]
    pub service: Option<String>,
    /// Namespace that the operator runs in
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "default"
    )]
    pub namespace: String,
    /// Name of this operator's pod
    #[arg(
        long,
        env = "POD_NAME",
        value_name = "NAME",
        default_value = "streamforge-operator"
    )]
    pub pod_name: String,
    /// Address of this operator's pod: task managers that were alone find it in their job's head, before the Service
    /// leads there; none: they are told the Service
    #[arg(long, env = "POD_IP", value_name = "IP")]
    pub pod_ip: Option<IpAddr>,
    /// Namespaces whose jobs are run, with commas between; empty: all
    #[arg(
        long,
        env = "STREAMFORGE_WATCH_NAMESPACES",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = ""
    )]
    pub watch_namespaces: Vec<String>,
    /// Image of task managers for which a job names none
    #[arg(long, env = "STREAMFORGE_TASK_MANAGER_IMAGE", value_name = "IMAGE")]
    pub task_manager_image: String,
    /// Name of the Lease that one of several operators holds
    #[arg(
        long,
        env = "STREAMFORGE_LEASE",
        value_name = "NAME",
        default_value = "streamforge-operator"
    )]
    pub lease: String,
    /// Name of the Secret that keeps the operator's authority; it is made if it is not there
    #[arg(
        long,
        env = "STREAMFORGE_CA_SECRET",
        value_name = "NAME",
        default_value = "streamforge-ca"
    )]
    pub ca_secret: String,
    /// Stores that jobs may use with the operator's own identity, as JSON:
    /// [{"uri": "s3://bucket/prefix", "namespaces": ["a"]}]
    #[arg(
        long,
        env = "STREAMFORGE_SHARED_STORES",
        value_name = "JSON",
        default_value = ""
    )]
    pub shared_stores: String,
    /// Address to answer the API server's admission reviews at; none: they are not answered
    #[arg(long, env = "STREAMFORGE_WEBHOOK_LISTEN", value_name = "ADDR")]
    pub webhook_listen: Option<SocketAddr>,
    /// Host name under which the API server reaches the webhook [default:
    /// streamforge-webhook.<namespace>.svc]
    #[arg(long, env = "STREAMFORGE_WEBHOOK_SERVICE", value_name = "HOST")]
    pub webhook_service: Option<String>,
    /// Name of the ValidatingWebhookConfiguration that is told the authority's certificate; none: nobody
    /// is told
    #[arg(long, env = "STREAMFORGE_WEBHOOK_CONFIGURATION", value_name = "NAME")]
    pub webhook_configuration: Option<String>,
    /// Folder in memory for credentials of stores
    #[arg(
        long,
        env = "STREAMFORGE_WORK_DIR",
        value_name = "DIR",
        default_value = "/run/streamforge"
    )]
    pub work_dir: PathBuf,
}

impl Args {
    /// The namespaces that are watched; empty: all.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let trimmed = self.watch_namespaces.iter().map(|name| name.trim());
        let mut names: Vec<String> = trimmed
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Where the API server finds the webhook.
    #[must_use]
    pub fn webhook_host(&self) -> String {
        let default = || format!("streamforge-webhook.{}.svc", self.namespace);
        self.webhook_service.clone().unwrap_or_else(default)
    }

    /// Where task managers find the coordinator.
    #[must_use]
    pub fn coordinator(&self) -> String {
        let default = || format!("streamforge-coordinator.{}.svc", self.namespace);
        let host = self.service.clone().unwrap_or_else(default);
        format!("{host}:{}", self.listen.port())
    }

    /// Where task managers find this operator, which heads name.
    #[must_use]
    pub fn reached_at(&self) -> String {
        let port = self.listen.port();
        let own = self.pod_ip.map(|ip| SocketAddr::new(ip, port).to_string());
        own.unwrap_or_else(|| self.coordinator())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn args(more: &[&str]) -> Args {
        let first = ["streamforge-operator", "--task-manager-image", "tm:1"];
        Args::parse_from(first.iter().chain(more))
    }

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn empty_list_of_namespaces_means_all_and_a_name_twice_is_one() {
        assert!(args(&[]).namespaces().is_empty());
        let some = args(&["--watch-namespaces", "b, a,b,"]);
        assert_eq!(some.namespaces(), ["a", "b"]);
    }

    #[test]
    fn task_managers_call_the_service() {
        let args = args(&["--namespace", "sf"]);
        assert_eq!(args.coordinator(), "streamforge-coordinator.sf.svc:7100");
        assert_eq!(args.reached_at(), args.coordinator());
    }

    #[test]
    fn heads_name_the_pod() {
        for (ip, address) in [("10.1.2.3", "10.1.2.3:7100"), ("fd00::3", "[fd00::3]:7100")] {
            let args = args(&["--namespace", "sf", "--pod-ip", ip]);
            assert_eq!(args.reached_at(), address);
            assert_eq!(args.coordinator(), "streamforge-coordinator.sf.svc:7100");
        }
    }
}
