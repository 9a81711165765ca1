//! The check of a state after the takeover: an attempt was to be adopted, and is over.
//!
//! Owns: that nothing begins from a damaged state, and that a coordinator which was superseded meanwhile says
//! so: its successor retires what it is about to read (C5, C7).

use streamforge_core::frame;
use streamforge_core::manifest::{self, HEAD_KEY, Head};

use super::Step;
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::store_request::{StoreRequest, expected_objects};

impl Coordinator {
    /// The attempt that might have been adopted is over: what the next one begins with is read whole
    /// before.
    pub(crate) fn check_before_epoch(&mut self) {
        let objects = self.committed.as_ref().map(expected_objects);
        let objects = objects.unwrap_or_default();
        self.ask_start(Step::CheckBeforeEpoch, StoreRequest::Check { objects });
    }

    pub(super) fn on_checked_before_epoch(&mut self, damages: Vec<String>) {
        if damages.is_empty() {
            return self.begin_epoch();
        }
        self.starting.damages = damages;
        let key = HEAD_KEY.to_owned();
        self.ask_start(Step::ReadHeadBeforeEpoch, StoreRequest::Get { key });
    }

    pub(super) fn on_head_before_epoch(&mut self, object: Option<(Vec<u8>, crate::Version)>) {
        let damages = std::mem::take(&mut self.starting.damages);
        let Some((bytes, _)) = object else {
            return self.fail(Error::HeadVanished);
        };
        let ours = self.head.head().map(|head| head.generation);
        match (manifest::decode::<Head>(frame::HEAD, &bytes), ours) {
            (Ok(found), Some(ours)) if found.generation > ours => {
                let theirs = found.generation;
                self.fail(Error::Fenced { theirs, ours });
            }
            (Ok(_), _) => self.look_back(damages),
            (Err(error), _) => self.fail(Error::HeadUnreadable {
                reason: error.to_string(),
            }),
        }
    }
}
