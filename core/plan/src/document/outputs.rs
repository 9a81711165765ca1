//! Outputs that `from` can name.

use std::fmt;

use streamforge_core::job_graph::{Column, Port};

/// The name of an output: a node's main output or one of its side outputs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OutputName {
    pub node: String,
    pub port: Port,
}

impl OutputName {
    /// `node`, `node.bad` or `node.late`; the unknown suffix if it is neither.
    pub fn parse(text: &str) -> Result<Self, &str> {
        let (node, port) = match text.split_once('.') {
            None => (text, Port::Main),
            Some((node, "bad")) => (node, Port::Bad),
            Some((node, "late")) => (node, Port::Late),
            Some((_, suffix)) => return Err(suffix),
        };
        Ok(Self {
            node: node.to_owned(),
            port,
        })
    }
}

impl fmt::Display for OutputName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.port {
            Port::Main => "",
            Port::Bad => ".bad",
            Port::Late => ".late",
        };
        write!(f, "{}{suffix}", self.node)
    }
}

/// What flows out of an output.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub columns: Vec<Column>,
    /// Columns that may be named but are not there unless named (`_file`).
    pub hidden: Vec<Column>,
    /// Whether rows are retracted.
    pub updating: bool,
    /// Whether rows have event time.
    pub event_time: bool,
    /// Whether the output ends by itself.
    pub bounded: bool,
}
