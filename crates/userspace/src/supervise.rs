//! `--supervise`: runs a packet program in a process of its own, which is restarted when it crashes.
//!
//! A program's code does not check accesses, so a fault in it ends its process, with [`Exit::Crashed`]. The
//! supervisor does nothing with packets: it starts itself again with the same flags, passes signals on,
//! waits, and counts. Tables and counters begin anew.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_lab::os::SignalSet;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

use crate::duration_args::positive_seconds;
use crate::exit::Exit;

/// Options for crashes of the program.
#[derive(Debug, clap::Args)]
pub(crate) struct SuperviseArgs {
    /// Run in a separate process, which is restarted with empty tables when the program crashes
    #[arg(long)]
    supervise: bool,
    /// With --supervise: number of crashes within --crash-window after which it is not restarted
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    max_crashes: u32,
    /// With --supervise: time for which a crash counts, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    crash_window: f64,
    /// Write the packet at which the program crashes to this directory, as millstream-crash-PID.pcap; with
    /// --supervise the default is the current directory
    #[arg(long, value_name = "DIR")]
    crash_dir: Option<PathBuf>,
    /// Number of crashes so far, set by the supervisor
    #[arg(long, hide = true, value_name = "N")]
    crashed: Option<u32>,
}

/// Shortest and longest delay before a restart; it doubles with each crash that still counts.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Signals that are passed on.
const PASSED: [i32; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
/// Time without a signal after which the process is checked again.
const LOOK: Duration = Duration::from_secs(1);
/// Base of exit codes of processes that a signal ended, as in shells.
const BY_SIGNAL: i32 = 128;

impl SuperviseArgs {
    /// Runs before anything else. Either supervises, and returns the exit code, or turns on crash reports for
    /// this process, and goes on.
    pub(crate) fn begin(&self) -> Result<Option<ExitCode>> {
        if self.supervise {
            return self.supervise().map(Some);
        }
        if self.crashed.is_some() {
            let before = getppid();
            set_parent_process_death_signal(Some(Signal::TERM)).into_diagnostic()?;
            // The supervisor may have gone before the request for a signal at its end.
            if getppid() != before {
                return Ok(Some(Exit::Crashed.into()));
            }
            SignalSet::unblock_all();
        }
        let present = self.crashed.map(|_| Path::new("."));
        millstream_native::report_crashes(Exit::Crashed as u8, self.crash_dir.as_deref().or(present))
            .into_diagnostic()?;
        Ok(None)
    }

    /// Crashes of earlier processes, if this one is supervised.
    pub(crate) fn crashed(&self) -> Option<u32> {
        self.crashed
    }

    fn supervise(&self) -> Result<ExitCode> {
        let mut all = PASSED.to_vec();
        all.push(libc::SIGCHLD);
        let signals = SignalSet::block(&all).into_diagnostic()?;
        let within = Duration::from_secs_f64(self.crash_window);
        let (mut count, mut recent) = (0, VecDeque::new());
        loop {
            let mut worker = start(count).into_diagnostic().wrap_err("the supervised process")?;
            let number = worker.id();
            let (status, told) = wait(&mut worker, &signals).into_diagnostic()?;
            let crashed = status.code() == Some(Exit::Crashed as i32) || (status.signal().is_some() && !told);
            if !crashed {
                return Ok(code(status));
            }
            count += 1;
            let now = Instant::now();
            recent.push_back(now);
            while recent.front().is_some_and(|then| now - *then > within) {
                recent.pop_front();
            }
            let why = status.signal().map_or(String::new(), |signal| format!(" by signal {signal}"));
            if recent.len() >= self.max_crashes as usize {
                errln!(
                    "millstream: process {number} has crashed{why}: {} crashes within {} s; not restarted",
                    recent.len(),
                    self.crash_window
                );
                return Ok(Exit::Crashed.into());
            }
            let doubled = FIRST_PAUSE * 2u32.saturating_pow(recent.len() as u32 - 1).min(1 << 10);
            let pause = doubled.min(LONGEST_PAUSE);
            errln!(
                "millstream: process {number} has crashed{why} (crash {count}); restarting in {:.1} s",
                pause.as_secs_f64()
            );
            let end = Instant::now() + pause;
            while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                if let Some(signal) = signals.next(left).filter(|signal| PASSED.contains(signal)) {
                    return Ok(ExitCode::from((BY_SIGNAL + signal) as u8));
                }
            }
        }
    }
}

/// Starts this command as a supervised process, after so many crashes. It has a process group of its own: a
/// terminal's signals reach it only through the supervisor.
fn start(crashes: u32) -> std::io::Result<Child> {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| OsString::from("millstream"));
    let args = args.map(|arg| match arg == "--supervise" {
        true => OsString::from(format!("--crashed={crashes}")),
        false => arg,
    });
    Command::new("/proc/self/exe").arg0(name).args(args).process_group(0).spawn()
}

/// Waits for a process, and passes signals on to it. Returns its status, and `true` if there were any
/// signals.
fn wait(worker: &mut Child, signals: &SignalSet) -> std::io::Result<(ExitStatus, bool)> {
    let mut told = false;
    loop {
        if let Some(status) = worker.try_wait()? {
            return Ok((status, told));
        }
        let signal = signals.next(LOOK).filter(|signal| PASSED.contains(signal));
        if let Some(signal) = signal.and_then(Signal::from_named_raw) {
            told = true;
            // A process that has ended is reaped.
            let _ = kill_process(Pid::from_child(worker), signal);
        }
    }
}

fn code(status: ExitStatus) -> ExitCode {
    let by_signal = || BY_SIGNAL + status.signal().unwrap_or(0);
    ExitCode::from(status.code().unwrap_or_else(by_signal) as u8)
}
