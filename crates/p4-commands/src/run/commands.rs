//! Commands of `millstream p4 cli`: a line each from a client, and a line of JSON as the answer.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_p4runtime_server::{SwitchHandle, run_command};
use serde::{Deserialize, Serialize};

/// Bytes of a line, at most.
const LONGEST: u64 = 1 << 16;
/// Clients at a time.
const CLIENTS: usize = 32;
/// Time for which a client may be silent.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Answer to a command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CommandAnswer {
    pub(crate) schema: u32,
    /// The command was refused.
    pub(crate) failed: bool,
    /// Text for people.
    pub(crate) text: String,
}

/// Answers clients for as long as the process lives.
pub(super) fn serve(listener: TcpListener, handle: SwitchHandle) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                // For example, too many open files; that may pass.
                tracing::debug!("commands: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if clients.fetch_add(1, Ordering::SeqCst) >= CLIENTS {
            clients.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let (handle, clients) = (handle.clone(), Arc::clone(&clients));
        std::thread::spawn(move || {
            if let Err(error) = answer(&stream, &handle) {
                tracing::debug!("commands: {error}");
            }
            clients.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn answer(stream: &TcpStream, handle: &SwitchHandle) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let length = reader.by_ref().take(LONGEST).read_line(&mut line)?;
        if length == 0 {
            return Ok(());
        }
        if !line.ends_with('\n') && length as u64 == LONGEST {
            return Err(io::Error::other("a line is too long"));
        }
        let outcome = run_command(handle, &line);
        let answer = CommandAnswer { schema: 1, failed: outcome.failed, text: outcome.text };
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        (&mut &*stream).write_all(&bytes)?;
    }
}
