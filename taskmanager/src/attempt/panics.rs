//! Panics beside the tasks' threads.
//!
//! Owns: that somebody hears of them. Nobody waits for a spawned future whose answer is an event: if it
//! panicked in silence the coordinator would wait for that answer for ever.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use streamforge_core::ids::TaskId;
use streamforge_core::messages::Event;
use tokio::sync::mpsc;

use super::Error;

/// What a panic said.
pub fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}

/// A panic becomes an error of whoever waits for this.
pub async fn caught<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.unwrap_or_else(|panic| {
        Err(Error::Panicked {
            cause: words(&*panic),
        })
    })
}

/// A panic ends the attempt.
pub async fn told(
    work: impl Future<Output = ()>,
    task: Option<TaskId>,
    events: mpsc::Sender<Event>,
) {
    if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
        let event = Event::Failed {
            task,
            cause: format!("it panicked: {}", words(&*panic)),
            retry: true,
        };
        let _gone = events.send(event).await;
    }
}
