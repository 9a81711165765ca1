//! How rows, watermarks and idleness pass through the chain.
//!
//! Owns: the order: what an operator sent is handed on before anything else happens, a watermark
//! follows the rows that it released (T5), and nothing is sent while receivers are joined (T6).

use streamforge_core::event_time::Watermark;
use streamforge_core::job_graph::{Exchange, Port};
use streamforge_core::key_group::Assignment;

use super::build::Consumer;
use super::out_edge::OutEdge;
use super::{Chained, Effect, Element, TaskCore, route};
use crate::batch::StreamBatch;
use crate::error::Error;
use crate::operators::count;
use crate::watermark::Promise;

impl TaskCore {
    /// Hands queued batches to their operators, in order, until none is left.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        while let Some((operator, input, batch)) = self.work.pop_front() {
            let Some(node) = self.nodes.get_mut(operator) else {
                continue;
            };
            node.traffic.bytes_in += batch.bytes_n();
            match &mut node.chained {
                Chained::Operator(inner) => inner.on_batch(input, batch, &mut node.outputs)?,
                Chained::Sink(_) => {
                    node.sink_counters.rows_in += count(batch.len());
                    node.sink_counters.passed += count(batch.len());
                    self.effects.push(Effect::Write { operator, batch });
                }
                Chained::Source(_) => {}
            }
            self.collect(operator)?;
        }
        Ok(())
    }

    /// Queues what an operator sent for its consumers.
    pub(super) fn collect(&mut self, operator: usize) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        for (port, batch) in node.outputs.take() {
            if port == Port::Main {
                node.out_rows += count(batch.len());
                node.traffic.bytes_out += batch.bytes_n();
            }
            let consumers = node.consumers.iter().filter(|(read, _)| *read == port);
            for (_, consumer) in consumers {
                match *consumer {
                    Consumer::Operator { operator, input } => {
                        self.work.push_back((operator, input, batch.clone()));
                    }
                    Consumer::Edge(edge) => {
                        if let Some(edge) = self.edges.get(edge) {
                            send(edge, batch.clone(), &self.assignment, &mut self.effects)
                                .map_err(|source| Error::Kernel {
                                    operator: node.uid.0.clone(),
                                    source,
                                })?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries watermarks and idleness through the chain, in topological order.
    pub(super) fn propagate(&mut self) -> Result<(), Error> {
        self.propagate_from(0)
    }

    pub(super) fn propagate_from(&mut self, first: usize) -> Result<(), Error> {
        // Before the receivers are joined nothing may be sent; the last answer calls this again.
        if !self.started || !self.takes_rows() || self.hand_over.is_frozen() {
            return Ok(());
        }
        for operator in first..self.nodes.len() {
            self.advance(operator)?;
            if !self.takes_rows() {
                return Ok(());
            }
        }
        if !self.ended
            && self
                .nodes
                .iter()
                .all(|node| node.watermark == Watermark::END)
        {
            self.ended = true;
            self.effects.push(Effect::Ended);
        }
        Ok(())
    }

    /// Brings one operator to what its inputs promise.
    fn advance(&mut self, operator: usize) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        let promise = match &node.chained {
            Chained::Source(source) => source.promise(),
            _ => node.lanes.promise(),
        };
        let (promised, idle) = match promise {
            Promise::Watermark(watermark) => (watermark, false),
            Promise::Idle(watermark) => (watermark, true),
        };
        let target = promised.max(node.floor);
        if node.watermark.advance(target) {
            let watermark = node.watermark;
            let sent = match &mut node.chained {
                Chained::Operator(inner) => inner.on_watermark(watermark, &mut node.outputs)?,
                Chained::Source(_) | Chained::Sink(_) => watermark,
            };
            node.sent.advance(sent);
            self.collect(operator)?;
            self.run()?;
        }
        if idle {
            self.flush_operator(operator)?;
            // What it reached counts, for those behind it too, before it is left out.
            self.feed_watermark(operator);
        }
        self.set_idleness(operator, idle);
        self.feed_watermark(operator);
        Ok(())
    }

    fn set_idleness(&mut self, operator: usize, idle: bool) {
        let Some(node) = self.nodes.get_mut(operator) else {
            return;
        };
        let changed = node.idle != idle;
        node.idle = idle;
        let edges_lag = self
            .edges
            .iter()
            .any(|edge| edge.operator == operator && edge.is_idle() != idle && !edge.is_joining());
        if changed || edges_lag {
            self.feed_idleness(operator);
        }
    }

    /// Tells an operator's consumers that it is idle, or that it comes back.
    fn feed_idleness(&mut self, operator: usize) {
        let Some(node) = self.nodes.get(operator) else {
            return;
        };
        let (idle, sent, feeds) = (node.idle, node.sent, node.feeds.clone());
        for (consumer, lane) in feeds {
            if let Some(consumer) = self.nodes.get_mut(consumer) {
                if idle {
                    consumer.lanes.on_idle(lane);
                } else {
                    consumer.lanes.on_watermark(lane, sent);
                }
            }
        }
        for idx in 0..self.edges.len() {
            let Some(edge) = self.edges.get_mut(idx) else {
                continue;
            };
            if edge.operator != operator || edge.is_joining() || edge.is_idle() == idle {
                continue;
            }
            if idle {
                edge.set_idle();
                let (edge, receivers) = (edge.edge, edge.receivers.clone());
                for to in receivers {
                    self.effects.push(Effect::Send {
                        edge,
                        to,
                        element: Element::Idle,
                    });
                }
            } else {
                self.join(idx);
            }
        }
    }

    /// Tells an operator's consumers its watermark, where it is news.
    fn feed_watermark(&mut self, operator: usize) {
        let Some(node) = self.nodes.get(operator) else {
            return;
        };
        if node.idle {
            return;
        }
        let (sent, feeds) = (node.sent, node.feeds.clone());
        for (consumer, lane) in feeds {
            if let Some(consumer) = self.nodes.get_mut(consumer) {
                consumer.lanes.on_watermark(lane, sent);
            }
        }
        for edge in self
            .edges
            .iter_mut()
            .filter(|edge| edge.operator == operator)
        {
            if edge.advance(sent) {
                for to in &edge.receivers {
                    let element = Element::Watermark(sent);
                    self.effects.push(Effect::Send {
                        edge: edge.edge,
                        to: *to,
                        element,
                    });
                }
            }
        }
    }

    fn flush_operator(&mut self, operator: usize) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        if let Chained::Operator(inner) = &mut node.chained {
            if let Some(watermark) = inner.flush(&mut node.outputs)? {
                node.sent.advance(watermark);
            }
            self.collect(operator)?;
            self.run()?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        for operator in 0..self.nodes.len() {
            self.advance(operator)?;
            self.flush_operator(operator)?;
            self.feed_watermark(operator);
        }
        Ok(())
    }
}

fn send(
    edge: &OutEdge,
    batch: StreamBatch,
    assignment: &Assignment,
    effects: &mut Vec<Effect>,
) -> Result<(), arrow::error::ArrowError> {
    let parts = match &edge.exchange {
        Exchange::Forward => edge
            .receivers
            .first()
            .map(|to| vec![(*to, batch)])
            .unwrap_or_default(),
        Exchange::KeyGroup { columns } => route::by_key_group(batch, columns, assignment)?,
    };
    for (to, batch) in parts {
        effects.push(Effect::Send {
            edge: edge.edge,
            to,
            element: Element::Batch(batch),
        });
    }
    Ok(())
}
