//! Processes under test, isolated from this machine's network, and the consumers of their output.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::files::Files;

/// Limit of mapped memory in bytes: an input that asks for more is a fault.
const MEMORY: u64 = 24 << 30;

/// Consumer of a process's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consumer {
    /// Reads all of it.
    Reader,
    /// Has closed its end of the pipe.
    Gone,
    /// A disk that is full.
    Full,
}

/// A command line and its environment.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) arguments: Vec<OsString>,
    /// The file that is its standard input.
    pub(crate) input: Option<OsString>,
    pub(crate) output: Consumer,
    pub(crate) errors: Consumer,
    pub(crate) limit: Duration,
}

/// Outcome of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// It took too long, and was killed.
    pub(crate) is_cut: bool,
    pub(crate) errors: String,
}

/// A network namespace and a BPF file system of their own, for as long as this lives: commands under test may
/// really do their work.
pub(crate) struct Apart(Option<Child>);

impl Apart {
    pub(crate) fn new() -> Apart {
        let script = "mount -t tmpfs none /sys/fs/bpf && mount -t tmpfs none /run && ip link set lo up; \
            echo; exec sleep infinity";
        let child = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { return Apart(None) };
        let mut ready = [0];
        if child.stdout.take().is_some_and(|mut out| out.read_exact(&mut ready).is_ok()) {
            return Apart(Some(child));
        }
        // A user who may not have them cannot do harm either.
        let _ = (child.kill(), child.wait());
        Apart(None)
    }

    /// A command for a program in isolation, in a folder.
    pub(crate) fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(if self.0.is_some() { "nsenter" } else { "prlimit" });
        if let Some(child) = &self.0 {
            command.args(["--net", "--mount", &format!("--target={}", child.id())]);
            // Entering a mount namespace changes to its root.
            command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(folder).arg("prlimit");
        }
        command.arg(format!("--as={MEMORY}")).arg("--core=0").arg(program);
        command
    }

    /// Runs a command in the folder of these files.
    pub(crate) fn run(&self, run: &Run, files: &Files) -> Ended {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_millstream")), files.folder());
        command
            .args(&run.arguments)
            .current_dir(files.folder())
            .process_group(0)
            .env("MILLSTREAM_SOCKET", "none.sock");
        let input = run.input.as_ref().and_then(|name| {
            let path = files.folder().join(name);
            // Opening a FIFO would wait here.
            path.is_file().then(|| File::open(path).ok()).flatten()
        });
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        let output = connect(run.output);
        let errors = connect(run.errors);
        command.stdout(output.0).stderr(errors.0);
        let mut child = command.spawn().expect("started");
        drop(command);
        let readers = [output.1, errors.1].map(|reader| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(reader) = reader {
                    let _ = (&reader).take(1 << 20).read_to_end(&mut bytes);
                    // The rest is read and discarded.
                    let _ = std::io::copy(&mut &reader, &mut std::io::sink());
                }
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        let (code, signal, is_cut) = wait(&mut child, run.limit);
        let [_, errors] = readers.map(|reader| reader.join().unwrap());
        Ended { code, signal, is_cut, errors }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = (child.kill(), child.wait());
        }
    }
}

/// Output stream for a process, and the end that is read.
fn connect(consumer: Consumer) -> (Stdio, Option<std::io::PipeReader>) {
    match consumer {
        Consumer::Full => (File::options().write(true).open("/dev/full").expect("/dev/full").into(), None),
        Consumer::Reader | Consumer::Gone => {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            (writer.into(), (consumer == Consumer::Reader).then_some(reader))
        }
    }
}

/// Waits for a process, and kills it after the limit: returns code, signal, and `true` if it was killed.
fn wait(child: &mut Child, limit: Duration) -> (Option<i32>, Option<i32>, bool) {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    let mut is_cut = false;
    let group = Pid::from_child(child);
    let status = loop {
        if let Some(status) = child.try_wait().expect("waited for") {
            break status;
        }
        if Instant::now() > end && !is_cut {
            is_cut = true;
            let _ = kill_process_group(group, Signal::KILL);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    // Children that it left behind hold the pipes open.
    let _ = kill_process_group(group, Signal::KILL);
    (status.code(), status.signal(), is_cut)
}
