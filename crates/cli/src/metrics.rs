//! Metrics over HTTP, in the OpenMetrics text format: who asks, and how it is answered. What there is to be told is the business of who serves.
//!
//! The server answers `GET /metrics` and nothing else, one request a connection, and gives a slow client up after a moment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::registry::Registry;

/// How long a client may take for its request, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a request at most.
const LONGEST: u64 = 8 << 10;

/// Listens where metrics are to be had; or what to say if that cannot be.
pub(crate) fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, String> {
    let listen = |address| {
        TcpListener::bind(address)
            .map_err(|error| format!("{address}: {error}\n  give --metrics another address"))
    };
    address.map(listen).transpose()
}

/// All that a collector tells.
pub(crate) fn text(collector: Box<dyn Collector>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(collector);
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => text,
        Err(std::fmt::Error) => String::new(),
    }
}

/// Answers requests with what `text` gives by then, for as long as the process lives.
pub(crate) fn serve(listener: &TcpListener, text: &dyn Fn() -> String) {
    for stream in listener.incoming() {
        // One after the other: scrapes are rare, and a slow one is given up.
        if let Ok(stream) = stream
            && let Err(error) = answer(stream, text)
        {
            tracing::debug!("metrics: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, text: &dyn Fn() -> String) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.try_clone()?.take(LONGEST)).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The rest of the head, so that the client is not reset while it still sends.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut words = request.split_whitespace();
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => {
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text())
        }
        (Some("GET"), Some(_)) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET is understood\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
