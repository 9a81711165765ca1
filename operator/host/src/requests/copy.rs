//! Copies of objects, of which a piece is in memory at a time.
//!
//! Owns: that a copy is the original, byte for byte, and whole as a manifest says; and how much memory all copies of
//! this process take together, however large a state is and however many jobs are upgraded at once.
//!
//! A copy whose answer was lost, or whose coordinator died, is made again: what is under its key by then is
//! compared, and left alone. Nothing is under it before the copy is whole.

use std::ops::Range;

use streamforge_store::{ObjectWriter, PIECE_BYTES};

use super::*;

/// Objects of one job that are copied at once.
const COPIES_AT_ONCE: usize = 4;

const PIECE: u64 = PIECE_BYTES as u64;

/// For the copies of all jobs of this process. A turn is a piece, read and written: 96 MiB at most.
static TURNS: Turns = Turns {
    quick: Semaphore::const_new(4),
    slow: Semaphore::const_new(8),
    quick_for: Duration::from_secs(2),
};

/// Why an object is not copied.
enum Stop {
    /// It is not whole, or its copy is another object.
    Damage(String),
    /// Nothing can be said.
    Store(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<String> for Stop {
    fn from(damage: String) -> Self {
        Self::Damage(damage)
    }
}

/// Copies these objects; what is not whole is not copied, and said.
pub(super) async fn copy_objects(
    store: &dyn ObjectStore,
    objects: &[(ExpectedObject, String)],
) -> Result<Vec<String>, Error> {
    let mut copies = Vec::with_capacity(objects.len());
    for (expected, to) in objects {
        let copy = Copy {
            store,
            expected,
            to,
        };
        copies.push(copy.make());
    }
    let copies = stream::iter(copies).buffered(COPIES_AT_ONCE);
    let damages: Vec<Option<String>> = copies.try_collect().await?;
    Ok(damages.into_iter().flatten().collect())
}

/// One object and its new key.
struct Copy<'a> {
    store: &'a dyn ObjectStore,
    expected: &'a ExpectedObject,
    to: &'a str,
}

impl Copy<'_> {
    async fn make(self) -> Result<Option<String>, Error> {
        let made = if self.expected.bytes_n <= PIECE {
            self.make_at_once().await
        } else {
            self.make_in_pieces().await
        };
        match made {
            Ok(()) => Ok(None),
            Err(Stop::Damage(damage)) => Ok(Some(damage)),
            Err(Stop::Store(error)) => Err(error),
        }
    }

    async fn make_at_once(&self) -> Result<(), Stop> {
        let Self {
            store,
            expected,
            to,
        } = *self;
        let copy = async {
            let bytes = whole(expected, read(store, expected).await??)?;
            Ok::<_, Stop>(store.put(to, bytes, Condition::CreateIfAbsent).await?)
        };
        match TURNS.take(copy).await? {
            Put::Done(_) => Ok(()),
            Put::ConditionFailed => self.compare().await,
        }
    }

    async fn make_in_pieces(&self) -> Result<(), Stop> {
        let Self {
            store,
            expected,
            to,
        } = *self;
        has_length(
            expected,
            look(store, &expected.key, expected.bytes_n).await?,
        )?;
        if look(store, to, expected.bytes_n).await? != Length::Missing {
            return self.compare().await;
        }
        let mut writer = store.begin(to).await?;
        let put = match self.send(&mut *writer).await {
            Ok(()) => {
                let put = writer.finish(Condition::CreateIfAbsent).await;
                put.map_err(Stop::from)
            }
            Err(stop) => Err(stop),
        };
        match put {
            Ok(Put::Done(_)) => Ok(()),
            Ok(Put::ConditionFailed) => self.compare().await,
            Err(stop) => {
                // The first error is the one to tell.
                let _best_effort = writer.abandon().await;
                Err(stop)
            }
        }
    }

    async fn send(&self, writer: &mut dyn ObjectWriter) -> Result<(), Stop> {
        let mut blocks = Blocks::of(self.expected);
        for range in ranges(self.expected.bytes_n, PIECE) {
            let turn = async {
                let bytes = self.read(range).await?;
                blocks.pass(&bytes)?;
                Ok::<_, Stop>(writer.add(bytes).await?)
            };
            TURNS.take(turn).await?;
        }
        Ok(())
    }

    /// What has the new key already is an earlier copy, or it is said: a name stands for one content.
    async fn compare(&self) -> Result<(), Stop> {
        let (store, expected) = (self.store, self.expected);
        let bytes_n = expected.bytes_n;
        if look(store, self.to, bytes_n).await? != Length::Right {
            return Err(self.is_another());
        }
        has_length(expected, look(store, &expected.key, bytes_n).await?)?;
        let mut blocks = Blocks::of(expected);
        // Two of them come to a piece.
        for range in ranges(bytes_n, PIECE / 2) {
            let turn = async {
                let bytes = self.read(range.clone()).await?;
                blocks.pass(&bytes)?;
                let is_same = store.get_range(self.to, range).await? == bytes;
                is_same.then_some(()).ok_or_else(|| self.is_another())
            };
            TURNS.take(turn).await?;
        }
        Ok(())
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, Stop> {
        Ok(self.store.get_range(&self.expected.key, range).await?)
    }

    fn is_another(&self) -> Stop {
        let (key, to) = (&self.expected.key, self.to);
        Stop::Damage(format!(
            "object {to} is there already, and is no copy of {key}: remove it"
        ))
    }
}

/// What a store says of an object that should have so many bytes.
#[derive(PartialEq, Eq)]
enum Length {
    Right,
    Missing,
    Shorter(u64),
    Longer,
}

async fn look(store: &dyn ObjectStore, key: &str, bytes_n: u64) -> Result<Length, Error> {
    match store
        .get_range(key, bytes_n..bytes_n.saturating_add(1))
        .await
    {
        Ok(_) => Ok(Length::Longer),
        Err(Error::OutOfRange { bytes_n: n, .. }) if n == bytes_n => Ok(Length::Right),
        Err(Error::OutOfRange { bytes_n: n, .. }) => Ok(Length::Shorter(n)),
        Err(Error::NotFound { .. }) => Ok(Length::Missing),
        Err(error) => Err(error),
    }
}

fn has_length(expected: &ExpectedObject, found: Length) -> Result<(), String> {
    match found {
        Length::Right => Ok(()),
        Length::Missing => Err(missing(expected)),
        Length::Shorter(bytes_n) => Err(wrong_length(expected, bytes_n)),
        Length::Longer => Err(longer(expected)),
    }
}

/// So many bytes, cut into ranges.
fn ranges(bytes_n: u64, range_n: u64) -> impl Iterator<Item = Range<u64>> {
    let mut from: u64 = 0;
    std::iter::from_fn(move || {
        let range = from..from.saturating_add(range_n).min(bytes_n);
        from = range.end;
        (!range.is_empty()).then_some(range)
    })
}
