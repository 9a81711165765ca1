//! A real broker.
//!
//! Owns: finding or starting it by `e2e/services/kafka`, and what an administrator does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::topic::Topic;

/// How long an administrator waits.
const PATIENCE: Duration = Duration::from_secs(90);

/// A broker; one of a test's own is stopped and wiped when this is dropped.
#[derive(Debug)]
pub struct Broker {
    servers: String,
    own: Option<Own>,
}

#[derive(Debug)]
struct Own {
    run: PathBuf,
    port: u16,
    nodes_n: u16,
    folder: tempfile::TempDir,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/kafka")
}

fn bootstrap(output: &std::process::Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "start kafka: {error}");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("KAFKA_BOOTSTRAP="));
    line.unwrap_or_else(|| panic!("no address in {text}"))
        .to_owned()
}

impl Broker {
    /// The broker that all tests share; nobody stops it.
    pub fn shared() -> Self {
        static SERVERS: OnceLock<String> = OnceLock::new();
        let servers = SERVERS.get_or_init(|| {
            let output = Command::new(script()).arg("up").output();
            bootstrap(&output.expect("the script starts"))
        });
        Broker {
            servers: servers.clone(),
            own: None,
        }
    }

    /// A broker of this test's own, with these server properties, on this port and the next ones.
    pub fn own(port: u16, properties: &str) -> Self {
        Self::own_cluster(port, 1, properties)
    }

    /// The same with several nodes, the ports of which follow that of the first. Topics have as many
    /// replicas; two of three must have a record before it counts as written.
    pub fn own_cluster(port: u16, nodes_n: u16, properties: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        std::fs::write(folder.path().join("extra"), properties).expect("a file can be written");
        let own = Own {
            run: folder.path().join("kafka"),
            port,
            nodes_n,
            folder,
        };
        let servers = own.start();
        Broker {
            servers,
            own: Some(own),
        }
    }

    /// `host:port,...`
    pub fn servers(&self) -> &str {
        &self.servers
    }

    fn own_broker(&self) -> &Own {
        self.own
            .as_ref()
            .expect("only a test's own broker may be stopped")
    }

    /// Kills it, all nodes, as a crash would.
    pub fn kill(&self) {
        self.own_broker().script(&["down", "--kill"]);
    }

    /// Kills one node of several.
    pub fn kill_node(&self, node: i32) {
        let node = node.to_string();
        self.own_broker()
            .script(&["down", "--kill", "--node", &node]);
    }

    /// Waits until every partition, those of internal topics too, has all its replicas in sync.
    pub fn await_in_sync(&self) {
        let client: BaseConsumer = self.client().create().expect("a client can be made");
        let nodes_n = usize::from(self.own_broker().nodes_n);
        let began = Instant::now();
        loop {
            let found = client.fetch_metadata(None, PATIENCE);
            let found = found.expect("the brokers answer");
            let mut partitions = found.topics().iter().flat_map(|topic| topic.partitions());
            if partitions.all(|partition| partition.isr().len() == nodes_n) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "never in sync");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The same without waiting for anything: for a moment that matters.
    pub fn kill_at_once(&self) {
        let pid = std::fs::read_to_string(self.own_broker().run.join("node1/pid"));
        let pid = pid.expect("the broker runs").trim().parse().ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("a pid is a number");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    }

    /// Other server properties, from its next start on.
    pub fn set_properties(&self, properties: &str) {
        let extra = self.own_broker().folder.path().join("extra");
        std::fs::write(extra, properties).expect("a file can be written");
    }

    /// Starts it again, with its data.
    pub fn start(&self) {
        self.own_broker().start();
    }

    /// What it has logged since it was started.
    pub fn log(&self) -> String {
        let log = self.own_broker().run.join("node1/log");
        std::fs::read_to_string(log).unwrap_or_default()
    }

    /// Copies what the partitions of a topic hold now. Those of `__transaction_state` are what the
    /// coordinator of transactions knows.
    pub fn save(&self, topic: &str, to: &Path) {
        for folder in self.own_broker().partitions(topic) {
            let name = folder.file_name().expect("a folder has a name");
            copy_folder(&folder, &to.join(name));
        }
    }

    /// Puts such a copy back, as after a power failure that lost what was written since. The broker
    /// must not run.
    pub fn lose_since(&self, topic: &str, saved: &Path) {
        for folder in self.own_broker().partitions(topic) {
            let name = folder.file_name().expect("a folder has a name").to_owned();
            std::fs::remove_dir_all(&folder).expect("a folder can be removed");
            copy_folder(&saved.join(name), &folder);
        }
    }

    /// Settings of a client that is not ours.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers);
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().expect("a client can be made")
    }

    fn options() -> AdminOptions {
        AdminOptions::new()
            .operation_timeout(Some(PATIENCE))
            .request_timeout(Some(PATIENCE))
    }

    /// A topic of its own, with settings.
    pub async fn topic(&self, of: &str, partitions_n: i32, settings: &[(&str, &str)]) -> Topic {
        let topic = self.topic_to_be(of, partitions_n);
        self.make_topic(&topic.name, partitions_n, settings).await;
        topic
    }

    /// A topic of a name of its own that is not there yet; see [`Self::make_topic`].
    pub fn topic_to_be(&self, of: &str, partitions_n: i32) -> Topic {
        Topic::new(self.client(), &crate::fresh_name(of), partitions_n)
    }

    /// Makes a topic of this name; waits for an earlier one of the name to be gone.
    pub async fn make_topic(&self, name: &str, partitions_n: i32, settings: &[(&str, &str)]) {
        let copies_n = self.own.as_ref().map_or(1, |own| i32::from(own.nodes_n));
        let mut topic = NewTopic::new(name, partitions_n, TopicReplication::Fixed(copies_n));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let admin = self.admin();
        for _ in 0..100 {
            let made = admin.create_topics([&topic], &Self::options()).await;
            let made = made.expect("the broker answers");
            if made.iter().all(Result::is_ok) {
                // The controller has made it; the broker that is asked may hear of it later.
                while !self.knows(name, partitions_n) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("topic {name} could not be made");
    }

    fn knows(&self, name: &str, partitions_n: i32) -> bool {
        let found = self.admin().inner().fetch_metadata(Some(name), PATIENCE);
        found.is_ok_and(|found| {
            let topic = found.topics().iter().find(|topic| topic.name() == name);
            topic.is_some_and(|topic| i32::try_from(topic.partitions().len()) == Ok(partitions_n))
        })
    }

    /// Deletes a topic, and all offsets of groups with it.
    pub async fn delete_topic(&self, name: &str) {
        let deleted = self.admin().delete_topics(&[name], &Self::options()).await;
        deleted
            .expect("the broker answers")
            .pop()
            .expect("one topic was asked about")
            .expect("it is deleted");
    }

    /// Adds partitions.
    pub async fn grow_topic(&self, name: &str, partitions_n: usize) {
        let grown = NewPartitions::new(name, partitions_n);
        let grown = self
            .admin()
            .create_partitions([&grown], &Self::options())
            .await;
        for result in grown.expect("the broker answers") {
            result.expect("partitions are added");
        }
    }

    /// Deletes the records of a partition before an offset, as retention does.
    pub async fn delete_records(&self, topic: &str, partition: i32, before: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset(topic, partition, Offset::Offset(before))
            .expect("an offset is an offset");
        let deleted = self
            .admin()
            .delete_records(&offsets, &Self::options())
            .await;
        deleted.expect("records are deleted");
    }

    /// Sets one setting of a topic.
    pub async fn set(&self, topic: &str, key: &str, value: &str) {
        let config = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(key, value);
        let altered = self
            .admin()
            .alter_configs([&config], &Self::options())
            .await;
        for result in altered.expect("the broker answers") {
            result.expect("a setting is set");
        }
    }

    /// Makes a user who proves with SCRAM-SHA-512 that it knows the password.
    pub fn add_scram_user(&self, user: &str, password: &str) {
        let config = format!("SCRAM-SHA-512=[password={password}]");
        self.own_broker().script(&[
            "tool",
            "org.apache.kafka.tools.ConfigCommand",
            "--bootstrap-server",
            &self.servers,
            "--alter",
            "--entity-type",
            "users",
            "--entity-name",
            user,
            "--add-config",
            &config,
        ]);
    }

    /// Whether a group has an offset committed for partition 0 of a topic.
    pub fn has_offsets(&self, group: &str, topic: &str) -> bool {
        let mut config = self.client();
        config.set("group.id", group);
        let client: BaseConsumer = config.create().expect("a client can be made");
        let mut wanted = TopicPartitionList::new();
        wanted.add_partition(topic, 0);
        let found = client.committed_offsets(wanted, PATIENCE);
        let found = found.expect("the broker answers");
        let element = found.find_partition(topic, 0);
        element.is_some_and(|it| matches!(it.offset(), Offset::Offset(_)))
    }

    /// Forgets all offsets of a group, as their expiry does.
    pub async fn forget_group(&self, group: &str) {
        let deleted = self.admin().delete_groups(&[group], &Self::options()).await;
        for result in deleted.expect("the broker answers") {
            result.expect("the group is deleted");
        }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder is there") {
        let entry = entry.expect("the folder can be listed");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a file can be copied");
    }
}

impl Own {
    /// The folders of a topic's partitions.
    fn partitions(&self, topic: &str) -> Vec<PathBuf> {
        let data = std::fs::read_dir(self.run.join("node1/data")).expect("the broker has data");
        let folders = data.map(|entry| entry.expect("the folder can be listed").path());
        let is_log = |path: &PathBuf| {
            let name = path.file_name().and_then(std::ffi::OsStr::to_str);
            name.and_then(|name| name.rsplit_once('-'))
                .is_some_and(|(name, _)| name == topic)
        };
        folders.filter(is_log).collect()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(script());
        command
            .env("KAFKA_RUN", &self.run)
            .env("KAFKA_PORT", self.port.to_string())
            .env("KAFKA_CPORT", (self.port + 10).to_string())
            .env("NODES", self.nodes_n.to_string())
            .env("KAFKA_EXTRA", self.folder.path().join("extra"))
            .env("KAFKA_JIT", "1")
            .env("KAFKA_HEAP", "256m")
            .env_remove("KAFKA_BOOTSTRAP");
        command
    }

    fn start(&self) -> String {
        bootstrap(
            &self
                .command()
                .arg("up")
                .output()
                .expect("the script starts"),
        )
    }

    fn script(&self, arguments: &[&str]) {
        let output = self.command().args(arguments).output();
        let output = output.expect("the script starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {error}");
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Its folder goes with it; a failing test must leave no broker behind.
        drop(self.command().args(["down", "--kill", "--wipe"]).output());
    }
}
