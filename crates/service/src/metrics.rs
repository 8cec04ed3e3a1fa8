//! Metrics over HTTP, in the Prometheus text format: connections and answers. The contents come from the
//! caller.
//!
//! The server (`hyper`) answers `GET /metrics` and nothing else, one request a connection. Several clients
//! are served at once, and each connection has one deadline from its first byte to its last: a client that
//! sends or reads slowly delays nobody.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_protobuf, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::connections::serve_each;

/// Time that a connection may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of a request's head at most.
const LONGEST: usize = 8 << 10;
/// Connections at a time; others wait until one of these ends.
const CLIENTS: usize = 64;
/// Maximum number of texts made at a time.
const WRITERS: usize = 4;

/// Makes the text of an answer.
pub type MetricsRenderer = Arc<dyn Fn() -> String + Send + Sync>;

/// Listens at the metrics address; or returns the error and advice.
pub fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, String> {
    let listen = |address| {
        TcpListener::bind(address)
            .map_err(|error| format!("{address}: {error}\n  give --metrics another address"))
    };
    address.map(listen).transpose()
}

/// All metrics of a collector, and the build's, in the Prometheus text format.
pub fn text(collector: Box<dyn Collector>) -> String {
    let mut text = String::new();
    match prometheus_text::encode(&mut text, &registry(collector)) {
        Ok(()) => text,
        Err(std::fmt::Error) => String::new(),
    }
}

/// All metrics of a collector, and the build's, in Prometheus' data model.
pub(crate) fn families(collector: Box<dyn Collector>) -> Result<Vec<MetricFamily>, std::fmt::Error> {
    prometheus_protobuf::encode(&registry(collector))
}

fn registry(collector: Box<dyn Collector>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(BuildInfoCollector));
    registry.register_collector(collector);
    registry
}

/// `millstream_build_info`, whose labels identify this build.
#[derive(Debug)]
struct BuildInfoCollector;

impl Collector for BuildInfoCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Build that answers: always 1";
        let mut family = encoder.encode_descriptor("millstream_build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        ConstGauge::new(1).encode(family.encode_family(&labels)?)
    }
}

/// Answers requests with the current result of `text`, for as long as the process lives.
///
/// # Errors
/// If the system does not let this thread wait for several connections.
pub fn serve(listener: TcpListener, text: MetricsRenderer) -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().max_blocking_threads(WRITERS).build()?;
    runtime.block_on(serve_each(listener, CLIENTS, |stream, _| {
        let text = Arc::clone(&text);
        async move {
            let mut server = http1::Builder::new();
            server.keep_alive(false).max_buf_size(LONGEST).timer(TokioTimer::new());
            let service = service_fn(|request| answer(request, Arc::clone(&text)));
            let connection = server.serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(DEADLINE, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!("metrics: {error}"),
                Err(_) => tracing::debug!("metrics: a client was too slow"),
            }
        }
    }))
}

async fn answer(
    request: Request<Incoming>,
    text: MetricsRenderer,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_there = request.uri().path() == "/metrics";
    drop(request);
    let (status, kind, body) = match (is_read, is_there) {
        (true, true) => match tokio::task::spawn_blocking(move || text()).await {
            Ok(text) => (StatusCode::OK, prometheus_text::CONTENT_TYPE, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
        },
        (true, false) => (StatusCode::NOT_FOUND, "text/plain", "metrics are at /metrics\n".to_owned()),
        (false, _) => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is understood\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    fn server() -> SocketAddr {
        let listener =
            listen(Some("127.0.0.1:0".parse().expect("an address"))).expect("listens").expect("asked");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || serve(listener, Arc::new(|| "figures 1\n# EOF\n".to_owned())));
        address
    }

    fn said(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        stream.write_all(request.as_bytes()).expect("asked");
        let mut text = String::new();
        // A server that has not read all of a request resets the connection after its answer.
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn metrics_are_at_their_path_and_nothing_else_is_anywhere() {
        let address = server();
        let ok = said(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(ok.starts_with("HTTP/1.1 200 OK\r\n") && ok.ends_with("\r\n\r\nfigures 1\n# EOF\n"), "{ok}");
        assert!(ok.contains("content-type: text/plain; version=0.0.4"), "{ok}");
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("GET /metrics/../etc HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"),
            ("nonsense\r\n\r\n", "400"),
        ] {
            let text = said(address, request);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {text}");
        }
        let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(2 * LONGEST));
        assert!(!said(address, &long).contains("200 OK"));
    }

    /// Connections that send nothing, half a request, or a byte now and then are closed at the deadline, and
    /// keep nobody else waiting.
    #[test]
    fn slow_clients_delay_nobody_and_are_given_up() {
        let address = server();
        let mut slow: Vec<TcpStream> =
            (0..CLIENTS / 2).map(|_| TcpStream::connect(address).expect("connected")).collect();
        let half = slow.len() / 2;
        slow[..half].iter_mut().for_each(|s| s.write_all(b"GET /metrics HTT").expect("said"));
        let mut trickle = slow[0].try_clone().expect("cloned");
        std::thread::spawn(move || {
            while trickle.write_all(b"P").is_ok() {
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        for _ in 0..3 {
            assert!(said(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").contains("figures 1"));
        }
        for mut stream in slow {
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
            // The connection is closed, perhaps after an answer that the request was bad or late.
            let closed = stream.read_to_end(&mut Vec::new());
            assert!(closed.is_ok() || closed.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset));
        }
    }
}

/// Faults of a text of metrics by the rules of `promtool check metrics`.
#[must_use]
pub fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut types, mut helps) = (std::collections::BTreeMap::new(), std::collections::BTreeSet::new());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help)) if !help.trim().is_empty() => {
                helps.insert(name);
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                types.insert(name, kind);
            }
            (Some("#"), ..) => faults.push(format!("no description: {line}")),
            _ => {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let of_histogram =
                    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let family =
                    of_histogram.filter(|family| types.get(family) == Some(&"histogram")).unwrap_or(name);
                let Some(kind) = types.get(family) else {
                    faults.push(format!("{name} has no type"));
                    continue;
                };
                if !helps.contains(family) {
                    faults.push(format!("{name} has no help"));
                }
                if (*kind == "counter") != family.ends_with("_total") {
                    faults.push(format!("{name} is a {kind}"));
                }
                let units = [
                    "nanosecond",
                    "microsecond",
                    "millisecond",
                    "_ns",
                    "_us",
                    "_ms",
                    "minute",
                    "hour",
                    "percent",
                ];
                faults.extend(
                    units.iter().filter(|unit| family.contains(**unit)).map(|u| format!("{name} is in {u}")),
                );
                let words = ["counter", "gauge", "histogram", "summary"];
                faults.extend(
                    words.iter().filter(|word| family.contains(**word)).map(|w| format!("{name} has {w}")),
                );
            }
        }
    }
    faults
}

#[cfg(test)]
mod text_tests {
    use prometheus_client::metrics::counter::ConstCounter;
    use prometheus_client::registry::Unit;

    use super::*;

    #[derive(Debug)]
    struct Some;

    impl Collector for Some {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
            let seconds = Option::Some(&Unit::Seconds);
            let family =
                encoder.encode_descriptor("millstream_busy", "Time", seconds, MetricType::Counter)?;
            ConstCounter::new(1.5).encode(family)
        }
    }

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let text = text(Box::new(Some));
        assert!(text.contains("# HELP millstream_busy_seconds_total Time\n"), "{text}");
        assert!(
            text.contains(
                "# TYPE millstream_busy_seconds_total counter\nmillstream_busy_seconds_total 1.5\n"
            )
        );
        assert!(!text.contains("EOF") && !text.contains("UNIT"), "{text}");
        assert!(text.contains("millstream_build_info{version=\""), "{text}");
        assert_eq!(faults(&text), [""; 0]);
    }

    #[test]
    fn faults_are_found() {
        for text in [
            "x_total 1\n",
            "# HELP x y\n# TYPE x counter\nx 1\n",
            "# TYPE x gauge\nx 1\n",
            "# HELP x_nanoseconds y\n# TYPE x_nanoseconds gauge\nx_nanoseconds 1\n",
            "# HELP x_total y\n# TYPE x_total gauge\nx_total 1\n",
        ] {
            assert_eq!(faults(text).len(), 1, "{text}");
        }
    }
}
