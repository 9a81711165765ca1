//! An operator as a process of this machine, with exactly the rights that the chart gives.
//!
//! Owns: installing its rights in a namespace of its own, starting and killing it, its log. It reaches
//! the API server only through a [`Proxy`]. The tests run where pods can reach this process: `e2e/cluster/inside`.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::{Api, KubectlProxy};
use crate::kubectl::{apply_all, eventually, kubectl};
use crate::logs::is_trouble;
use crate::namespace::variable;
use crate::proxy::{Line, Proxy};
use crate::service::Service;

/// The chart, rendered.
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/streamforge");

/// Kinds of the chart that are rights.
const RIGHTS: [&str; 5] = [
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
];

/// The chart's rights in a namespace of their own, and what an operator is started with.
pub struct Release {
    namespace: String,
    /// Flags, as the chart has them.
    args: Vec<String>,
    /// Objects of the whole cluster that were made.
    of_cluster: Vec<(String, String)>,
    folder: TempDir,
    service: Service,
    /// As a person.
    pub api: Api,
}

/// One operator.
pub struct Operator {
    /// Between it and the API server.
    pub proxy: Proxy,
    process: Arc<Process>,
    _upstream: KubectlProxy,
}

/// Its process, which a rule of the proxy may kill.
pub struct Process {
    child: Mutex<Option<Child>>,
    command: Mutex<Command>,
    log: PathBuf,
}

/// What the chart makes with these values, as JSON.
pub fn rendered(namespace: &str, values: &[&str]) -> Vec<Value> {
    let mut helm = Command::new("helm");
    helm.args(["template", "streamforge", CHART, "--namespace", namespace]);
    for value in values {
        helm.args(["--set", value]);
    }
    let output = helm.output().expect("helm is in PATH");
    assert!(output.status.success(), "helm: {output:?}");
    // kubectl reads YAML.
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    std::fs::write(file.path(), &output.stdout).expect("it can be written");
    let path = file.path().display().to_string();
    let dry = [
        "create",
        "--dry-run=client",
        "--validate=false",
        "-o",
        "json",
    ];
    let json = kubectl(&[&dry[..], &["-f", &path]].concat());
    let objects = serde_json::Deserializer::from_str(&json).into_iter();
    objects
        .map(|object| object.expect("kubectl prints JSON"))
        .collect()
}

impl Release {
    /// For the jobs of these namespaces; none: of the whole cluster.
    pub fn install(namespace: &str, watched: &[String]) -> Self {
        let api = Api::open();
        let watch = format!("watchNamespaces={{{}}}", watched.join(","));
        let values = if watched.is_empty() {
            vec![]
        } else {
            vec![watch.as_str()]
        };
        let objects = rendered(namespace, &values);
        let made = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {
            "name": namespace, "labels": {"streamforge.io/e2e": "true"}}});
        apply_all(&made.to_string()).expect("a namespace can be made");
        let kind = |object: &Value| object["kind"].as_str().unwrap_or_default().to_owned();
        let rights: Vec<&Value> = objects
            .iter()
            .filter(|object| RIGHTS.contains(&kind(object).as_str()))
            .collect();
        assert!(
            rights.len() >= 5,
            "the chart makes fewer rights: {rights:?}"
        );
        let of_cluster = rights.iter().filter(|it| kind(it).starts_with("Cluster"));
        let of_cluster = of_cluster
            .map(|it| {
                (
                    kind(it),
                    it["metadata"]["name"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                )
            })
            .collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "items": rights});
        apply_all(&list.to_string()).expect("the chart's rights can be made");
        let deployment = objects.iter().find(|it| kind(it) == "Deployment");
        let container =
            &deployment.expect("the chart has one")["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].as_array().into_iter().flatten();
        let args = args.filter_map(Value::as_str).map(str::to_owned).collect();
        Self {
            namespace: namespace.to_owned(),
            args,
            of_cluster,
            folder: tempfile::tempdir().expect("a folder can be made"),
            service: Service::open(&variable("CLUSTER_ADDRESS")),
            api,
        }
    }

    /// Where task managers reach its operators.
    pub fn address(&self) -> String {
        self.service.address().to_string()
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// An operator that shows this name in the Lease. It is not started yet.
    pub fn operator(&self, name: &str) -> Operator {
        let account = [
            "create",
            "token",
            "streamforge-operator",
            "-n",
            &self.namespace,
        ];
        let token = kubectl(&[&account[..], &["--duration=6h"]].concat());
        let token = json!({"token": token.trim()});
        let direct = kubeconfig(&cluster_server(), &token);
        let direct = self.write(&format!("{name}.direct"), &direct);
        let upstream = KubectlProxy::start(Some(&direct));
        let proxy = Proxy::start(&upstream.address);
        let cluster = json!({"server": proxy.url()});
        let kubeconfig = kubeconfig(&cluster, &token);
        let kubeconfig = self.write(&format!("{name}.kubeconfig"), &kubeconfig);
        let (listen, metrics) = self.service.add();
        let work = self.folder.path().join(format!("{name}.work"));
        std::fs::create_dir_all(&work).expect("a folder can be made");
        let elsewhere = ["--listen", "--metrics-listen", "--service", "--work-dir"];
        let is_same = |arg: &&String| {
            let flag = arg.split('=').next().unwrap_or_default();
            !elsewhere.contains(&flag)
        };
        let mut command = Command::new(binary());
        command
            .args(self.args.iter().filter(is_same))
            .arg(format!("--listen={listen}"))
            .arg(format!("--metrics-listen={metrics}"))
            .arg(format!("--service={}", self.service.address().ip()))
            .arg(format!("--work-dir={}", work.display()))
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAMESPACE", &self.namespace)
            .env("POD_NAME", name)
            .env(
                "RUST_LOG",
                std::env::var("OPERATOR_LOG").unwrap_or("info".to_owned()),
            )
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stdin(Stdio::null());
        Operator {
            proxy,
            process: Arc::new(Process {
                child: Mutex::default(),
                command: Mutex::new(command),
                log: self.folder.path().join(format!("{name}.log")),
            }),
            _upstream: upstream,
        }
    }

    fn write(&self, name: &str, value: &Value) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, value.to_string()).expect("a file can be written");
        path.display().to_string()
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if std::env::var_os("E2E_KEEP").is_some() {
            return;
        }
        for (kind, name) in &self.of_cluster {
            let _ = crate::try_kubectl(&["delete", kind, name, "--wait=false"]);
        }
        let _ = crate::try_kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

impl Operator {
    /// Starts it, or starts it again.
    pub fn start(&self) {
        self.process.start();
    }

    /// Its process.
    pub fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process)
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.process.log).unwrap_or_default()
    }

    /// Waits until it leads.
    pub fn wait_to_lead(&self) {
        eventually("the operator leads", 30, || {
            self.log().contains("\"message\":\"leading\"").then_some(())
        });
    }

    /// Its warnings and errors, but those that contain one of these texts.
    pub fn trouble(&self, announced: &[&str]) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter(|line| is_trouble(line));
        lines
            .filter(|line| !announced.iter().any(|text| line.contains(text)))
            .map(str::to_owned)
            .collect()
    }

    /// Asserts that it logged no other warning and no other error, did not panic, and was never refused
    /// a right that the chart should have given it.
    pub fn check(&self, announced: &[&str]) {
        let log = self.log();
        assert!(!log.contains("panicked at"), "{log}");
        let trouble = self.trouble(announced);
        assert!(trouble.is_empty(), "not announced:\n{}", trouble.join("\n"));
        let forbidden = self.forbidden();
        assert!(forbidden.is_empty(), "forbidden: {forbidden:?}");
    }

    /// What the API server forbade it. Whether the cluster knows our kinds is asked for all namespaces, and a
    /// no is an answer there.
    pub fn forbidden(&self) -> Vec<String> {
        let lines = self.proxy.lines().into_iter();
        let is_question = |line: &Line| {
            let request = &line.request;
            request.verb == "list"
                && request.namespace.is_empty()
                && request.target.contains("limit=1")
        };
        let forbidden = lines.filter(|line| line.is_real && line.status == 403);
        let forbidden = forbidden.filter(|line| !is_question(line));
        forbidden.map(|line| line.request.to_string()).collect()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines.len().saturating_sub(60);
            eprintln!("--- operator\n{}", lines[last..].join("\n"));
            let lines = self.proxy.lines();
            let lines: Vec<_> = lines.iter().filter(|it| !it.request.is_lease()).collect();
            for line in &lines[lines.len().saturating_sub(60)..] {
                eprintln!("{} {}", line.status, line.request);
            }
        }
    }
}

impl Process {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it.
    pub fn start(&self) {
        self.kill();
        let open = || {
            let file = File::options().create(true).append(true).open(&self.log);
            file.expect("the log can be opened")
        };
        let mut command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.stdout(open()).stderr(open()).spawn();
        *self.child() = Some(child.expect("the operator's binary starts: make build"));
    }

    /// SIGKILL; it is gone afterwards.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it as it is (`STOP`), or lets it go on (`CONT`).
    pub fn signal(&self, name: &str) {
        let pid = self.child().as_ref().map(Child::id);
        let pid = pid.expect("it was started").to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.is_ok_and(|it| it.success()), "kill -s {name} {pid}");
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        let mut child = self.child();
        let ended = child.as_mut().map(|child| child.try_wait().ok().flatten());
        matches!(ended, Some(None))
    }
}

fn kubeconfig(cluster: &Value, user: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
}

/// Address and authority of the API server.
fn cluster_server() -> Value {
    let config = kubectl(&[
        "config",
        "view",
        "--raw",
        "--flatten",
        "--minify",
        "-o",
        "json",
    ]);
    let mut config: Value = serde_json::from_str(&config).expect("kubectl prints JSON");
    config["clusters"][0]["cluster"].take()
}

fn binary() -> PathBuf {
    let tool = PathBuf::from(variable("STREAMFORGE_BIN"));
    tool.with_file_name("streamforge-operator")
}
