//! The jobs that are simulated.
//!
//! Owns: documents, planned by the real planner. What a job *means* is written down
//! a second time as [`Meaning`], for the oracle, which knows no plan. Start at: [`shapes`].

use std::sync::OnceLock;

use streamforge_core::job_graph::{JobGraph, OperatorKind};

use crate::input::Record;

/// A second.
pub const SECOND: i64 = 1_000_000;

/// `maxOutOfOrderness` of every source.
pub const DISORDER: i64 = 3 * SECOND;

/// Event time of the last word of a partition, which closes every window in front of it.
pub const FAR: i64 = 1_000_000 * SECOND;

/// Idle after, in simulated milliseconds; only where a shape is unbounded.
const IDLE_TIMEOUT_MS: u64 = 60;

/// Which windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Tumbling if both are the same.
    Hopping {
        /// Length.
        size: i64,
        /// Distance of starts.
        slide: i64,
    },
    /// Records of one key less than this apart.
    Session {
        /// Distance.
        gap: i64,
    },
}

/// What a job computes.
#[derive(Clone, Copy, Debug)]
pub enum Meaning {
    /// `k, 100 / v`: rows with `v = 0` are bad.
    Quotients,
    /// Count, sum, least, first and number of different `v`, by `k` or over all.
    Windows {
        /// Which.
        window: Window,
        /// Whether grouped by `k`.
        keyed: bool,
        /// `Once` results summed up once more in tumbling windows of this size.
        outer: Option<i64>,
    },
}

/// One kind of job.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// For people.
    pub name: &'static str,
    /// Its sources are the first of `a` and `b`.
    pub sources_n: usize,
    /// The document's transforms; the last one is the output.
    transforms: &'static [&'static str],
    /// Name of the output's node.
    out: &'static str,
    /// The aggregate whose `.late` is read.
    late: Option<&'static str>,
    changelog: bool,
    /// Sources pause, and know no end.
    pub unbounded: bool,
    /// Sources may be idle.
    pub idles: bool,
    /// Sources are topics.
    pub kafka: bool,
    /// What it computes.
    pub meaning: Meaning,
}

const fn tumbling(size: i64) -> Window {
    Window::Hopping { size, slide: size }
}

const fn windows(window: Window) -> Meaning {
    Meaning::Windows {
        window,
        keyed: true,
        outer: None,
    }
}

macro_rules! aggregate {
    ($from:literal, $group:literal, $window:literal, $more:literal) => {
        concat!(
            "{name: agg, from: ",
            $from,
            ", aggregate: {groupBy: [",
            $group,
            "], window: {",
            $window,
            "}, select: [\"count(*) AS n\", \"sum(v) AS s\", \"min(v) AS lo\", ",
            "\"first_value(v) AS f\", \"count(DISTINCT v) AS d\"]",
            $more,
            "}}"
        )
    };
}

const PLAIN: Shape = Shape {
    name: "tumbling",
    sources_n: 1,
    transforms: &[aggregate!("a", "k", "tumbling: {size: 10s}", "")],
    out: "agg",
    late: Some("agg"),
    changelog: false,
    unbounded: false,
    idles: false,
    kafka: false,
    meaning: windows(tumbling(10 * SECOND)),
};

const SHAPES: &[Shape] = &[
    PLAIN,
    Shape {
        name: "hopping",
        transforms: &[aggregate!("a", "k", "hopping: {size: 12s, slide: 4s}", "")],
        meaning: windows(Window::Hopping {
            size: 12 * SECOND,
            slide: 4 * SECOND,
        }),
        ..PLAIN
    },
    Shape {
        name: "session",
        transforms: &[aggregate!("a", "k", "session: {gap: 4s}", "")],
        meaning: windows(Window::Session { gap: 4 * SECOND }),
        ..PLAIN
    },
    Shape {
        name: "on time with lateness",
        transforms: &[aggregate!(
            "a",
            "k",
            "tumbling: {size: 10s}",
            ", allowedLateness: 5s"
        )],
        changelog: true,
        ..PLAIN
    },
    Shape {
        name: "once",
        transforms: &[aggregate!(
            "a",
            "k",
            "tumbling: {size: 10s}",
            ", allowedLateness: 5s, emit: Once"
        )],
        ..PLAIN
    },
    Shape {
        name: "hopping on time with lateness",
        transforms: &[aggregate!(
            "a",
            "k",
            "hopping: {size: 12s, slide: 4s}",
            ", allowedLateness: 6s"
        )],
        changelog: true,
        meaning: windows(Window::Hopping {
            size: 12 * SECOND,
            slide: 4 * SECOND,
        }),
        ..PLAIN
    },
    Shape {
        name: "session with lateness",
        transforms: &[aggregate!(
            "a",
            "k",
            "session: {gap: 4s}",
            ", allowedLateness: 5s"
        )],
        changelog: true,
        meaning: windows(Window::Session { gap: 4 * SECOND }),
        ..PLAIN
    },
    Shape {
        name: "session once",
        transforms: &[aggregate!(
            "a",
            "k",
            "session: {gap: 4s}",
            ", allowedLateness: 5s, emit: Once"
        )],
        meaning: windows(Window::Session { gap: 4 * SECOND }),
        ..PLAIN
    },
    Shape {
        name: "window over window",
        transforms: &[
            aggregate!(
                "a",
                "k",
                "tumbling: {size: 10s}",
                ", allowedLateness: 5s, emit: Once"
            ),
            "{name: outer, from: agg, aggregate: {groupBy: [k], window: {tumbling: {size: 30s}}, \
             select: [\"sum(n) AS n\", \"count(*) AS c\"]}}",
        ],
        out: "outer",
        meaning: Meaning::Windows {
            window: tumbling(10 * SECOND),
            keyed: true,
            outer: Some(30 * SECOND),
        },
        ..PLAIN
    },
    Shape {
        name: "global",
        transforms: &[aggregate!("a", "", "tumbling: {size: 10s}", "")],
        meaning: Meaning::Windows {
            window: tumbling(10 * SECOND),
            keyed: false,
            outer: None,
        },
        ..PLAIN
    },
    Shape {
        name: "union",
        sources_n: 2,
        transforms: &[
            "{name: both, union: [a, b]}",
            aggregate!("both", "k", "tumbling: {size: 10s}", ""),
        ],
        ..PLAIN
    },
    Shape {
        name: "idle splits",
        unbounded: true,
        idles: true,
        ..PLAIN
    },
    Shape {
        name: "idle splits, session",
        unbounded: true,
        idles: true,
        transforms: &[aggregate!(
            "a",
            "k",
            "session: {gap: 4s}",
            ", allowedLateness: 5s"
        )],
        changelog: true,
        meaning: windows(Window::Session { gap: 4 * SECOND }),
        ..PLAIN
    },
    Shape {
        name: "idle union",
        sources_n: 2,
        unbounded: true,
        idles: true,
        transforms: &[
            "{name: both, union: [a, b]}",
            aggregate!(
                "both",
                "k",
                "hopping: {size: 12s, slide: 4s}",
                ", allowedLateness: 6s"
            ),
        ],
        changelog: true,
        meaning: windows(Window::Hopping {
            size: 12 * SECOND,
            slide: 4 * SECOND,
        }),
        ..PLAIN
    },
    Shape {
        name: "kafka",
        unbounded: true,
        kafka: true,
        ..PLAIN
    },
    Shape {
        name: "kafka, idle",
        unbounded: true,
        idles: true,
        kafka: true,
        transforms: &[aggregate!(
            "a",
            "k",
            "hopping: {size: 12s, slide: 4s}",
            ", allowedLateness: 6s"
        )],
        changelog: true,
        meaning: windows(Window::Hopping {
            size: 12 * SECOND,
            slide: 4 * SECOND,
        }),
        ..PLAIN
    },
    Shape {
        name: "kafka, session",
        unbounded: true,
        kafka: true,
        transforms: &[aggregate!(
            "a",
            "k",
            "session: {gap: 4s}",
            ", allowedLateness: 5s"
        )],
        changelog: true,
        meaning: windows(Window::Session { gap: 4 * SECOND }),
        ..PLAIN
    },
    Shape {
        name: "kafka, idle union",
        sources_n: 2,
        unbounded: true,
        idles: true,
        kafka: true,
        transforms: &[
            "{name: both, union: [a, b]}",
            aggregate!("both", "k", "tumbling: {size: 10s}", ""),
        ],
        ..PLAIN
    },
    Shape {
        name: "kafka to its end",
        kafka: true,
        ..PLAIN
    },
    Shape {
        name: "quotients",
        transforms: &["{name: q, from: a, select: [\"k\", \"100 / v AS q\"]}"],
        out: "q",
        late: None,
        meaning: Meaning::Quotients,
        ..PLAIN
    },
];

/// All kinds of jobs, with their plans.
pub fn shapes() -> &'static [(Shape, JobGraph)] {
    static PLANNED: OnceLock<Vec<(Shape, JobGraph)>> = OnceLock::new();
    PLANNED.get_or_init(|| SHAPES.iter().map(|shape| (*shape, shape.plan())).collect())
}

/// The kind of this name.
pub fn shape(name: &str) -> &'static (Shape, JobGraph) {
    let found = shapes().iter().find(|(shape, _)| shape.name == name);
    found.unwrap_or_else(|| panic!("no shape is called {name}"))
}

/// Name of the sink of the output.
pub const OUT: &str = "out";
/// Name of the sink of late rows.
pub const LATE: &str = "late_rows";
/// Name of the sinks of bad rows.
pub const BAD: &[&str] = &["bad_a", "bad_b", "bad_out"];

impl Shape {
    /// The sources' names.
    pub fn sources(&self) -> &'static [&'static str] {
        ["a", "b"].get(..self.sources_n).unwrap_or_default()
    }

    /// What ends a source that has no end.
    pub fn last_word(&self) -> Option<Record> {
        let has_one = self.kafka && self.unbounded;
        has_one.then(|| Record {
            ts: Some(FAR),
            k: Some("end".to_owned()),
            v: 1,
            broken: false,
        })
    }

    fn document(&self) -> String {
        let mut text = "apiVersion: streamforge.io/v1alpha1\nkind: StreamJob\n\
                        metadata: {name: sim}\nspec:\n  maxParallelism: 8\n  sources:\n"
            .to_owned();
        for name in self.sources() {
            let end_at = if self.unbounded {
                ""
            } else {
                ", endAt: Latest"
            };
            let connector = if self.kafka {
                format!("kafka: {{bootstrapServers: \"sim:9092\", topics: [{name}]{end_at}}}")
            } else {
                format!("file: {{path: /sim/{name}.ndjson}}")
            };
            text += &format!(
                "  - name: {name}\n    {connector}\n    \
                 format: {{json: {{}}}}\n    schema:\n    - {{name: k, type: TEXT}}\n    \
                 - {{name: v, type: BIGINT}}\n    \
                 - {{name: ts, type: TIMESTAMP, parse: EpochMicros}}\n    \
                 eventTime: {{column: ts, maxOutOfOrderness: 3s}}\n"
            );
        }
        text += "  transforms:\n";
        for transform in self.transforms {
            text += &format!("  - {transform}\n");
        }
        text += "  sinks:\n";
        let sink = |name: &str, from: &str, more: &str| {
            format!(
                "  - {{name: {name}, from: {from}, file: {{path: /sim/{name}/}}, \
                 format: {{json: {{}}}}{more}}}\n"
            )
        };
        text += &sink(
            OUT,
            self.out,
            if self.changelog {
                ", changelog: Retract"
            } else {
                ""
            },
        );
        for name in self.sources() {
            text += &sink(&format!("bad_{name}"), &format!("{name}.bad"), "");
        }
        match self.late {
            Some(node) => text += &sink(LATE, &format!("{node}.late"), ""),
            None => text += &sink("bad_out", &format!("{}.bad", self.out), ""),
        }
        text
    }

    fn plan(&self) -> JobGraph {
        let document = self.document();
        let loaded = streamforge_plan::load(&document, self.name).unwrap_or_else(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            panic!("{}\n{document}", lines.join("\n"))
        });
        let mut graph = streamforge_plan::plan(&loaded);
        graph.bounded = !self.unbounded;
        for operator in graph
            .stages
            .iter_mut()
            .flat_map(|stage| &mut stage.operators)
        {
            match &mut operator.kind {
                OperatorKind::Source(source) => {
                    source.bounded = !self.unbounded;
                    source.origin = true;
                    if let Some(time) = &mut source.event_time {
                        time.idle_timeout_ms = self.idles.then_some(IDLE_TIMEOUT_MS);
                    }
                }
                OperatorKind::WindowPartial(spec) | OperatorKind::WindowFinal(spec) => {
                    spec.late_log = true;
                }
                _ => {}
            }
        }
        graph
    }
}
