//! Telemetry of `daemon --otlp`, as a collector receives it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use millstream_kernel::{Namespace, interface_index, set_up, testing};
use millstream_programs::router;
use millstream_programs::traffic::FlowLocality;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use super::{Daemon, fill, namespace, router_on, under_load};
use crate::messages::says;
use crate::session::Place;

/// Address of the collector in the daemon's namespace.
const ADDRESS: &str = "127.0.0.1:4318";

/// A collector that accepts everything, and passes on paths and bodies.
fn collector(namespace: &Namespace) -> Receiver<(String, Vec<u8>)> {
    let listener = namespace
        .enter(|| {
            set_up(interface_index("lo").unwrap()).unwrap();
            TcpListener::bind(ADDRESS).unwrap()
        })
        .unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            while let Some(request) = next_request(&mut reader) {
                // A test that has ended reads no more.
                let _ = sender.send(request);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                reader.get_mut().write_all(answer).unwrap();
            }
        }
    });
    received
}

/// Path and body of a connection's next request.
fn next_request(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1).unwrap().to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Some((path, body))
}

#[test]
fn a_collector_gets_metrics_and_a_trace_of_each_generation() {
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["ot0"]);
    let received = collector(&namespace);
    let place = Place::new("otlp");
    let keys = format!("otlp = \"http://{ADDRESS}\"\n");
    let daemon = Daemon::start(
        &namespace,
        &place,
        &format!("{keys}{}interval-ms = 200\n", router_on("core", &["ot0"])),
    );
    daemon.until_state("core", "running");
    let port = namespace.enter(|| interface_index("ot0").unwrap()).unwrap();
    let config = router::generate(100, &[port], 4, 1);
    fill(&place, "core", &config);
    under_load(&namespace, "ot0x", &router::flows(&config, 50, FlowLocality::HIGH, 1), || {
        let (mut metrics, mut spans): (Vec<String>, Vec<Span>) = Default::default();
        while !spans.iter().any(|span| span.name == "specialize") {
            let (path, body) = received.recv_timeout(Duration::from_secs(300)).expect("a request");
            match path.as_str() {
                "/v1/metrics" => {
                    let request = ExportMetricsServiceRequest::decode(body.as_slice()).unwrap();
                    let scopes = request.resource_metrics.into_iter().flat_map(|r| r.scope_metrics);
                    metrics.extend(scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name));
                }
                "/v1/traces" => {
                    let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
                    let scopes = request.resource_spans.into_iter().flat_map(|r| r.scope_spans);
                    spans.extend(scopes.flat_map(|scope| scope.spans));
                }
                path => panic!("nothing is at {path}"),
            }
        }
        for name in ["millstream_build_info", "millstream_up", "millstream_compile"] {
            assert!(metrics.iter().any(|metric| metric == name), "{name} is not in {metrics:?}");
        }
        let specialize = spans.iter().find(|span| span.name == "specialize").unwrap();
        assert!(specialize.start_time_unix_nano < specialize.end_time_unix_nano, "{specialize:?}");
        let phases = spans.iter().filter(|span| span.parent_span_id == specialize.span_id);
        assert_eq!(phases.map(|span| span.name.as_str()).collect::<Vec<_>>(), ["compile", "load", "install"]);
        assert!(spans.iter().all(|span| span.trace_id.len() == 16 && span.span_id.len() == 8));
    });
}

#[test]
fn an_address_that_is_none_is_refused_before_anything_is_attached() {
    let daemon = |url: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let program = concat!("lo=", env!("CARGO_BIN_EXE_millstream"));
        command.args(["daemon", "--check", "--program", program, "--otlp", url]).output().unwrap()
    };
    says(&daemon("collector:4318"), 2, &["collector:4318", "--otlp"]);
}
