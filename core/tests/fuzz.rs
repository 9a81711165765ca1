//! Fuzz targets of the control objects: nothing but an error from bytes of any kind, and what is
//! read is written so that it reads the same (C8).
//!
//! An input is the JSON within the envelope. The envelope's checksum would keep every mutation out,
//! so it is made anew around each; that no other envelope is accepted is checked beside.

use std::fmt::Debug;

use serde::{Deserialize, Serialize};
use streamforge_core::causes::with_causes;
use streamforge_core::frame;
use streamforge_core::key_group::MAX_PARALLELISM;
use streamforge_core::manifest::{Counters, Head, Manifest, Plan, Versioned, decode, encode};

#[path = "../../e2e/fuzz/harness.rs"]
mod harness;

use harness::Target;

/// Names of fields and variants, and what holds values together.
const WORDS: &[&str] = &[
    "null",
    "true",
    "false",
    "{}",
    "[]",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"\"",
    "\\u0000",
    "\\ud800",
    "\"At\":",
    "\"End\"",
    "\"t1.0\"",
    "\"Ordinary\"",
    "\"newest\":null",
    "\"rows\":",
    "\"TimestampTz\"",
    "{\"List\":\"BigInt\"}",
    "{\"Decimal\":[38,10]}",
    "\"Project\"",
    "\"Session\"",
    "1.5",
    "-1",
];

/// What is read, once directly and once after it was written again.
fn check<T>(kind: frame::Kind, json: &[u8]) -> Result<(T, T), String>
where
    T: Serialize + Versioned + for<'de> Deserialize<'de> + PartialEq + Debug,
{
    let object = frame::encode(kind, json);
    let mut damaged = object.clone();
    let at = json.len() % object.len();
    damaged[at] ^= 1;
    assert!(
        decode::<T>(kind, &damaged).is_err(),
        "byte {at} was changed"
    );
    assert!(decode::<T>(kind, json).is_err(), "no envelope");
    let value: T = decode(kind, &object).map_err(|error| with_causes(&error))?;
    let again = decode(kind, &encode(kind, &value)).expect("it was just written");
    assert_eq!(value, again);
    Ok((value, again))
}

fn target(name: &'static str) -> Target {
    Target {
        name,
        words: WORDS,
        rounds_n: 20_000,
        bytes_max: 64 << 10,
    }
}

#[test]
fn fuzz_head_is_read_as_it_is_written_or_refused_c8() {
    target("head").run(|json| {
        let (head, _) = check::<Head>(frame::HEAD, json)?;
        let groups_n = head.assignment.groups_n();
        assert!(groups_n <= MAX_PARALLELISM, "{groups_n}");
        Ok(())
    });
}

#[test]
fn fuzz_manifest_is_read_as_it_is_written_or_refused_c8() {
    target("manifest").run(|json| {
        let (manifest, _) = check::<Manifest>(frame::MANIFEST, json)?;
        // Counters of any size are added up and compared.
        let mut sum = Counters::default();
        for counters in manifest.ledger.values() {
            sum.add(counters);
            let fates = [
                counters.passed,
                counters.filtered,
                counters.late,
                counters.bad,
            ];
            let fates: u128 = fates.into_iter().map(u128::from).sum();
            assert_eq!(counters.balances(), u128::from(counters.rows_in) == fates);
        }
        Ok(())
    });
}

#[test]
fn fuzz_plan_is_read_as_it_is_written_or_refused_c8() {
    target("plan").run(|json| {
        let (plan, again) = check::<Plan>(frame::PLAN, json)?;
        assert_eq!(plan.hash(), again.hash());
        Ok(())
    });
}
