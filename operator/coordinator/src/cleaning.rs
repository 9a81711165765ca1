//! Objects that nobody needs any more are deleted.
//!
//! Owns: when that is asked of the store, and when leftovers of dead attempts are looked for. What may
//! go, `retention` knows. Checkpoints never wait for it.

use streamforge_core::manifest::CheckpointKind;

use crate::coordinator::Coordinator;
use crate::lane::Answered;
use crate::retention::SWEPT_FOLDERS;
use crate::store_request::{StoreAnswer, StoreRequest};

/// What a request of the cleaner is for.
#[derive(Debug)]
pub(crate) enum Cleaning {
    /// Looking for leftovers; the other folders follow.
    List(Vec<&'static str>),
    /// Deleting.
    Delete(Vec<String>),
}

impl Coordinator {
    /// Deletes what may go (C6), twice per attempt after looking for leftovers of dead ones.
    pub(crate) fn clean(&mut self) {
        if !self.cleaner.is_free() {
            return;
        }
        let Some(attempt) = &self.attempt else {
            return self.delete_next();
        };
        // Once when the first checkpoint of an attempt is there: what dead attempts left may be
        // below the oldest retained one by now. And once when all retained ones are of this
        // attempt: then everything that dead attempts left is.
        let oldest = self
            .head
            .head()
            .and_then(|head| head.retained.first())
            .map(|kept| kept.id);
        let sweep = match (attempt.sweeps_n, oldest) {
            (0, _) => self
                .committed
                .as_ref()
                .is_some_and(|it| it.kind != CheckpointKind::Initial),
            (1, Some(oldest)) => oldest >= attempt.first_id,
            _ => false,
        };
        if sweep {
            if let Some(attempt) = &mut self.attempt {
                attempt.sweeps_n += 1;
            }
            self.list_leftovers(SWEPT_FOLDERS.to_vec());
        } else {
            self.delete_next();
        }
    }

    fn list_leftovers(&mut self, mut folders: Vec<&'static str>) {
        let Some(folder) = folders.pop() else {
            return self.delete_next();
        };
        let request = StoreRequest::List {
            prefix: format!("{folder}/"),
        };
        let decision = self
            .cleaner
            .ask(&mut self.requests, Cleaning::List(folders), request);
        self.out.push(decision);
    }

    fn delete_next(&mut self) {
        let keys = self.retention.next_deletes();
        if keys.is_empty() {
            return;
        }
        let request = StoreRequest::Delete { keys: keys.clone() };
        let decision = self
            .cleaner
            .ask(&mut self.requests, Cleaning::Delete(keys), request);
        self.out.push(decision);
    }

    /// What failed here is tried again after the next commit; checkpoints never wait for it.
    pub(crate) fn on_cleaned(&mut self, answered: Answered<Cleaning>) {
        match (answered.purpose, answered.answer) {
            (Cleaning::List(folders), StoreAnswer::Listed(keys)) => {
                if let Some(head) = self.head.head() {
                    self.retention.on_listed(head, keys);
                }
                self.list_leftovers(folders);
            }
            (Cleaning::Delete(keys), StoreAnswer::Deleted) => {
                self.retention.on_deleted(&keys);
                self.delete_next();
            }
            (Cleaning::List(_) | Cleaning::Delete(_), _) => {}
        }
    }
}
