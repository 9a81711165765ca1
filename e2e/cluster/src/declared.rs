//! A job as somebody declares it, in the fields that tests change.
//!
//! Owns: its document, and what has to be so in the cluster once it is obeyed. Pure.

use std::fmt;

use crate::job::s3_settings;

/// Subtasks per pod.
const SLOTS: u32 = 2;

/// Rows per second of a job that is to come to its end.
const FAST: u64 = 1_000_000;

/// See the module. Windows over generated clicks, into the bucket, as [`crate::ClicksJob`].
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// Its folder in the bucket.
    pub folder: String,
    /// How many rows; none for a job without an end.
    pub rows: Option<u64>,
    /// Rows per second: another number is an upgrade that does not change the result.
    pub rate: u64,
    /// Subtasks.
    pub parallelism: u32,
    /// Of checkpoints: only the coordinator looks at it.
    pub interval_ms: u32,
    /// What a pod asks for: another number replaces pods.
    pub cpu_m: u32,
    /// Another image than the operator's default.
    pub image: Option<String>,
    /// It is not to run.
    pub suspend: bool,
    /// `streamforge.io/restart`.
    pub restart: Option<u32>,
    /// `streamforge.io/pause`.
    pub paused: bool,
    /// It names a column that is not there.
    pub spoiled: bool,
}

impl Declared {
    /// A small job without an end.
    pub fn new(name: &str, folder: &str) -> Self {
        Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            rows: None,
            rate: 500,
            parallelism: 1,
            interval_ms: 500,
            cpu_m: 10,
            image: None,
            suspend: false,
            restart: None,
            paused: false,
            spoiled: false,
        }
    }

    /// The same, on its way to its end.
    pub fn to_the_end(&self) -> Self {
        Self {
            rate: FAST,
            suspend: false,
            paused: false,
            spoiled: false,
            image: None,
            ..self.clone()
        }
    }

    /// Pods that there are to be while it runs.
    pub fn pods(&self) -> u32 {
        if self.suspend {
            return 0;
        }
        self.parallelism.div_ceil(SLOTS)
    }

    /// Where it has its checkpoints.
    pub fn store(&self) -> String {
        format!("{}/store", self.folder)
    }

    /// What its pods are: as long as this is the same, none is replaced.
    pub fn of_pods(&self) -> (u32, Option<String>, Option<u32>) {
        (self.cpu_m, self.image.clone(), self.restart)
    }

    /// The phase that it comes to.
    pub fn phase(&self) -> &'static str {
        match self {
            Self { suspend: true, .. } => "Suspended",
            Self {
                rows: Some(_),
                rate: FAST,
                ..
            } => "Finished",
            _ => "Running",
        }
    }

    /// What is applied.
    pub fn document(&self) -> String {
        let Self {
            name,
            folder,
            rate,
            parallelism,
            interval_ms,
            cpu_m,
            suspend,
            ..
        } = self;
        let rows = self.rows.map(|n| format!("rows: {n}, "));
        let rows = rows.unwrap_or_default();
        let image = self.image.as_ref().map(|it| format!("image: \"{it}\", "));
        let image = image.unwrap_or_default();
        let column = if self.spoiled { "amuont" } else { "amount" };
        let restart = self
            .restart
            .map(|n| format!("streamforge.io/restart: \"{n}\""));
        let pause = self.paused.then(|| "streamforge.io/pause: \"\"".to_owned());
        let annotations: Vec<String> = restart.into_iter().chain(pause).collect();
        let annotations = annotations.join(", ");
        let (s3, store) = (s3_settings(), self.store());
        format!(
            r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec:
  parallelism: {parallelism}
  suspend: {suspend}
  sources:
    - name: clicks
      generator: {{clicks: {{{rows}users: 50, skew: 1.1, outOfOrderness: 3s, lateFraction: 0.01, badFraction: 0.001, seed: 7}}}}
      eventTime: {{column: ts, maxOutOfOrderness: 3s}}
      rateLimit: {{rowsPerSecond: {rate}}}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {{tumbling: {{size: 1s}}}}
        select: ["count(*) AS clicks", "sum({column}) AS spend"]
  sinks:
    - {{name: results, from: per_user, file: {{path: "{folder}/results/", s3: {s3}}}, format: {{json: {{}}}}}}
    - {{name: late, from: per_user.late, file: {{path: "{folder}/late/", s3: {s3}}}, format: {{json: {{}}}}}}
  checkpoint: {{interval: {interval_ms}ms, storage: {{uri: "{store}", s3: {s3}}}}}
  taskManager: {{{image}slots: {SLOTS}, resources: {{requests: {{cpu: {cpu_m}m}}}}}}
"#
        )
    }
}

impl fmt::Display for Declared {
    /// What differs between jobs, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}/s, parallelism {}, every {} ms, {}m",
            self.name, self.rate, self.parallelism, self.interval_ms, self.cpu_m
        )?;
        if let Some(image) = &self.image {
            write!(f, ", image {image}")?;
        }
        if let Some(restart) = &self.restart {
            write!(f, ", restart {restart}")?;
        }
        for (is_so, word) in [
            (self.suspend, "suspended"),
            (self.paused, "paused"),
            (self.spoiled, "spoiled"),
        ] {
            if is_so {
                write!(f, ", {word}")?;
            }
        }
        Ok(())
    }
}
