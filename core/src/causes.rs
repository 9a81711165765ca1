//! An error for people.
//!
//! Owns: how what caused an error is told, the same in a log, a status and a message between processes.

use std::error::Error;

/// An error with its causes, in one line.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Told(&'static str, Option<Box<Told>>);

    impl fmt::Display for Told {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Told {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn each_cause_is_told_behind_what_it_caused() {
        let disk = Told("no space left", None);
        let write = Told("write part 3", Some(Box::new(disk)));
        let error = Told("checkpoint 7", Some(Box::new(write)));

        assert_eq!(
            with_causes(&error),
            "checkpoint 7: write part 3: no space left"
        );
    }
}
