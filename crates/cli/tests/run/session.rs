//! A `millstream run` process in a namespace of its own, and the router's object for it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_kernel::Namespace;
use millstream_programs::ROUTER;
use millstream_specialize::pins::{PinDir, remove_abandoned};

/// A directory for a test's files and one for its pins, both removed at the end.
pub(crate) struct Place {
    pub(crate) files: PathBuf,
    pub(crate) pins: PathBuf,
}

impl Place {
    pub(crate) fn new(name: &str) -> Place {
        let parent = Path::new("/sys/fs/bpf/millstream");
        let prefix = format!("test_run_{name}_");
        remove_abandoned(parent, &prefix);
        let name = format!("{prefix}{}", std::process::id());
        let files = std::env::temp_dir().join(format!("millstream_{name}"));
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join("router.o"), ROUTER.object).unwrap();
        Place { files, pins: parent.join(name) }
    }

    /// `millstream run ROUTER --dev DEV --pin PINS`.
    pub(crate) fn run(&self, dev: &str) -> Command {
        self.run_object(&self.files.join("router.o"), dev)
    }

    pub(crate) fn run_object(&self, object: &Path, dev: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.arg("run").arg(object).args(["--dev", dev, "--pin"]).arg(&self.pins);
        command
    }

    /// Names of the pins.
    pub(crate) fn pinned(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.pins).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        PinDir::new(&self.pins).remove();
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

/// A process that runs until it is ended. Killed on drop.
pub(crate) struct Session {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Session {
    /// Starts a command with `--json` in a namespace.
    pub(crate) fn start(namespace: &Namespace, command: &mut Command) -> Session {
        command.arg("--json").stdout(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn().unwrap()).unwrap();
        let (lines, out) = (Arc::new(Mutex::new(Vec::new())), child.stdout.take().unwrap());
        let into = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                into.lock().unwrap().push(line);
            }
        });
        Session { child, lines }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for an event; returns its line.
    pub(crate) fn wait_for(&mut self, event: &str) -> String {
        self.wait_for_words(&format!("\"event\":\"{event}\""))
    }

    /// Waits for a line with these words, and returns it.
    pub(crate) fn wait_for_words(&mut self, words: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(line) = self.lines().into_iter().find(|l| l.contains(words)) {
                return line;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before {words}: {ended:?}, {:?}", self.lines());
            assert!(start.elapsed() < Duration::from_secs(60), "no {words}: {:?}", self.lines());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as Ctrl-C does; returns the exit code and the last line.
    pub(crate) fn interrupt(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        // The reader gets the last lines a moment later.
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end && !self.lines().last().is_some_and(|l| l.contains("\"stopped\"")) {
            std::thread::sleep(Duration::from_millis(2));
        }
        (status.code(), self.lines().pop().unwrap_or_default())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command in a namespace to its end.
pub(crate) fn ended(namespace: &Namespace, command: &mut Command) -> Output {
    namespace.enter(|| command.output().unwrap()).unwrap()
}
