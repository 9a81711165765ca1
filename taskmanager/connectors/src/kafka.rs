//! Kafka topics, as source and as sink.
//!
//! Owns: reading partitions at checkpointed offsets, and output that becomes visible by transactions
//! which carry their own marker. Start at: [`reader::KafkaReader`], [`publisher::KafkaPublisher`];
//! what can be decided without a broker is in [`marker`] and [`split`]. For operators: README.md
//! beside this file's folder.
//!
//! Never a member of a consumer group: a split is where its checkpoint says, not where a group is.

pub mod brokers;
pub mod check;
pub mod client;
pub mod config;
pub mod edge;
pub mod encode;
pub mod enumerator;
pub mod identity;
pub mod keep;
pub mod layout;
pub mod lookup;
pub mod marker;
pub mod murmur2;
pub mod output;
pub mod publisher;
pub mod reader;
pub mod records;
pub mod split;
pub mod staged;
pub mod statistics;
pub mod straight;
pub mod topic_settings;
pub mod transaction;
pub mod writer;
