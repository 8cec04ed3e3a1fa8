//! Runs in the process of a worker, many times faster than separate processes. A worker is this test once
//! more; a variable tells it which runs are its own. It writes down its present run: if it does not come
//! back, that run is at fault, or took too long, and the next worker begins behind it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::case::Case;
use crate::commands::Leaf;
use crate::files::Files;
use crate::process::Apart;

/// The variable that makes a worker: the first and the last run, and the folder for its results.
const WORKER: &str = "MILLSTREAM_HOSTILE_WORKER";
/// Runs per worker: garbage in its memory goes with it.
const EACH: u64 = 1000;
/// Time limit of a run.
const LIMIT: Duration = Duration::from_secs(5);
/// Commands that do not end by themselves, use the whole machine, or copy their executable, which is this
/// test here.
const LEFT_OUT: [&str; 9] = ["daemon", "cluster", "run", "top", "demo", "learn", "lab", "build", "tune"];
/// A flag that starts the executable once more.
const AGAIN: &str = "--supervise";

/// Results of some runs.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) faults: Vec<String>,
    pub(crate) cut: u64,
}

/// The case of this number, of a command that ends by itself.
fn case(number: u64, leaves: &[Leaf], files: &Files) -> Case {
    // Numbers far from those of the other cases.
    (0..)
        .map(|more: u64| Case::new(number + (more << 40), leaves, files))
        .find(|case| !case.is_any_of(&LEFT_OUT) && !case.has(AGAIN))
        .unwrap()
}

/// As when a process starts: commands that only print leave another action behind, and the next one may have
/// solvers that end before it has written all to them.
fn ignore_sigpipe() {
    // SAFETY: no handler is installed.
    #[expect(unsafe_code)]
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

/// Does a worker's runs if this process is one.
pub(crate) fn work(leaves: &[Leaf]) -> bool {
    let Ok(spec) = std::env::var(WORKER) else { return false };
    let mut words = spec.splitn(3, ' ');
    let mut number = || words.next().and_then(|w| w.parse().ok()).expect("a number");
    let (from, to): (u64, u64) = (number(), number());
    let folder = PathBuf::from(words.next().expect("a folder"));
    let told = Mutex::new(File::options().append(true).create(true).open(folder.join("faults")).unwrap());
    let (at, name) = (folder.join("at"), format!("hostile-worker-{from}"));
    let current = std::sync::Arc::new(Mutex::new(String::new()));
    let hook_current = std::sync::Arc::clone(&current);
    std::panic::set_hook(Box::new(move |info| {
        let run = hook_current.lock().map(|run| run.clone()).unwrap_or_default();
        let text = format!("{run}\n  {info}\n");
        let _ = told.lock().map(|mut told| told.write_all(text.as_bytes()));
    }));
    let mut files = Files::new(&name);
    for number in from..to {
        if number % 100 == 99 {
            files = Files::new(&name);
        }
        std::env::set_current_dir(files.folder()).unwrap();
        ignore_sigpipe();
        let arguments: Vec<OsString> = case(number, leaves, &files).arguments();
        let text = format!("{number}: {arguments:?}");
        fs::write(&at, &text).unwrap();
        *current.lock().unwrap() = text;
        let all = [OsString::from("millstream")].into_iter().chain(arguments);
        let code = catch_unwind(AssertUnwindSafe(|| millstream_cli::run_command_line(all)));
        if let Ok(code) = code
            && !(0..=5).any(|known| code == ExitCode::from(known))
        {
            let text = format!("{}\n  ends with {code:?}\n", current.lock().unwrap());
            fs::write(folder.join(format!("code-{number}")), text).unwrap();
        }
    }
    fs::write(&at, format!("{to}: done")).unwrap();
    true
}

/// Has workers do the runs, two at a time.
pub(crate) fn run(from: u64, runs: u64, test: &str) -> Found {
    let apart = Apart::new();
    let (next, found) = (Mutex::new(from), Mutex::new(Found::default()));
    let one = |thread: u64| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("hostile-told-{}-{thread}", std::process::id()));
        loop {
            let (begin, end) = {
                let mut next = next.lock().unwrap();
                let begin = *next;
                *next = (begin + EACH).min(from + runs);
                (begin, *next)
            };
            if begin == end {
                let _ = fs::remove_dir_all(&folder);
                return;
            }
            let mut at = begin;
            while at < end {
                let (next, more) = supervise(&apart, test, at, end, &folder);
                at = next;
                let mut found = found.lock().unwrap();
                more.faults.iter().for_each(|fault| eprintln!("{fault}"));
                found.faults.extend(more.faults);
                found.cut += more.cut;
            }
            let (faults, cut) = {
                let found = found.lock().unwrap();
                (found.faults.len(), found.cut)
            };
            println!("{begin} to {end}: {faults} faults, {cut} cut short");
        }
    };
    thread::scope(|scope| {
        let one = &one;
        (0..2).for_each(|thread| {
            scope.spawn(move || one(thread));
        });
    });
    found.into_inner().unwrap()
}

/// Runs one worker until it is done or does not come back: returns the next worker's first run, and the
/// results.
fn supervise(apart: &Apart, test: &str, from: u64, to: u64, folder: &Path) -> (u64, Found) {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).unwrap();
    let executable = std::env::current_exe().unwrap();
    let mut command: Command = apart.command(&executable, folder);
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(WORKER, format!("{from} {to} {}", folder.display()))
        .env("MILLSTREAM_SOCKET", "none.sock")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        // The test runner itself does not survive a full disk: that is for processes of commands.
        .stdout(Stdio::null())
        .stderr(File::create(folder.join("errors")).unwrap())
        .process_group(0);
    let mut child = command.spawn().unwrap();
    let group = Pid::from_child(&child);
    let at = || {
        let text = fs::read_to_string(folder.join("at")).unwrap_or_default();
        let number = text.split(':').next().and_then(|n| n.parse::<u64>().ok());
        (number.unwrap_or(from), text)
    };
    let (mut since, mut last) = (Instant::now(), from);
    let mut is_cut = false;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let (now, _) = at();
        if now != last {
            (since, last) = (Instant::now(), now);
        }
        if since.elapsed() > LIMIT && !is_cut {
            is_cut = true;
            let _ = kill_process_group(group, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(10));
    };
    let _ = kill_process_group(group, Signal::KILL);
    let (now, text) = at();
    let mut found = Found::default();
    found.faults.extend(fs::read_to_string(folder.join("faults")).ok().filter(|text| !text.is_empty()));
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("code-") {
            found.faults.extend(fs::read_to_string(entry.path()));
        }
    }
    if now >= to {
        return (to, found);
    }
    // A packet program that crashes, and a request that ends the process, give a documented exit code.
    let is_documented = matches!(status.code(), Some(0..=5));
    if is_cut {
        found.cut += 1;
    } else if !is_documented {
        let mut text =
            format!("{text}\n  the process ends: {:?}, signal {:?}\n", status.code(), status.signal());
        let errors = fs::read(folder.join("errors")).unwrap_or_default();
        let _ = write!(text, "{}", String::from_utf8_lossy(&errors[errors.len().saturating_sub(2000)..]));
        found.faults.push(text);
    }
    (now + 1, found)
}
