//! HTTP/1.1 for servers of tests: a request in, an answer out, one thread per connection.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use percent_encoding::percent_decode_str;

/// A request.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    /// Path, without the query.
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// Serves connections at a free port of the loopback interface, until the process ends.
pub(crate) fn serve<S: Send + Sync + 'static>(
    state: Arc<S>,
    handle: fn(&S, &HttpRequest, &mut TcpStream) -> io::Result<()>,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), state) = (stream, Arc::clone(&state)) else { continue };
            std::thread::spawn(move || {
                // A client that has gone ends its connection.
                let _ = converse(&*state, &stream, handle);
            });
        }
    });
    address
}

fn converse<S>(
    state: &S,
    stream: &TcpStream,
    handle: fn(&S, &HttpRequest, &mut TcpStream) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = read(&mut reader)? {
        handle(state, &request, &mut stream.try_clone()?)?;
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> io::Result<Option<HttpRequest>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs
        .map(|(name, value)| (name.to_owned(), percent_decode_str(value).decode_utf8_lossy().into_owned()))
        .collect();
    let path = path.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        match header.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().unwrap_or(0);
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(HttpRequest { method, path, query, body }))
}

/// Writes an answer.
pub(crate) fn answer(to: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    to.write_all(head.as_bytes())?;
    to.write_all(body)
}
