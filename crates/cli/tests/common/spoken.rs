//! A running configuration, controlled over its socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A run that is controlled over its socket.
pub(crate) struct Spoken {
    /// `None` once it was waited for.
    run: Option<Child>,
    pub(crate) socket: BufReader<UnixStream>,
}

impl Spoken {
    /// Runs this configuration, with a socket at this path.
    pub(crate) fn new(conf: &str, path: &str, more: &[&str]) -> Spoken {
        let run = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["click", conf, "--packets", "1000000000000", "--json", "--control", path])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let until = Instant::now() + Duration::from_secs(60);
        while !Path::new(path).exists() {
            assert!(Instant::now() < until, "no socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut socket = BufReader::new(UnixStream::connect(path).expect("connected"));
        let mut greeting = String::new();
        socket.read_line(&mut greeting).expect("a greeting");
        assert_eq!(greeting, "Click::ControlSocket/1.3\r\n");
        Spoken { run: Some(run), socket }
    }

    /// The first line of the answer, and the text where one was read.
    pub(crate) fn say(&mut self, line: &str) -> (String, String) {
        self.socket.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("sent");
        let (mut answer, mut data) = (String::new(), String::new());
        self.socket.read_line(&mut answer).expect("an answer");
        if line.starts_with("READ") && answer.starts_with("200") {
            self.socket.read_line(&mut data).expect("its length");
            let len = data.trim().strip_prefix("DATA ").expect("data").parse().expect("a number");
            let mut bytes = vec![0; len];
            self.socket.read_exact(&mut bytes).expect("its text");
            data = String::from_utf8(bytes).expect("text");
        }
        (answer, data)
    }

    /// Value of a handler, which is a number.
    pub(crate) fn number(&mut self, handler: &str) -> u64 {
        self.say(&format!("READ {handler}")).1.parse().expect("a number")
    }

    /// Waits for the end of the run, and returns its output.
    pub(crate) fn end(mut self) -> Output {
        self.run.take().expect("it runs").wait_with_output().expect("its end")
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        if let Some(mut run) = self.run.take() {
            let _ = (run.kill(), run.wait());
        }
    }
}
