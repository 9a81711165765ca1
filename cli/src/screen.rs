//! The live view and the log, sharing one terminal.
//!
//! Owns: stderr while a job runs. A log line first wipes the view, so that neither overwrites the
//! other; the view comes back with the next drawing. Start at: [`Screen::draw`].

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// Stderr, shared by view and log.
#[derive(Clone, Debug, Default)]
pub struct Screen {
    /// Lines of the view that stand on the terminal now.
    drawn_n: Arc<Mutex<usize>>,
}

impl Screen {
    /// Replaces the view.
    pub fn draw(&self, lines: &[String]) {
        let mut drawn_n = self.drawn_n.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = wiped(*drawn_n);
        // Without automatic wrapping a long line is cut, and one line stays one line.
        text += "\x1b[?7l";
        for line in lines {
            text += &line.replace(char::is_control, " ");
            text.push('\n');
        }
        text += "\x1b[?7h";
        *drawn_n = lines.len();
        write(text.as_bytes());
    }

    /// Takes the view away.
    pub fn wipe(&self) {
        let mut drawn_n = self.drawn_n.lock().unwrap_or_else(PoisonError::into_inner);
        write(wiped(*drawn_n).as_bytes());
        *drawn_n = 0;
    }
}

/// Moves up over the view and clears down from there.
fn wiped(lines_n: usize) -> String {
    if lines_n == 0 {
        String::new()
    } else {
        format!("\x1b[{lines_n}A\x1b[0J")
    }
}

/// A terminal that went away is no reason to stop a job.
fn write(bytes: &[u8]) {
    let mut stderr = io::stderr().lock();
    let _gone = stderr.write_all(bytes).and_then(|()| stderr.flush());
}

/// One log event.
pub struct LogWriter(Screen);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.wipe();
        write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Screen {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter(self.clone())
    }
}
