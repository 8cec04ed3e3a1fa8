//! Metrics over HTTP, in the Prometheus text format: who asks, and how it is answered. What there is to be told is the business of who serves.
//!
//! The server answers `GET /metrics` and nothing else, one request a connection, and gives a slow client up after a moment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Media type of [`text`]: the format that all scrapers and `promtool check metrics` read.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
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

/// All that a collector tells, and which build tells it.
pub(crate) fn text(collector: Box<dyn Collector>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Build));
    registry.register_collector(collector);
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => classic(&text),
        Err(std::fmt::Error) => String::new(),
    }
}

/// `millstream_build_info`, whose labels say which build this is.
#[derive(Debug)]
struct Build;

impl Collector for Build {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Build that answers: always 1";
        let mut family = encoder.encode_descriptor("millstream_build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        ConstGauge::new(1).encode(family.encode_family(&labels)?)
    }
}

/// OpenMetrics text in the Prometheus text format: descriptions of counters have the name that their samples have, and there are no lines of
/// units and of the end. Each family is described before its samples.
fn classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut counters = std::collections::BTreeSet::new();
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        if let (Some("#"), Some("TYPE"), Some(name), Some("counter")) =
            (words.next(), words.next(), words.next(), words.next())
        {
            counters.insert(name);
        }
    }
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        let (sign, what, name, rest) = (words.next(), words.next(), words.next(), words.next());
        match (sign, what, name, rest) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest))
                if counters.contains(name) =>
            {
                out.push_str(&format!("# {what} {name}_total {rest}\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
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
        (Some("GET"), Some("/metrics")) => ("200 OK", MEDIA_TYPE, text()),
        (Some("GET"), Some(_)) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET is understood\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Faults of a text of metrics by the rules of `promtool check metrics`; for tests.
#[cfg(test)]
pub(crate) fn faults(text: &str) -> Vec<String> {
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
mod tests {
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
        assert!(text.contains("# HELP millstream_busy_seconds_total Time.\n"), "{text}");
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
