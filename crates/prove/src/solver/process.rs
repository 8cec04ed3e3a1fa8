//! A child process with limits, whose lines are read in time or not at all.
//!
//! Invariants: it is killed when dropped; its output is held in bounded memory, whatever it prints; nobody
//! waits for it to read its input.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel, sync_channel};
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Longest line that is read, in bytes: all the values of a large model.
const LONGEST_LINE: u64 = 16 << 20;
/// Lines waiting to be read.
const WAITING: usize = 16;
/// Memory that a solver may map beyond its own limit, in MiB: code, stacks, free memory of its allocator.
const OVERHEAD: u64 = 512;

/// A running child.
#[derive(Debug)]
pub(super) struct SolverProcess {
    child: Child,
    input: Option<Sender<String>>,
    lines: Receiver<String>,
}

/// Starts a program with a limit of memory, in MiB.
pub(super) fn spawn(
    program: &Path,
    flags: &[String],
    input: Stdio,
    memory: Option<u64>,
) -> std::io::Result<SolverProcess> {
    let mut child = Command::new(program)
        .args(flags)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(memory) = memory
        && let Ok(pid) = i32::try_from(child.id())
    {
        let bytes = memory.saturating_add(OVERHEAD).saturating_mul(1 << 20);
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        // If it cannot be set, the solver's own limit remains.
        let _ = prlimit(Pid::from_raw(pid), Resource::As, limit);
    }
    let input = child.stdin.take().map(|mut stdin| {
        let (tell, told) = channel::<String>();
        std::thread::spawn(move || {
            // The thread ends when the child or its owner is gone.
            while let Ok(text) = told.recv()
                && stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()).is_ok()
            {}
        });
        tell
    });
    let output = child.stdout.take().ok_or_else(|| std::io::Error::other("it has no output"))?;
    let (tell, lines) = sync_channel(WAITING);
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match output.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if tell.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    Ok(SolverProcess { child, input, lines })
}

/// Result of waiting for output.
#[derive(Debug)]
pub(super) enum LineRead {
    /// A line.
    Line(String),
    /// No line yet.
    Nothing,
    /// It has ended, or closed its output.
    End,
}

impl SolverProcess {
    /// Sends text to the process. If it has ended, the text is dropped: its end shows when its answer is
    /// read.
    pub(super) fn send(&mut self, text: impl Into<String>) {
        if let Some(input) = &self.input {
            let _ = input.send(text.into());
        }
    }

    /// Its next line, if it comes in time.
    pub(super) fn line(&mut self, deadline: Instant) -> Option<String> {
        self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// Its next line, if it comes in time, or the end of its output.
    pub(super) fn wait(&mut self, deadline: Instant) -> LineRead {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => LineRead::Line(line),
            Err(RecvTimeoutError::Timeout) => LineRead::Nothing,
            Err(RecvTimeoutError::Disconnected) => LineRead::End,
        }
    }

    /// Its next line, if it is there already.
    pub(super) fn poll(&mut self) -> LineRead {
        match self.lines.try_recv() {
            Ok(line) => LineRead::Line(line),
            Err(TryRecvError::Empty) => LineRead::Nothing,
            Err(TryRecvError::Disconnected) => LineRead::End,
        }
    }

    /// The way it ended, for people.
    pub(super) fn ending(&mut self) -> String {
        use std::os::unix::process::ExitStatusExt as _;
        // Its output is closed before the process is gone.
        for _ in 0..50 {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return match (status.code(), status.signal()) {
                        (Some(code), _) => format!("it ended with code {code}"),
                        (_, Some(signal)) => format!("it was ended by signal {signal}"),
                        _ => "it ended".to_owned(),
                    };
                }
                _ => std::thread::sleep(std::time::Duration::from_millis(2)),
            }
        }
        "and then nothing".to_owned()
    }
}

impl Drop for SolverProcess {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
