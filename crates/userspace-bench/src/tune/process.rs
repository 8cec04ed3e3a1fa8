//! The tuner's end of a candidate's process: requests with time limits, a memory limit, and a certain end.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use millstream_lab::os;
use millstream_plan::Plan;

use super::protocol::{CandidateReply, CandidateRequest};

/// Interval between two looks at a process that works.
const TICK: Duration = Duration::from_millis(10);
/// Size of a page, in bytes, in which the kernel counts.
const PAGE: u64 = 4096;

/// Reason why a candidate gives no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum CandidateFailure {
    /// It cannot be compiled or run.
    #[error("{0}")]
    Refused(String),
    /// It took too long.
    #[error("it took more than {:.1} s", .0.as_secs_f64())]
    Slow(Duration),
    /// It took too much memory.
    #[error("it took more than {} MiB of memory", .0 >> 20)]
    Large(u64),
    /// The process ended by itself.
    #[error("its process ended")]
    Ended,
    /// The user interrupted, or the budget is used up.
    #[error("the search ends")]
    Over,
    /// There is no LLVM.
    #[error("{0}")]
    NoLlvm(String),
}

/// Limits of a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct CandidateLimits<'t> {
    /// Time of one answer.
    pub(super) answer: Duration,
    /// End of the search, after which nobody waits.
    pub(super) until: Instant,
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Capture to run in place of the traffic that the arguments name.
    pub(super) traffic: Option<&'t Path>,
}

/// Process of a candidate. It is killed on drop.
#[derive(Debug)]
pub(super) struct CandidateProcess {
    child: Child,
    requests: ChildStdin,
    replies: Receiver<String>,
    until: Instant,
    answer: Duration,
    memory: u64,
}

impl CandidateProcess {
    /// Starts a process with the tuner's own arguments, and compiles a plan there. Returns its description.
    pub(super) fn start(
        plan: &Plan,
        limits: CandidateLimits<'_>,
    ) -> Result<(CandidateProcess, CandidateReply), CandidateFailure> {
        let refused = |error: std::io::Error| CandidateFailure::Refused(error.to_string());
        let arguments = std::env::args_os().skip(1);
        let mut child = Command::new("/proc/self/exe")
            .args(arguments)
            .arg("--serve-candidate")
            .args(
                limits.traffic.iter().flat_map(|path| [OsStr::new("--candidate-traffic"), path.as_os_str()]),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // An interrupt of the terminal is for the tuner.
            .process_group(0)
            .spawn()
            .map_err(refused)?;
        let (requests, output) = (child.stdin.take(), child.stdout.take());
        let (Some(requests), Some(output)) = (requests, output) else { return Err(CandidateFailure::Ended) };
        let (send, replies) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.into_iter().try_for_each(|line| send.send(line))
        });
        let CandidateLimits { answer, until, memory, .. } = limits;
        let mut process = CandidateProcess { child, requests, replies, until, answer, memory };
        let ready = process.ask(&CandidateRequest::Compile(plan.to_string()))?;
        Ok((process, ready))
    }

    /// Sets the end of the search.
    pub(super) fn set_end(&mut self, until: Instant) {
        self.until = until;
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&mut self, request: &CandidateRequest) -> Result<CandidateReply, CandidateFailure> {
        let text = serde_json::to_string(request).map_err(|e| CandidateFailure::Refused(e.to_string()))?;
        writeln!(self.requests, "{text}").map_err(|_| self.ending())?;
        let begun = Instant::now();
        loop {
            match self.replies.recv_timeout(TICK) {
                Ok(line) => {
                    return match serde_json::from_str(&line) {
                        Ok(CandidateReply::Failed(why)) => Err(CandidateFailure::Refused(why)),
                        Ok(CandidateReply::NoLlvm(why)) => Err(CandidateFailure::NoLlvm(why)),
                        Ok(reply) => Ok(reply),
                        Err(error) => Err(CandidateFailure::Refused(error.to_string())),
                    };
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ending()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if os::interrupted() || Instant::now() > self.until {
                return Err(CandidateFailure::Over);
            }
            if begun.elapsed() > self.answer {
                return Err(CandidateFailure::Slow(self.answer));
            }
            if self.memory() > self.memory {
                return Err(CandidateFailure::Large(self.memory));
            }
        }
    }

    /// The reason why it ended.
    fn ending(&mut self) -> CandidateFailure {
        match self.child.try_wait() {
            Ok(Some(status)) => CandidateFailure::Refused(format!("its process ended: {status}")),
            _ => CandidateFailure::Ended,
        }
    }

    /// Bytes of memory that it has.
    fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap_or_default();
        let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
        pages * PAGE
    }
}

impl Drop for CandidateProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
