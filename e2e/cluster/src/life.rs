//! A job's life, step by step, with what has to be so after each.
//!
//! Owns: the steps, and comparing two lives. What is done to the operator meanwhile is a test's to say
//! ([`Meddler`]). Start at: [`live`].

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bucket;
use crate::declared::Declared;
use crate::seen::savepoint_path;
use crate::trial::Trial;

/// Rows of the job that comes to its end: more than flow before it is told to hurry.
const ROWS: u64 = 150_000;

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The first apply.
    Create,
    /// More subtasks, and another pod for them.
    Scale,
    /// Another plan: savepoint, swap, restore.
    Upgrade,
    /// A stop with a savepoint.
    Suspend,
    /// It goes on.
    Resume,
    /// `kind: Savepoint`.
    Savepoint,
    /// Its copy goes with it.
    DeleteSavepoint,
    /// Other pods.
    Replace,
    /// To the end of its input; the result is compared.
    Finish,
    /// A finished job is deleted.
    Delete,
    /// Another job.
    CreateOther,
    /// It is deleted while it runs.
    DeleteRunning,
}

/// All of them, in their order.
pub const LIFE: [Step; 12] = [
    Step::Create,
    Step::Scale,
    Step::Upgrade,
    Step::Suspend,
    Step::Resume,
    Step::Savepoint,
    Step::DeleteSavepoint,
    Step::Replace,
    Step::Finish,
    Step::Delete,
    Step::CreateOther,
    Step::DeleteRunning,
];

/// What happens to the operator during a life.
pub trait Meddler {
    /// Before somebody does something.
    fn before(&mut self, step: Step);
    /// Again and again, until it is so.
    fn meanwhile(&mut self, step: Step);
    /// When it is so.
    fn after(&mut self, step: Step);
}

/// Nothing does.
impl Meddler for () {
    fn before(&mut self, _: Step) {}
    fn meanwhile(&mut self, _: Step) {}
    fn after(&mut self, _: Step) {}
}

/// What there is after each step of a life, as it is in every life.
pub type Ends = BTreeMap<Step, Value>;

/// A whole life with an operator that runs.
pub fn live(trial: &Trial, meddler: &mut impl Meddler) -> Ends {
    let mut life = Life::new(trial);
    let mut ends = Ends::new();
    for step in LIFE {
        let pods = life.pods();
        meddler.before(step);
        life.act(step);
        trial.wait(&format!("{step:?}"), || {
            meddler.meanwhile(step);
            life.is_missing(step).map_or(Ok(()), Err)
        });
        meddler.after(step);
        ends.insert(step, life.end_state(step));
        let now = life.pods();
        assert!(
            step.may_replace_pods() || pods.iter().all(|pod| now.contains(pod)),
            "{step:?} replaced pods: {pods:?}, {now:?}"
        );
    }
    ends
}

/// A whole life to compare others with. Nothing of it was announced.
pub fn undisturbed() -> Ends {
    let trial = Trial::started("undisturbed");
    let ends = live(&trial, &mut ());
    trial.operator.check(&[]);
    ends
}

/// The first step whose end is another one, and the first line of it.
pub fn difference(one: &Ends, other: &Ends) -> Option<(Step, String)> {
    LIFE.into_iter().find_map(|step| {
        let lines = |ends: &Ends| {
            let text = serde_json::to_string_pretty(&ends[&step]).unwrap_or_default();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let (one, other) = (lines(one), lines(other));
        let first = one.iter().zip(&other).find(|(one, other)| one != other);
        let first = first.map(|(one, other)| {
            let same_n = one.chars().zip(other.chars());
            let same_n = same_n.take_while(|(one, other)| one == other).count();
            let near = |text: &str| -> String {
                text.chars()
                    .skip(same_n.saturating_sub(40))
                    .take(120)
                    .collect()
            };
            format!("{} became {}", near(one), near(other))
        });
        let longer = (one.len() != other.len()).then(|| "more or fewer lines".to_owned());
        first.or(longer).map(|what| (step, what))
    })
}

impl Step {
    fn may_replace_pods(self) -> bool {
        matches!(
            self,
            Self::Suspend | Self::Replace | Self::Finish | Self::Delete
        )
    }
}

/// A job and another one, which live.
struct Life<'a> {
    trial: &'a Trial,
    job: Declared,
    other: Declared,
}

impl<'a> Life<'a> {
    /// Nothing was done yet.
    fn new(trial: &'a Trial) -> Self {
        let job = trial.small_job("clicks");
        Self {
            job: Declared {
                rows: Some(ROWS),
                ..job
            },
            other: trial.small_job("other"),
            trial,
        }
    }

    /// Does a step; does not wait.
    fn act(&mut self, step: Step) {
        match step {
            Step::Create => {}
            Step::Scale => self.job.parallelism = 4,
            Step::Upgrade => self.job.rate = 600,
            Step::Suspend => self.job.suspend = true,
            Step::Resume => self.job.suspend = false,
            Step::Replace => self.job.cpu_m = 11,
            Step::Finish => self.job = self.job.to_the_end(),
            Step::Savepoint => return self.take_savepoint(),
            Step::DeleteSavepoint => return self.trial.api().delete(&self.savepoint()),
            Step::Delete => return self.trial.delete(&self.job.name),
            Step::CreateOther => return self.trial.declare(&self.other),
            Step::DeleteRunning => return self.trial.delete(&self.other.name),
        }
        self.trial.declare(&self.job);
    }

    fn savepoint(&self) -> String {
        savepoint_path(self.trial.namespace.name(), "kept")
    }

    fn take_savepoint(&self) {
        let savepoint = json!({
            "apiVersion": "streamforge.io/v1alpha1", "kind": "Savepoint", "metadata": {"name": "kept"},
            "spec": {"job": self.job.name, "deletionPolicy": "Delete"},
        });
        let taken = self
            .trial
            .api()
            .declare(&self.savepoint(), &savepoint.to_string());
        taken.expect("a savepoint can be declared");
    }

    /// Why the step is not done yet, if it is not.
    fn is_missing(&self, step: Step) -> Option<String> {
        let job = match step {
            Step::CreateOther | Step::DeleteRunning => &self.other,
            _ => &self.job,
        };
        match step {
            Step::Delete | Step::DeleteRunning => {
                let is_gone = self.trial.look(&job.name).is_gone();
                (!is_gone).then(|| "something is left".to_owned())
            }
            Step::Savepoint => {
                let savepoint = self.trial.api().read(&self.savepoint())?;
                let phase = &savepoint["status"]["phase"];
                (phase != "Completed").then(|| savepoint.to_string())
            }
            Step::DeleteSavepoint => {
                let savepoint = self.trial.api().read(&self.savepoint());
                savepoint.map(|it| it.to_string())
            }
            _ => self.trial.look(&job.name).differs(job, job),
        }
    }

    /// What there is after a step, as it is in every life.
    fn end_state(&self, step: Step) -> Value {
        match step {
            Step::Finish => self.trial.verify(&self.job),
            Step::Delete => self.check_store_is_empty(&self.job),
            Step::DeleteRunning => self.check_store_is_empty(&self.other),
            _ => {}
        }
        let own = self.trial.own_texts();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let jobs = [&self.job, &self.other];
        let jobs = jobs.map(|job| self.trial.look(&job.name).normal(&own));
        Value::from(jobs.to_vec())
    }

    /// Checkpoints go before their job does; a log names those that cannot.
    fn check_store_is_empty(&self, job: &Declared) {
        let left = bucket::checkpoints_below(&job.store());
        let is_told = self.trial.operator.log().contains("checkpoints are left");
        assert!(is_told || left.is_empty(), "{}: {left:?}", job.name);
    }

    /// Uids of the pods of the job.
    fn pods(&self) -> Vec<String> {
        self.trial.look(&self.job.name).pod_uids()
    }
}
