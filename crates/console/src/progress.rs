//! Progress of long operations: a bar on standard error, nothing if that is not a terminal.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Operations that are shorter have no bar.
const SHORT: Duration = Duration::from_secs(2);
/// Interval between two updates. Long, since measurements run meanwhile.
const TICK: Duration = Duration::from_millis(500);

/// A bar that disappears when this is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    clock: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// A bar for an operation of about this length.
    pub fn timed(what: &'static str, length: Duration) -> Progress {
        let bar = bar(what, length.as_secs().max(1), "s");
        if length < SHORT || bar.is_hidden() {
            return Progress { bar: ProgressBar::hidden(), clock: None };
        }
        let (stop, stopped) = mpsc::channel();
        let shown = bar.clone();
        let start = Instant::now();
        let clock = std::thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                shown.set_position(start.elapsed().as_secs().min(length.as_secs()));
            }
        });
        Progress { bar, clock: Some((stop, clock)) }
    }

    /// An operation of unknown length; its name appears after two seconds.
    pub fn open(what: &'static str) -> Progress {
        let bar = ProgressBar::new_spinner().with_message(what);
        let bar = match ProgressStyle::with_template("{msg:24} {elapsed}") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        if bar.is_hidden() {
            return Progress { bar, clock: None };
        }
        let (stop, stopped) = mpsc::channel();
        let shown = bar.clone();
        let clock = std::thread::spawn(move || {
            let mut wait = SHORT;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                shown.tick();
                wait = TICK;
            }
        });
        Progress { bar, clock: Some((stop, clock)) }
    }

    /// A bar for so many steps; it appears after two seconds.
    pub fn counted(what: &'static str, things: usize) -> ProgressCounter {
        ProgressCounter { progress: None, what, things, done: 0, start: Instant::now() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, clock)) = self.clock.take() {
            drop(stop);
            // The thread ends at once on the message; if it panicked, there is nothing more to show.
            let _ = clock.join();
        }
        self.bar.finish_and_clear();
    }
}

/// A bar that counts.
#[derive(Debug)]
pub struct ProgressCounter {
    progress: Option<Progress>,
    what: &'static str,
    things: usize,
    done: usize,
    start: Instant,
}

impl ProgressCounter {
    /// Counts one more step.
    pub fn step(&mut self) {
        self.done += 1;
        if self.progress.is_none() && self.start.elapsed() > SHORT {
            self.progress = Some(Progress { bar: bar(self.what, self.things as u64, ""), clock: None });
        }
        if let Some(progress) = &self.progress {
            progress.bar.set_position(self.done as u64);
        }
    }
}

/// A bar without colours, so that `NO_COLOR` needs no handling.
fn bar(what: &'static str, length: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message(what);
    match ProgressStyle::with_template(&format!("{{msg:24}} [{{bar:40}}] {{pos}}/{{len}} {unit}")) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
