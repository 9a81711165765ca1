//! The processes of one job: a coordinator and three task managers.
//!
//! Owns: starting them in one of two ways, killing some of them, starting those anew. Never looks at
//! what the job writes.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use streamforge_process::{Ended, Random, Running, Workspace, free_address};

/// Task managers of a job.
const TASK_MANAGERS_N: usize = 3;

/// Slots of each: two of them can run any parallelism that is asked for.
const SLOTS_N: u32 = 2;

/// Highest parallelism.
const PARALLELISM_MAX: u64 = 4;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// One task manager.
    TaskManager,
    /// Two or all task managers at once.
    Several,
    /// The coordinator, while the tasks run on.
    Coordinator,
    /// All processes at once; resumed at another parallelism.
    Everything,
}

/// What the job was doing when somebody was killed, by the coordinator's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// It was starting, restoring or adopting.
    Restoring,
    /// Key groups were moving.
    HandingOver,
    /// Checkpoints and publishing went on.
    Working,
}

/// Task managers that were started by hand.
struct ByHand {
    address: SocketAddr,
    task_managers: Vec<Running>,
}

/// The processes.
pub(super) struct Cluster<'a> {
    workspace: &'a Workspace,
    coordinator: Option<Running>,
    /// None: the coordinator has started them, and they end with it.
    by_hand: Option<ByHand>,
}

impl<'a> Cluster<'a> {
    /// Starts a job in one of the two ways.
    pub fn start(workspace: &'a Workspace, random: &mut Random) -> Self {
        let by_hand = (random.below(2) == 0).then(|| ByHand {
            address: free_address(),
            task_managers: Vec::new(),
        });
        let mut cluster = Self {
            workspace,
            coordinator: None,
            by_hand,
        };
        cluster.start_all(random);
        cluster
    }

    fn start_all(&mut self, random: &mut Random) {
        self.start_coordinator(random);
        if let Some(by_hand) = &mut self.by_hand {
            by_hand.task_managers.clear();
            for n in 0..TASK_MANAGERS_N {
                by_hand.task_managers.push(by_hand.start(self.workspace, n));
            }
        }
    }

    fn start_coordinator(&mut self, random: &mut Random) {
        let parallelism = (1 + random.below(PARALLELISM_MAX)).to_string();
        let listen = self.by_hand.as_ref().map(|it| it.address.to_string());
        let task_managers_n = TASK_MANAGERS_N.to_string();
        let place = match &listen {
            Some(address) => ["--listen", address],
            None => ["--task-managers", &task_managers_n],
        };
        let arguments = [place[0], place[1], "--parallelism", &parallelism];
        self.coordinator = Some(self.workspace.start(&arguments));
    }

    fn coordinator(&mut self) -> &mut Running {
        self.coordinator
            .as_mut()
            .expect("it is started anew at once")
    }

    /// Lets it run for a while; false: the job has ended.
    pub fn lives_for(&mut self, time: Duration) -> bool {
        if time == Duration::from_millis(u64::MAX) {
            return false;
        }
        self.coordinator().let_run(time);
        !self.coordinator().has_ended()
    }

    /// Asks for another parallelism; a job that cannot be asked just now is not.
    pub fn scale(&mut self, random: &mut Random) {
        let to = (1 + random.below(PARALLELISM_MAX)).to_string();
        let _answer = self.workspace.output("scale", &["--parallelism", &to]);
        self.coordinator()
            .let_run(Duration::from_millis(random.below(150)));
    }

    /// What the job is doing.
    pub fn moment(&mut self) -> Moment {
        let log = self.coordinator().log();
        log.lines().fold(Moment::Restoring, |before, line| {
            let said = |words: &str| line.contains(words);
            if said("took over") || said("attempt failed") {
                Moment::Restoring
            } else if said("handing over key groups") {
                Moment::HandingOver
            } else if said(" running epoch")
                || said("adopted the running attempt")
                || said("handed over")
                || said("hand-over withdrawn")
            {
                Moment::Working
            } else {
                before
            }
        })
    }

    /// Kills somebody.
    pub fn kill(&mut self, random: &mut Random) -> Victim {
        let victim = match random.below(100) {
            0..=39 => Victim::TaskManager,
            40..=59 => Victim::Several,
            60..=79 if self.by_hand.is_some() => Victim::Coordinator,
            _ => Victim::Everything,
        };
        let several = 2 + random.below(TASK_MANAGERS_N as u64 - 1) as usize;
        let killed_n = match victim {
            Victim::TaskManager => self.kill_task_managers(1, random),
            Victim::Several => self.kill_task_managers(several, random),
            Victim::Coordinator => 0,
            Victim::Everything => self.kill_task_managers(TASK_MANAGERS_N, random),
        };
        match (victim, killed_n) {
            (Victim::TaskManager, 1) | (Victim::Several, 2..) => return victim,
            (Victim::Several, 1) => return Victim::TaskManager,
            _ => self.kill_coordinator(),
        }
        match victim {
            Victim::Coordinator => victim,
            // There were no task managers yet.
            _ => Victim::Everything,
        }
    }

    fn kill_coordinator(&mut self) {
        if let Some(coordinator) = self.coordinator.take() {
            coordinator.kill();
        }
    }

    fn kill_task_managers(&mut self, n: usize, random: &mut Random) -> usize {
        let mut pids: Vec<Pid> = match &self.by_hand {
            Some(by_hand) => by_hand.task_managers.iter().map(Running::pid).collect(),
            None => self.coordinator().children(),
        };
        let n = n.min(pids.len());
        for _ in 0..n {
            let at = random.below(pids.len() as u64) as usize;
            // One that has just ended is as good as killed.
            let _gone = kill_process(pids.swap_remove(at), Signal::KILL);
        }
        n
    }

    /// Starts anew who was killed, sooner or later.
    pub fn mend(&mut self, victim: Victim, random: &mut Random) {
        let pause = Duration::from_millis(random.below(400));
        match victim {
            Victim::Everything => self.start_all(random),
            Victim::Coordinator => {
                std::thread::sleep(pause);
                self.start_coordinator(random);
            }
            // Those that a coordinator started, it starts anew.
            Victim::TaskManager | Victim::Several => {
                self.coordinator().let_run(pause);
                if let Some(by_hand) = &mut self.by_hand {
                    by_hand.replace_dead(self.workspace);
                }
            }
        }
    }

    /// Waits for the job's end.
    pub fn end(mut self) -> Ended {
        self.coordinator.take().expect("it is running").wait()
    }
}

impl ByHand {
    fn start(&self, workspace: &Workspace, n: usize) -> Running {
        workspace.start_task_manager(&format!("tm-{n}"), self.address, SLOTS_N)
    }

    fn replace_dead(&mut self, workspace: &Workspace) {
        for n in 0..self.task_managers.len() {
            if self.task_managers[n].has_ended() {
                self.task_managers[n] = self.start(workspace, n);
            }
        }
    }
}
