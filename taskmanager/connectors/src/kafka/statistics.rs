//! What a consumer says about itself several times a second.
//!
//! Owns: the few numbers of librdkafka's statistics that decide idleness and the end of a bounded
//! read. The statistics are the only place where a fetch position that passed control records, the
//! last stable offset and the high watermark are told together.
//!
//! Invariant T2: a partition is idle only when its fetch position has reached the last stable offset,
//! that equals the high watermark, and its leader, or the follower that it is fetched from, has answered lately. These offsets outlive a connection:
//! over a new one they count once a fetch was answered.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

/// A leader that answered within this time, in microseconds, is at hand. A fetch is answered at the
/// latest after `fetch.wait.max.ms`, which is held far below.
const ANSWERED_WITHIN_US: i64 = 3_000_000;

/// The state of a partition that is among those a broker is asked for.
const FETCHED: &str = "active";

/// The kind of request by which records are asked for.
const FETCH: &str = "Fetch";

/// Where one partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The last end of partition that was told, as an offset; control records are passed by it.
    /// Negative: none yet.
    pub told_end: i64,
    /// Last stable offset: before the first open transaction. Negative: not known.
    pub stable: i64,
    /// High watermark. Negative: not known.
    pub high: i64,
    /// Oldest offset kept. Negative: not known.
    pub low: i64,
    /// Whether its leader has answered lately; here and below the leader is the broker that it is fetched from.
    pub leader_answers: bool,
    /// Whether its leader is away, or was asked and has not answered lately. One of whom a reader with a full
    /// queue asks nothing neither answers nor is silent.
    pub leader_is_silent: bool,
    /// Over which connection it is fetched: the broker, and how often that was connected to.
    pub connection: (i32, u64),
    /// Fetches that were sent to that broker. A client sends none before the one before is answered.
    pub fetches_n: u64,
}

impl Place {
    /// All that is there was fetched, and nothing is held back by an open transaction (T2).
    pub fn has_nothing_more(&self) -> bool {
        self.leader_answers
            && self.high >= 0
            && self.told_end == self.stable
            && self.stable == self.high
    }

    /// All that may be read was fetched, and an open transaction hides the rest.
    pub fn waits_for_transaction(&self) -> bool {
        self.leader_answers && self.told_end == self.stable && self.stable < self.high
    }
}

#[derive(Deserialize)]
struct Statistics {
    #[serde(default)]
    brokers: HashMap<String, Broker>,
    #[serde(default)]
    topics: HashMap<String, Topic>,
}

#[derive(Deserialize)]
struct Broker {
    nodeid: i32,
    state: String,
    rxidle: i64,
    /// Requests without an answer.
    #[serde(default)]
    waitresp_cnt: i64,
    #[serde(default)]
    connects: u64,
    /// Requests that were sent, by kind.
    #[serde(default)]
    req: HashMap<String, u64>,
}

impl Broker {
    fn is_up(&self) -> bool {
        self.state == "UP"
    }

    fn answers(&self) -> bool {
        self.is_up() && (0..ANSWERED_WITHIN_US).contains(&self.rxidle)
    }
}

#[derive(Deserialize)]
struct Topic {
    topic: String,
    #[serde(default)]
    partitions: HashMap<String, Partition>,
}

#[derive(Deserialize)]
struct Partition {
    partition: i32,
    /// Of whom it is fetched.
    #[serde(default = "no_broker")]
    broker: i32,
    leader: i32,
    fetch_state: String,
    eof_offset: i64,
    lo_offset: i64,
    hi_offset: i64,
    ls_offset: i64,
}

fn no_broker() -> i32 {
    -1
}

/// Places by topic and partition.
pub type Places = BTreeMap<(String, i32), Place>;

/// Reads the statistics; `None` where they are not understood.
pub fn places(json: &[u8]) -> Option<Places> {
    let statistics: Statistics = serde_json::from_slice(json).ok()?;
    let those = |what: fn(&Broker) -> bool| -> Vec<i32> {
        let brokers = statistics.brokers.values().filter(|broker| what(broker));
        brokers.map(|broker| broker.nodeid).collect()
    };
    let answering = those(Broker::answers);
    let is_at_hand = |it: &Broker| it.answers() || (it.is_up() && it.waitresp_cnt == 0);
    let at_hand = those(is_at_hand);
    let mut places = Places::new();
    for topic in statistics.topics.into_values() {
        for partition in topic.partitions.into_values() {
            let mut brokers = statistics.brokers.values();
            let broker = brokers.find(|broker| broker.nodeid == partition.broker);
            // With `client.rack` that may be a follower (KIP-392), and the leader is then asked for nothing.
            let asked = match partition.broker {
                0.. => partition.broker,
                _ => partition.leader,
            };
            let place = Place {
                told_end: partition.eof_offset,
                stable: partition.ls_offset,
                high: partition.hi_offset,
                low: partition.lo_offset,
                leader_answers: answering.contains(&asked) && partition.fetch_state == FETCHED,
                leader_is_silent: !at_hand.contains(&asked),
                connection: (partition.broker, broker.map_or(0, |it| it.connects)),
                fetches_n: broker
                    .and_then(|it| it.req.get(FETCH).copied())
                    .unwrap_or(0),
            };
            places.insert((topic.topic.clone(), partition.partition), place);
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(told_end: i64, stable: i64, high: i64) -> Place {
        Place {
            told_end,
            stable,
            high,
            low: 0,
            leader_answers: true,
            leader_is_silent: false,
            connection: (1, 1),
            fetches_n: 9,
        }
    }

    /// Attack 33: in a topic written with transactions the last *record* is never at the high
    /// watermark; the told end passes the control record behind it.
    #[test]
    fn attack_33_a_topic_written_with_transactions_can_be_idle_t2() {
        assert!(place(11, 11, 11).has_nothing_more());
        assert!(!place(10, 11, 11).has_nothing_more(), "not fetched yet");
        assert!(place(0, 0, 0).has_nothing_more(), "an empty partition");
    }

    #[test]
    fn an_open_transaction_is_unread_input_t2() {
        let open = place(10, 10, 15);

        assert!(!open.has_nothing_more());
        assert!(open.waits_for_transaction());
    }

    /// Attack 32: its leader is away.
    #[test]
    fn attack_32_an_unreachable_partition_is_not_idle_t2() {
        let away = Place {
            leader_answers: false,
            leader_is_silent: true,
            ..place(11, 11, 11)
        };

        assert!(!away.has_nothing_more());
        assert!(
            !place(-1001, -1001, -1001).has_nothing_more(),
            "nothing known"
        );
    }

    /// KIP-392: with `client.rack` a follower is asked, and the leader only for metadata now and then.
    #[test]
    fn partition_that_is_fetched_from_a_follower_can_be_idle_t2() {
        let of = |follower: &str| {
            let json = format!(
                r#"{{"brokers":{{
                    "a:1/1":{{"nodeid":1,"state":"UP","rxidle":30000000,"waitresp_cnt":0}},
                    "b:1/2":{{"nodeid":2,{follower},"req":{{"Fetch":10}}}}}},
                  "topics":{{"t":{{"topic":"t","partitions":{{
                    "0":{{"partition":0,"broker":2,"leader":1,"fetch_state":"active","eof_offset":5,"lo_offset":0,"hi_offset":5,"ls_offset":5}}}}}}}}}}"#
            );
            places(json.as_bytes()).unwrap()[&("t".to_owned(), 0)]
        };

        let answers = of(r#""state":"UP","rxidle":50000"#);
        assert!(answers.has_nothing_more(), "{answers:?}");
        assert_eq!((answers.connection.0, answers.fetches_n), (2, 10));
        let away = of(r#""state":"DOWN","rxidle":50000"#);
        assert!(!away.has_nothing_more() && away.leader_is_silent);
    }

    #[test]
    fn statistics_of_librdkafka_are_read() {
        let json = br#"{"name":"x","ts":1,"brokers":{
            "a:1/1":{"name":"a:1/1","nodeid":1,"state":"UP","rxidle":20000,"connects":3,"req":{"Fetch":8,"Metadata":5}},
            "b:1/2":{"name":"b:1/2","nodeid":2,"state":"UP","rxidle":9000000,"waitresp_cnt":1},
            "c:1/3":{"name":"c:1/3","nodeid":3,"state":"DOWN","rxidle":10},
            "d:1/4":{"name":"d:1/4","nodeid":4,"state":"UP","rxidle":9000000,"waitresp_cnt":0}},
          "topics":{"t":{"topic":"t","partitions":{
            "0":{"partition":0,"broker":1,"leader":1,"fetch_state":"active","eof_offset":5,"lo_offset":1,"hi_offset":7,"ls_offset":5},
            "1":{"partition":1,"broker":2,"leader":2,"fetch_state":"active","eof_offset":5,"lo_offset":1,"hi_offset":7,"ls_offset":5},
            "2":{"partition":2,"broker":3,"leader":3,"fetch_state":"active","eof_offset":5,"lo_offset":1,"hi_offset":7,"ls_offset":5},
            "3":{"partition":3,"broker":4,"leader":4,"fetch_state":"active","eof_offset":5,"lo_offset":1,"hi_offset":7,"ls_offset":5},
            "4":{"partition":4,"broker":-1,"leader":-1,"fetch_state":"active","eof_offset":5,"lo_offset":1,"hi_offset":7,"ls_offset":5},
            "5":{"partition":5,"broker":1,"leader":1,"fetch_state":"validate-epoch-wait","eof_offset":5,"lo_offset":1,"hi_offset":5,"ls_offset":5},
            "-1":{"partition":-1,"broker":-1,"leader":-1,"fetch_state":"none","eof_offset":-1001,"lo_offset":-1001,"hi_offset":-1001,"ls_offset":-1001}}}}}"#;

        let places = places(json).unwrap();

        let first = places.get(&("t".to_owned(), 0)).unwrap();
        assert_eq!(
            (first.told_end, first.stable, first.high, first.low),
            (5, 5, 7, 1)
        );
        assert_eq!((first.connection, first.fetches_n), ((1, 3), 8));
        let leaders = (0..6).map(|p| places.get(&("t".to_owned(), p)).unwrap());
        let leaders: Vec<(bool, bool)> = leaders
            .map(|it| (it.leader_answers, it.leader_is_silent))
            .collect();
        assert_eq!(leaders[0], (true, false), "up and lately");
        assert_eq!(leaders[1], (false, true), "asked, and long silent");
        assert_eq!(leaders[2], (false, true), "down");
        assert_eq!(leaders[3], (false, false), "long not asked");
        assert_eq!(leaders[4], (false, true), "there is none");
        assert_eq!(leaders[5], (false, false), "asked of nobody yet");
        assert!(super::places(b"{").is_none());
    }
}
