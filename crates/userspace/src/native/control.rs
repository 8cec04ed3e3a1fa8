//! `--control SOCKET` and `--metrics ADDR:PORT` of `millstream native`: maps and statistics of a running
//! program.
//!
//! A line is a request: `map` and the arguments of bpftool ([`super::maps`]), `stats` or `sample`. A line of JSON is
//! the answer. Each client has a thread ([`crate::clients`]). Operations on maps run between batches, when no
//! worker uses any: packets wait meanwhile. Statistics are read while workers run.

use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use miette::{Result, miette};
use millstream_adapt::AdaptStatusReader;
use millstream_native::{NativeEngine, PacketSampler};
use millstream_native_io::safepoint::Safepoint;
use millstream_native_io::worker_stats::WorkerStats;
use serde_json::Value;

use super::maps::{MapOperation, MapOperationResult, MapRequestError, carry_out, parse};
use super::metrics::{self, EngineMetrics};
use super::stats::LiveStats;
use crate::clients::{ClientConnection, ClientLine};
use crate::listening_socket::{ListeningSocket, SocketError};
use crate::sample::answer::{REQUEST, SampleAnswer};

/// The longest request.
const LONGEST: u64 = 1 << 20;
/// Interval between two checks for the workers' end.
const BETWEEN: Duration = Duration::from_millis(5);

/// Map operation for a client, and the channel for the answer.
struct MapRequest {
    wanted: MapOperation,
    answer: Sender<Result<MapOperationResult, MapRequestError>>,
}

/// Statistics that are read while workers run.
#[derive(Clone)]
struct StatsSource {
    board: Arc<WorkerStats>,
    adaptation: Option<AdaptStatusReader>,
    sampler: Arc<PacketSampler>,
}

impl StatsSource {
    fn read(&self) -> LiveStats {
        LiveStats::of(&self.board, self.adaptation.as_ref().map(AdaptStatusReader::status))
    }
}

/// Binds a socket, and starts a thread that runs `listen` on it and sends the clients' requests.
pub(crate) fn clients<R: Send + 'static>(
    path: &Path,
    listen: impl FnOnce(&UnixListener, &Sender<R>) + Send + 'static,
) -> Result<(Receiver<R>, ListeningSocket)> {
    let bound = ListeningSocket::bind(path).map_err(|e| match e {
        SocketError::Exposed { .. } => {
            miette!(
                help = "give --control a path in a directory that only you may write to",
                "--control: {e}"
            )
        }
        SocketError::Busy { path } => miette!("--control {}: another process listens there", path.display()),
        e => miette!("--control: {e}"),
    })?;
    let listener = bound.listener.try_clone().map_err(|e| miette!("--control: {e}"))?;
    let (send, received) = mpsc::channel();
    thread::spawn(move || listen(&listener, &send));
    Ok((received, bound))
}

/// Requests of all clients.
pub(crate) struct MapControlSocket {
    requests: Option<Receiver<MapRequest>>,
    figures: Option<metrics::MetricsRequests>,
    _socket: Option<ListeningSocket>,
}

impl MapControlSocket {
    /// Listens at a path, and answers requests for metrics.
    pub(super) fn open(
        path: Option<&Path>,
        metrics: Option<TcpListener>,
        engine: &NativeEngine,
        adaptation: Option<AdaptStatusReader>,
    ) -> Result<MapControlSocket> {
        let (mut requests, mut socket) = (None, None);
        if let Some(path) = path {
            let (board, sampler) = (Arc::clone(engine.stats()), Arc::clone(engine.sampler()));
            let board = StatsSource { board, adaptation, sampler };
            let (received, bound) = clients(path, move |listener, send| listen(listener, send, &board))?;
            (requests, socket) = (Some(received), Some(bound));
        }
        let figures = metrics.map(|listener| metrics::open(listener, engine.stats()));
        Ok(MapControlSocket { requests, figures, _socket: socket })
    }

    /// Executes the pending requests of clients, for the one worker, between batches.
    pub(super) fn serve(&self, engine: &mut NativeEngine) {
        self.requests.iter().flat_map(Receiver::try_iter).for_each(|request| request.serve(engine));
        for answer in self.figures.iter().flat_map(Receiver::try_iter) {
            // The requester may have given up.
            let _ = answer.send(EngineMetrics::of_maps(engine));
        }
    }

    /// Executes the requests of clients until all workers are done.
    pub(crate) fn serve_until_done(&self, floor: &Safepoint<'_>) {
        while !floor.is_over() {
            if let Some(answer) = self.figures.as_ref().and_then(|figures| figures.try_recv().ok()) {
                floor.with(|engine| answer.send(EngineMetrics::of_maps(engine)));
            }
            match self.requests.as_ref().map(|requests| requests.recv_timeout(BETWEEN)) {
                // Workers are held up once for all pending requests.
                Some(Ok(first)) => drop(floor.with(|engine| {
                    first.serve(engine);
                    self.serve(engine);
                })),
                Some(Err(RecvTimeoutError::Timeout)) => {}
                Some(Err(RecvTimeoutError::Disconnected)) | None => thread::sleep(BETWEEN),
            }
        }
    }
}

impl MapRequest {
    fn serve(self, engine: &mut NativeEngine) {
        // A client that has gone needs no answer.
        let _ = self.answer.send(carry_out(engine, &self.wanted));
    }
}

fn listen(listener: &UnixListener, send: &Sender<MapRequest>, board: &StatsSource) {
    let (send, board) = (send.clone(), board.clone());
    let full = format!("{}\n", wrong("too many are connected"));
    crate::clients::serve(listener, full.as_bytes(), move |client| talk(client, &send, &board));
}

/// Talks to one client until it goes.
fn talk(client: &mut ClientConnection, send: &Sender<MapRequest>, board: &StatsSource) -> io::Result<()> {
    while let Some(line) = client.read_line(LONGEST)? {
        let ClientLine::Whole(line) = line else {
            return client.write_all(format!("{}\n", wrong("the line is too long")).as_bytes());
        };
        let line = String::from_utf8_lossy(&line);
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            [] => continue,
            ["stats"] => serde_json::to_value(board.read()).map_err(io::Error::other)?,
            [REQUEST] => {
                serde_json::to_value(SampleAnswer::take(&board.sampler)).map_err(io::Error::other)?
            }
            ["map", rest @ ..] => of_maps(rest, send),
            [word, ..] => wrong(&format!("there is no {word:?}: map, stats, sample")),
        };
        client.write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

fn wrong(error: &str) -> Value {
    serde_json::json!({ "error": error })
}

fn of_maps(words: &[&str], send: &Sender<MapRequest>) -> Value {
    let found = parse(words).and_then(|wanted| {
        let (answer, answered) = mpsc::channel();
        let gone = || MapRequestError::ended();
        send.send(MapRequest { wanted, answer }).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    });
    found.map_or_else(|refusal| refusal.json(), |found| found.json())
}
