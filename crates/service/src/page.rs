//! A page over HTTP that shows live data, for one machine's users: files of the page, and its data as
//! server-sent events (HTML standard, section 9.2).
//!
//! The server listens on loopback addresses only and answers requests whose `Host` is one: a page from
//! elsewhere cannot reach it by a name that it lets point here. The files hold no data. Data need the token,
//! which is in the fragment of the address that is printed, so that no server, log or `Referer` gets it.
//!
//! Data are made once for all viewers, and only while there is one. A viewer that does not read is dropped.

use std::convert::Infallible;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::connections::{Connection, serve_each};

/// Interval between two looks for new data.
const INTERVAL: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
/// Time until a request's head must be complete.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of a request's head at most.
const LONGEST: usize = 8 << 10;
/// Connections at a time, those of viewers among them; others wait.
const CONNECTIONS: usize = 64;
/// Events that may wait for a viewer before it is dropped.
const PENDING: usize = 16;
/// Bytes of a token.
const TOKEN_BYTES: usize = 16;
/// Paths of documents that are made when they are asked for.
const DATA: &str = "/data/";

/// A file of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Path in the address, with its slash.
    pub path: &'static str,
    /// Media type.
    pub kind: &'static str,
    /// Contents.
    pub text: &'static str,
}

/// An event for viewers.
#[derive(Clone, Debug)]
pub struct PageEvent {
    /// Its name.
    pub name: &'static str,
    /// Its data: one line, such as JSON.
    pub data: String,
}

impl PageEvent {
    fn bytes(&self) -> Bytes {
        Bytes::from(format!("event: {}\ndata: {}\n\n", self.name, self.data))
    }
}

/// Data of a page.
pub trait PageSource: Send + Sync {
    /// Everything that a new viewer needs.
    fn all(&self) -> Vec<PageEvent>;
    /// Everything that is new since the last call.
    fn changes(&self) -> Vec<PageEvent>;
    /// The JSON at a path below `/data/` that was asked for with this value; `None` if there is nothing.
    fn document(&self, path: &str, value: &str) -> Option<String>;
}

/// Secret that data are given for: 32 hexadecimal digits, or the contents of a file.
#[derive(Clone)]
pub struct PageToken(String);

impl std::fmt::Debug for PageToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageToken")
    }
}

impl std::fmt::Display for PageToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl PageToken {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn random() -> io::Result<PageToken> {
        let mut bytes = [0; TOKEN_BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(PageToken(hex::encode(bytes)))
    }

    /// The first word of a file that only its owner, this user or root, may read.
    ///
    /// # Errors
    /// If the file cannot be read, is somebody else's, or holds fewer than 16 characters that can stand in an
    /// address.
    pub fn read(path: &Path) -> io::Result<PageToken> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::File::open(path)?;
        let about = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        if about.mode() & 0o077 != 0 || (about.uid() != user && about.uid() != 0) {
            return Err(io::Error::other("others may read it: `chmod 600`, and own it"));
        }
        let mut text = String::new();
        file.take(4096).read_to_string(&mut text)?;
        let word = text.split_whitespace().next().unwrap_or_default();
        let is_plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if word.len() < 16 || !is_plain {
            return Err(io::Error::other("its first word is no token: 16 letters and digits, or more"));
        }
        Ok(PageToken(word.to_owned()))
    }

    /// Compares in a time that does not depend on the place of the first difference.
    fn is(&self, given: &str) -> bool {
        let (ours, given) = (self.0.as_bytes(), given.as_bytes());
        let differences = ours.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
        ours.len() == given.len() && std::hint::black_box(differences) == 0
    }
}

/// Listens at an address of this machine; or returns the error and advice.
pub fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    if !address.ip().is_loopback() {
        let advice = "give --web a loopback address, such as 127.0.0.1:9465, and reach it by `ssh -L`";
        return Err(format!("{address}: pages are for this machine, and not encrypted\n  {advice}"));
    }
    TcpListener::bind(address).map_err(|error| format!("{address}: {error}\n  give --web another address"))
}

/// A page, and the viewers of its data.
struct PageServer {
    files: &'static [PageFile],
    token: PageToken,
    source: Arc<dyn PageSource>,
    viewers: Mutex<Vec<Viewer>>,
}

/// A viewer of the data.
struct Viewer {
    events: mpsc::Sender<Bytes>,
    connection: Connection,
}

impl Viewer {
    /// Sends these, and returns true; or ends the connection of a viewer that has gone or does not read.
    fn send(&self, lines: &[Bytes]) -> bool {
        let is_there = lines.iter().all(|line| self.events.try_send(line.clone()).is_ok());
        if !is_there && let Some(connection) = self.connection.get() {
            connection.abort();
        }
        is_there
    }
}

type Body = BoxBody<Bytes, Infallible>;

/// Serves a page for as long as the process lives.
///
/// # Errors
/// If the system does not let this thread wait for several connections.
pub fn serve(
    listener: TcpListener,
    files: &'static [PageFile],
    token: PageToken,
    source: Arc<dyn PageSource>,
) -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().max_blocking_threads(2).build()?;
    runtime.block_on(async {
        let server = Arc::new(PageServer { files, token, source, viewers: Mutex::default() });
        tokio::spawn(tell(Arc::clone(&server)));
        let each = |stream, connection: Connection| {
            let server = Arc::clone(&server);
            async move {
                let mut http = http1::Builder::new();
                http.keep_alive(false).max_buf_size(LONGEST).timer(TokioTimer::new());
                http.header_read_timeout(HEAD_DEADLINE);
                let service =
                    service_fn(|request| answer(request, Arc::clone(&server), Arc::clone(&connection)));
                if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                    tracing::debug!("page: {error}");
                }
            }
        };
        serve_each(listener, CONNECTIONS, each).await
    })
}

/// Sends new data to all viewers, again and again.
async fn tell(server: Arc<PageServer>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if server.with_viewers(|viewers| viewers.is_empty()) {
            continue;
        }
        let source = Arc::clone(&server.source);
        let Ok(events) = tokio::task::spawn_blocking(move || source.changes()).await else { continue };
        // A comment, so that a viewer that has gone is noticed.
        let beat = events.is_empty().then(|| Bytes::from_static(b":\n\n"));
        let lines: Vec<Bytes> = events.iter().map(PageEvent::bytes).chain(beat).collect();
        server.with_viewers(|viewers| viewers.retain(|viewer| viewer.send(&lines)));
    }
}

impl PageServer {
    fn with_viewers<R>(&self, act: impl FnOnce(&mut Vec<Viewer>) -> R) -> R {
        act(&mut self.viewers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a viewer: everything at first, then what is new.
    async fn view(&self, connection: Connection) -> Result<Response<Body>, Infallible> {
        let source = Arc::clone(&self.source);
        let Ok(events) = tokio::task::spawn_blocking(move || source.all()).await else {
            return Ok(said(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "there are no data\n"));
        };
        let (events_to, receiver) = mpsc::channel(PENDING + events.len());
        for event in events {
            // The channel has room for all of them.
            let _ = events_to.try_send(event.bytes());
        }
        self.with_viewers(|viewers| viewers.push(Viewer { events: events_to, connection }));
        let frames = ReceiverStream::new(receiver).map(|bytes| Ok(Frame::data(bytes)));
        Ok(response(StatusCode::OK, "text/event-stream", BodyExt::boxed(StreamBody::new(frames))))
    }
}

impl PageServer {
    /// A document by its name and the query, which is the value that it is asked for with, percent-encoded.
    async fn document(&self, name: &str, query: &str) -> Result<Response<Body>, Infallible> {
        let (source, name) = (Arc::clone(&self.source), name.to_owned());
        let value = percent_decode_str(query).decode_utf8_lossy().into_owned();
        let made = tokio::task::spawn_blocking(move || source.document(&name, &value)).await;
        Ok(match made.ok().flatten() {
            Some(text) => {
                response(StatusCode::OK, "application/json", BodyExt::boxed(Full::new(text.into())))
            }
            None => said(StatusCode::NOT_FOUND, "text/plain", "there is no such document\n"),
        })
    }
}

async fn answer(
    request: Request<Incoming>,
    server: Arc<PageServer>,
    connection: Connection,
) -> Result<Response<Body>, Infallible> {
    let said = |status, text: &'static str| Ok(said(status, "text/plain", text));
    if !is_for_this_machine(&request) {
        return said(StatusCode::MISDIRECTED_REQUEST, "ask by a loopback address or localhost\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return said(StatusCode::METHOD_NOT_ALLOWED, "only GET is understood\n");
    }
    let path = request.uri().path();
    let document = path.strip_prefix(DATA);
    if path == "/events" || document.is_some() {
        let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = given.and_then(|value| value.strip_prefix("Bearer "));
        if !token.is_some_and(|token| server.token.is(token)) {
            return said(StatusCode::UNAUTHORIZED, "the token is in the address that was printed\n");
        }
        return match document {
            Some(name) => server.document(name, request.uri().query().unwrap_or_default()).await,
            None => server.view(connection).await,
        };
    }
    match server.files.iter().find(|file| file.path == path) {
        Some(file) => Ok(self::said(StatusCode::OK, file.kind, file.text)),
        None => said(StatusCode::NOT_FOUND, "the page is at /\n"),
    }
}

/// Returns true if the request names a loopback address or `localhost` as its host.
fn is_for_this_machine(request: &Request<Incoming>) -> bool {
    let named = request.headers().get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let port = named.rfind(':').filter(|at| !named[*at..].contains(']'));
    let host = named[..port.unwrap_or(named.len())].trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn said(status: StatusCode, kind: &'static str, text: &'static str) -> Response<Body> {
    response(status, kind, BodyExt::boxed(Full::new(Bytes::from_static(text.as_bytes()))))
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let fields: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in fields {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const FILES: &[PageFile] = &[PageFile { path: "/", kind: "text/html", text: "<p>a page" }];

    #[derive(Default)]
    struct Numbers {
        asked: AtomicUsize,
        bytes: usize,
    }

    impl PageSource for Numbers {
        fn all(&self) -> Vec<PageEvent> {
            vec![PageEvent { name: "first", data: "0".to_owned() }]
        }

        fn changes(&self) -> Vec<PageEvent> {
            let n = self.asked.fetch_add(1, Ordering::SeqCst);
            vec![PageEvent { name: "next", data: format!("{n}{}", "x".repeat(self.bytes)) }]
        }

        fn document(&self, path: &str, value: &str) -> Option<String> {
            (path == "echo").then(|| format!("{value:?}"))
        }
    }

    fn server(source: &Arc<Numbers>) -> (SocketAddr, PageToken) {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let address = listener.local_addr().expect("an address");
        let token = PageToken::random().expect("random numbers");
        let (secret, source) = (token.clone(), Arc::clone(source));
        std::thread::spawn(move || serve(listener, FILES, secret, source));
        (address, token)
    }

    fn asked(address: SocketAddr, head: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).expect("asked");
        stream
    }

    fn answered(address: SocketAddr, head: &str) -> String {
        let mut text = String::new();
        let _ = asked(address, head).read_to_string(&mut text);
        text
    }

    #[test]
    fn files_are_for_everybody_and_data_for_the_token() {
        let (address, token) = server(&Arc::default());
        let page = answered(address, "GET / HTTP/1.1\r\nHost: localhost:1");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("<p>a page"), "{page}");
        assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
        let mut wrong = token.to_string();
        wrong.replace_range(0..1, if wrong.starts_with('0') { "1" } else { "0" });
        for (head, status) in [
            ("GET /events HTTP/1.1\r\nHost: 127.0.0.1".to_owned(), "401"),
            (format!("GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {wrong}"), "401"),
            ("GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ".to_owned(), "401"),
            (format!("GET /events?token={token} HTTP/1.1\r\nHost: 127.0.0.1"), "401"),
            (format!("GET /events HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {token}"), "421"),
            ("GET / HTTP/1.1\r\nHost: evil.example:80".to_owned(), "421"),
            ("GET /data/echo?a HTTP/1.1\r\nHost: 127.0.0.1".to_owned(), "401"),
            (format!("GET /data/none HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}"), "404"),
            ("GET /../secret HTTP/1.1\r\nHost: [::1]:80".to_owned(), "404"),
            ("DELETE / HTTP/1.1\r\nHost: 127.0.0.1".to_owned(), "405"),
        ] {
            let text = answered(address, &head);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {text}");
        }
    }

    #[test]
    fn documents_are_made_for_a_value() {
        let (address, token) = server(&Arc::default());
        let head = "GET /data/echo?a%20%26b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer";
        let text = answered(address, &format!("{head} {token}"));
        assert!(text.contains("application/json") && text.ends_with("\"a &b\""), "{text}");
    }

    #[test]
    fn a_viewer_gets_everything_and_then_what_is_new() {
        let source = Arc::default();
        let (address, token) = server(&source);
        let head = format!("GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}");
        let mut lines = BufReader::new(asked(address, &head)).lines().map(|line| line.expect("a line"));
        for wanted in ["event: first", "data: 0", "event: next"] {
            assert!(lines.any(|line| line == wanted), "{wanted}");
        }
    }

    /// Waits until nothing is made for several intervals.
    fn until_nothing_is_made(source: &Numbers) {
        loop {
            let before = source.asked.load(Ordering::SeqCst);
            std::thread::sleep(10 * INTERVAL);
            if source.asked.load(Ordering::SeqCst) == before {
                return;
            }
        }
    }

    #[test]
    fn data_are_made_only_for_viewers() {
        let source = Arc::new(Numbers::default());
        let (address, token) = server(&source);
        std::thread::sleep(5 * INTERVAL);
        assert_eq!(source.asked.load(Ordering::SeqCst), 0, "nobody is there");
        let head = format!("GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}");
        let viewer = asked(address, &head);
        while source.asked.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(INTERVAL);
        }
        drop(viewer);
        until_nothing_is_made(&source);
    }

    #[test]
    fn a_viewer_that_does_not_read_is_dropped() {
        // Each event is more than the buffers of a connection hold.
        let source = Arc::new(Numbers { bytes: 8 << 20, ..Numbers::default() });
        let (address, token) = server(&source);
        let head = format!("GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}");
        let mut silent = asked(address, &head);
        while source.asked.load(Ordering::SeqCst) < PENDING {
            std::thread::sleep(INTERVAL);
        }
        until_nothing_is_made(&source);
        // Its connection is closed, too: reading what was sent comes to an end, or to a reset.
        let end = silent.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert!(!matches!(end, Err(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)), "{end:?}");
    }

    #[test]
    fn other_machines_are_not_served() {
        let why = listen("0.0.0.0:0".parse().expect("an address")).expect_err("not a loopback address");
        assert!(why.contains("--web"), "{why}");
    }

    #[test]
    fn a_token_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("millstream-token-{}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef\n").expect("a file");
        let read = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
            PageToken::read(&path)
        };
        assert!(read(0o644).is_err());
        assert_eq!(read(0o600).expect("a token").to_string(), "0123456789abcdef");
        std::fs::write(&path, "short").expect("a file");
        assert!(read(0o600).is_err());
        std::fs::remove_file(&path).expect("ours");
    }
}
