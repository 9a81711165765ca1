//! One loop for every fuzz target. A crate that owns a decoder includes this file into a test.
//!
//! Owns: the corpus in `testdata/fuzz/<target>/`, the mutations, what holds for every decoder
//! (no panic, bounded memory and time, errors without a backtrace), and keeping an input that
//! fails. Knows no format: what a decoder owes beyond that is asserted by the closure it is given.
//! Start at: [`Target::run`].
//!
//! Without `FUZZ_SECONDS` a run is [`Target::rounds_n`] inputs from a fixed seed, the same every
//! time. With it a run goes on for so long, from a seed of its own or `FUZZ_SEED`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// What one input may add to the address space. Far above what any decoder needs for inputs of
/// [`Target::bytes_max`]; far below what a length taken from the input would ask for.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Longest that one input may take, on a machine that is busy otherwise.
const INPUT_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest text of an error: it is printed, and stored with bad rows.
const ERROR_BYTES_MAX: usize = 256 << 10;
/// Inputs that were read are mutated further; so many are kept.
const KEPT_N_MAX: usize = 256;
/// Mutations of one input, at most.
const MUTATIONS_N_MAX: usize = 4;
/// Seed of a run without `FUZZ_SECONDS`.
const SEED: u64 = 42;

/// Numbers at which decoders break.
const NUMBERS: &[&[u8]] = &[
    b"0",
    b"-0",
    b"1",
    b"-1",
    b"255",
    b"65536",
    b"2147483648",
    b"4294967296",
    b"9007199254740993",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"18446744073709551615",
    b"99999999999999999999999999999999999999999",
    b"1e9",
    b"1e400",
    b"0.1",
    b"1.0000000000000000000000000001",
];

/// A decoder under test.
pub struct Target {
    /// Folder of its corpus under `testdata/fuzz/`. Files whose name begins with `crash-` are
    /// inputs that failed once; all others must be read.
    pub name: &'static str,
    /// Words of its language, to be strewn in.
    pub words: &'static [&'static str],
    /// Inputs of a run without `FUZZ_SECONDS`.
    pub rounds_n: u64,
    /// Longest input.
    pub bytes_max: usize,
}

impl Target {
    /// Gives `decode` the corpus and what mutation makes of it. `Ok`: it was read; `Err`: refused,
    /// with the text that a person would see. Panics with the place of the input when `decode`
    /// does, or when it breaks a promise of the module.
    pub fn run(&self, decode: impl Fn(&[u8]) -> Result<(), String>) {
        let mut run = Run::new(self, decode);
        let corpus = self.corpus();
        for (name, input) in &corpus {
            let read = run.try_input(input);
            assert!(
                read || name.starts_with("crash-"),
                "{name} of the corpus is not read any more"
            );
        }
        let corpus: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
        let mut kept: Vec<Vec<u8>> = Vec::new();
        let (mut random, end) = beginning(self.name);
        let mut rounds_n = 0;
        while end.map_or(rounds_n < self.rounds_n, |end| Instant::now() < end) {
            rounds_n += 1;
            let all_n = corpus.len() + kept.len();
            let pick = |n: usize| corpus.get(n).or_else(|| kept.get(n - corpus.len()));
            let mut input = pick(random.below(all_n)).cloned().unwrap_or_default();
            let other = pick(random.below(all_n)).cloned().unwrap_or_default();
            for _ in 0..=random.below(MUTATIONS_N_MAX) {
                self.mutate(&mut input, &other, &mut random);
            }
            input.truncate(self.bytes_max);
            if !run.try_input(&input) {
                continue;
            }
            if kept.len() < KEPT_N_MAX {
                kept.push(input);
            } else {
                kept[random.below(KEPT_N_MAX)] = input;
            }
        }
        println!("{}: {rounds_n} inputs, {} read", self.name, run.read_n);
        assert!(
            run.read_n > rounds_n / 100,
            "only {} of {rounds_n} were read: the mutations are too wild",
            run.read_n
        );
    }

    fn corpus(&self) -> Vec<(String, Vec<u8>)> {
        let mut root = Path::new(env!("CARGO_MANIFEST_DIR"));
        while !root.join("testdata/fuzz").is_dir() {
            root = root.parent().expect("the crate is inside the repository");
        }
        let folder = root.join("testdata/fuzz").join(self.name);
        let entries = std::fs::read_dir(&folder).expect("the target has a corpus");
        let mut files: Vec<(String, Vec<u8>)> = entries
            .map(|entry| {
                let entry = entry.expect("the corpus can be listed");
                let name = entry.file_name().to_string_lossy().into_owned();
                let bytes = std::fs::read(entry.path()).expect("the corpus can be read");
                (name, bytes)
            })
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{} is empty", folder.display());
        files
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        let at = random.below(input.len() + 1);
        let span = at..(at + 1 + random.below(24)).min(input.len()).max(at);
        match random.below(11) {
            0 => input.truncate(at),
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 if at < input.len() => input[at] = random.next().to_le_bytes()[0],
            3 => drop(input.drain(span)),
            4 => {
                let again = input[span].to_vec();
                input.splice(at..at, again);
            }
            5 => {
                let number = NUMBERS[random.below(NUMBERS.len())];
                let digits = digits_at(input, at);
                input.splice(digits, number.iter().copied());
            }
            6 => {
                // A length or an offset of a binary format.
                let value = match random.below(3) {
                    0 => u64::MAX >> random.below(64),
                    1 => 1 << random.below(64),
                    _ => random.below(1 << 10) as u64,
                };
                let n = [2, 4, 8][random.below(3)];
                let at = at & !3;
                for (byte, new) in input.iter_mut().skip(at).zip(&value.to_le_bytes()[..n]) {
                    *byte = *new;
                }
            }
            7 => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
            8 => {
                let line = line_at(input, at);
                let (line, moved) = (line.clone(), input[line].to_vec());
                if random.below(2) == 0 {
                    input.drain(line);
                }
                let to = line_at(input, random.below(input.len() + 1)).start;
                input.splice(to..to, moved);
            }
            9 => drop(input.drain(line_at(input, at))),
            _ if self.words.is_empty() => {}
            _ => {
                let word = self.words[random.below(self.words.len())];
                input.splice(at..at, word.bytes());
            }
        }
    }
}

/// Where a run begins, and when it ends if not after a number of inputs.
fn beginning(name: &str) -> (Random, Option<Instant>) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let Some(seconds) = number("FUZZ_SECONDS") else {
        return (Random(number("FUZZ_SEED").unwrap_or(SEED)), None);
    };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanoseconds = since.map_or(SEED, |since| u64::from(since.subsec_nanos()));
    let seed = number("FUZZ_SEED").unwrap_or(nanoseconds);
    println!("{name}: {seconds} s from FUZZ_SEED={seed}");
    let end = Instant::now() + Duration::from_secs(seconds);
    (Random(seed), Some(end))
}

fn digits_at(input: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let start = input[at..].iter().position(is_digit).map_or(at, |n| at + n);
    let length = input[start..].iter().take_while(|b| is_digit(b)).count();
    start..start + length
}

fn line_at(input: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_newline = |byte: &u8| *byte == b'\n';
    let start = input[..at]
        .iter()
        .rposition(is_newline)
        .map_or(0, |n| n + 1);
    let end = input[at..].iter().position(is_newline);
    start..end.map_or(input.len(), |n| at + n + 1)
}

/// Inputs on their way into a decoder.
struct Run<F> {
    name: &'static str,
    decode: F,
    /// Where the input is while it is decoded: it is still there when the process is gone.
    current: (PathBuf, std::fs::File),
    read_n: u64,
}

impl<F: Fn(&[u8]) -> Result<(), String>> Run<F> {
    fn new(target: &Target, decode: F) -> Self {
        let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
        let folder: PathBuf = folder;
        let path = folder.join(format!("fuzz-{}-{}", target.name, std::process::id()));
        let file = std::fs::File::create(&path).expect("the input can be kept");
        println!("{}: the input is in {}", target.name, path.display());
        Self {
            name: target.name,
            decode,
            current: (path, file),
            read_n: 0,
        }
    }

    /// Whether it was read.
    fn try_input(&mut self, input: &[u8]) -> bool {
        let file = &mut self.current.1;
        let kept = file.seek(SeekFrom::Start(0)).and_then(|_| {
            file.write_all(input)?;
            file.set_len(input.len() as u64)
        });
        kept.expect("the input can be kept");
        let before = memory_bytes();
        let start = Instant::now();
        let answer = catch_unwind(AssertUnwindSafe(|| (self.decode)(input)));
        let (time, grown) = (start.elapsed(), memory_bytes().saturating_sub(before));
        let answer = answer.unwrap_or_else(|panic| {
            eprintln!("{}", self.keep(input));
            resume_unwind(panic)
        });
        assert!(time < INPUT_TIME_MAX, "{time:?}: {}", self.keep(input));
        assert!(
            grown < MEMORY_BYTES_MAX,
            "{grown} bytes more: {}",
            self.keep(input)
        );
        if let Err(error) = &answer {
            let is_text = !["backtrace", "panicked", "RUST_"]
                .iter()
                .any(|word| error.contains(word));
            assert!(is_text, "{error}: {}", self.keep(input));
            assert!(!error.is_empty(), "{}", self.keep(input));
            assert!(error.len() < ERROR_BYTES_MAX, "{}", self.keep(input));
        }
        self.read_n += u64::from(answer.is_ok());
        answer.is_ok()
    }

    /// Keeps an input beside the current one and says what to do with it.
    fn keep(&self, input: &[u8]) -> String {
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let name = format!("crash-{:016x}", hasher.finish());
        let path = self.current.0.with_file_name(&name);
        match std::fs::write(&path, input) {
            Ok(()) => format!(
                "mend it, and keep {} in testdata/fuzz/{}/",
                path.display(),
                self.name
            ),
            Err(error) => format!("the input could not be kept: {error}: {input:?}"),
        }
    }
}

impl<F> Drop for Run<F> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(std::fs::remove_file(&self.current.0));
        }
    }
}

/// The most address space that the process ever had; 0 where that is not known.
fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kib = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
