use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use super::*;

#[derive(Debug)]
struct SampleCollector;

impl Collector for SampleCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let label = [("program", "nat")];
        let mut family = encoder.encode_descriptor("packets", "Packets", None, MetricType::Counter)?;
        ConstCounter::new(7u64).encode(family.encode_family(&label)?)?;
        let mut family = encoder.encode_descriptor("rate", "Rate", None, MetricType::Gauge)?;
        ConstGauge::new(2.5f64).encode(family.encode_family(&label)?)?;
        let seconds = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor("load", "Load time", seconds, MetricType::Histogram)?;
        let histogram = Histogram::new([0.1, 1.0]);
        [0.05, 0.5, 0.6, 3.0].into_iter().for_each(|time| histogram.observe(time));
        histogram.encode(family.encode_family(&label)?)
    }
}

/// A source of some spans, once.
struct Sample(Vec<TelemetrySpan>);

impl Sample {
    fn with_spans(count: u64) -> Sample {
        let ids = TraceIds::default();
        let trace = ids.trace("generation 1");
        Sample((0..count).map(|n| TelemetrySpan::root(&ids, trace, "specialize", n, n + 1)).collect())
    }
}

impl TelemetrySource for Sample {
    fn collector(&self) -> Box<dyn Collector> {
        Box::new(SampleCollector)
    }

    fn ended_spans(&mut self) -> Vec<TelemetrySpan> {
        std::mem::take(&mut self.0)
    }
}

/// A request that a collector received.
struct Received {
    path: String,
    token: Option<String>,
    body: Bytes,
}

/// A collector that answers with these statuses and bodies, and with success when there are none left.
fn collector(answers: Vec<(u16, Vec<u8>)>) -> (String, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, received) = channel();
    let state = Arc::new((Mutex::new(answers.into_iter()), sender));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            listener.set_nonblocking(true).expect("set");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(|request| answer(request, Arc::clone(&state)));
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            }
        });
    });
    (url, received)
}

type CollectorState = Arc<(Mutex<std::vec::IntoIter<(u16, Vec<u8>)>>, Sender<Received>)>;

async fn answer(
    request: Request<Incoming>,
    state: CollectorState,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let token = request.headers().get("authorization").map(|v| v.to_str().expect("text").to_owned());
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let (status, text) = state.0.lock().expect("not poisoned").next().unwrap_or((200, Vec::new()));
    // A test that has ended reads no more.
    let _ = state.1.send(Received { path, token, body });
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = hyper::StatusCode::from_u16(status).expect("a status");
    // One request a connection, as the runtime serves one connection at a time.
    response.headers_mut().insert("connection", hyper::header::HeaderValue::from_static("close"));
    response.headers_mut().insert("location", hyper::header::HeaderValue::from_static("/elsewhere"));
    Ok(response)
}

fn export(url: &str, headers: &str) -> Export {
    let endpoint = OtlpEndpoint::new(url, headers).expect("an endpoint");
    Export::new(endpoint.for_service(None, "zone=a%20b").expect("attributes")).expect("a client")
}

#[test]
fn metrics_and_spans_arrive_as_the_collector_expects_them() {
    let (url, received) = collector(Vec::new());
    let mut export = export(&format!("{url}/"), "authorization=Bearer%20secret");
    export.once(&mut Sample::with_spans(2), DEADLINE);
    assert_eq!(export.failing, None);

    let metrics = received.recv().expect("metrics");
    assert_eq!((metrics.path.as_str(), metrics.token.as_deref()), ("/v1/metrics", Some("Bearer secret")));
    let request = ExportMetricsServiceRequest::decode(metrics.body).expect("a request");
    let [resource] = request.resource_metrics.as_slice() else { panic!("{request:?}") };
    let attributes = &resource.resource.as_ref().expect("a resource").attributes;
    let zone = attributes.iter().find(|a| a.key == "zone").expect("the attribute given");
    assert_eq!(*zone, AttributeValue::Text("a b".to_owned()).named("zone"));
    let metrics = &resource.scope_metrics[0].metrics;
    let names: Vec<_> = metrics.iter().map(|m| (m.name.as_str(), m.unit.as_str())).collect();
    assert_eq!(names, [("millstream_build_info", ""), ("packets", ""), ("rate", ""), ("load", "s")]);
    let Some(Data::Sum(sum)) = &metrics[1].data else { panic!("{metrics:?}") };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{sum:?}");
    let point = &sum.data_points[0];
    assert_eq!(point.value, Some(Number::AsDouble(7.0)));
    assert!(0 < point.start_time_unix_nano && point.start_time_unix_nano <= point.time_unix_nano);
    assert_eq!(point.attributes, [AttributeValue::Text("nat".to_owned()).named("program")]);
    let Some(Data::Gauge(gauge)) = &metrics[2].data else { panic!("{metrics:?}") };
    assert_eq!(gauge.data_points[0].value, Some(Number::AsDouble(2.5)));
    let Some(Data::Histogram(histogram)) = &metrics[3].data else { panic!("{metrics:?}") };
    let point = &histogram.data_points[0];
    assert_eq!(
        (point.explicit_bounds.as_slice(), point.bucket_counts.as_slice()),
        (&[0.1, 1.0][..], &[1, 2, 1][..])
    );
    assert_eq!((point.count, point.sum), (4, Some(4.15)));

    let spans = received.recv().expect("spans");
    assert_eq!(spans.path, "/v1/traces");
    let request = ExportTraceServiceRequest::decode(spans.body).expect("a request");
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans.len(), 2);
    assert_eq!(spans[0].trace_id, spans[1].trace_id);
    assert_ne!(spans[0].span_id, spans[1].span_id);
}

#[test]
fn spans_wait_for_a_collector_that_is_away() {
    let (url, received) = collector(vec![(503, Vec::new()), (200, Vec::new()), (429, Vec::new())]);
    let mut export = export(&url, "");
    let mut source = Sample::with_spans(SPANS_OF_REQUEST as u64 + 1);
    export.once(&mut source, DEADLINE);
    assert!(export.failing.as_ref().is_some_and(|reason| reason.contains("503")), "{:?}", export.failing);
    assert_eq!(received.try_iter().count(), 1, "a collector that is away is not asked twice");
    export.once(&mut source, DEADLINE);
    assert_eq!((export.waiting.len(), export.dropped), (SPANS_OF_REQUEST + 1, 0));
    export.once(&mut source, DEADLINE);
    assert_eq!((export.failing.as_ref(), export.waiting.len(), export.dropped), (None, 0, 0));

    // Nobody listens any more.
    let gone = TcpListener::bind("127.0.0.1:0").expect("listens").local_addr().expect("an address");
    let mut export = self::export(&format!("http://{gone}"), "");
    export.once(&mut Sample::with_spans(WAITING_SPANS as u64 + 5), DEADLINE);
    assert!(export.failing.is_some());
    assert_eq!((export.waiting.len(), export.dropped), (WAITING_SPANS, 5));
}

#[test]
fn spans_that_the_collector_rejects_are_dropped_and_counted() {
    let partial = ExportTraceServiceResponse {
        partial_success: Some(opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess {
            rejected_spans: 2,
            error_message: "too old".to_owned(),
        }),
    };
    for (status, body, dropped) in [
        (200, partial.encode_to_vec(), 2),
        (400, Vec::new(), 3),
        // Elsewhere nobody is asked.
        (302, Vec::new(), 3),
        (200, b"<html>no OTLP".to_vec(), 3),
        (200, vec![0; 2 * LONGEST_ANSWER as usize], 3),
    ] {
        let (url, received) = collector(vec![(200, Vec::new()), (status, body)]);
        let mut export = export(&url, "");
        export.once(&mut Sample::with_spans(3), DEADLINE);
        assert_eq!((export.waiting.len(), export.dropped), (0, dropped), "{status}: {:?}", export.failing);
        assert!(export.failing.is_some());
        assert_eq!(received.try_iter().count(), 2);
    }
}

#[test]
fn a_collector_that_never_answers_is_given_up_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let mut export = export(&url, "");
    export.once(&mut Sample::with_spans(1), Duration::from_millis(200));
    assert!(export.failing.is_some());
    assert_eq!(export.waiting.len(), 1);
}

#[test]
fn the_rest_is_exported_at_the_end() {
    let (url, received) = collector(Vec::new());
    let endpoint = OtlpEndpoint::new(&url, "").expect("an endpoint");
    let hour = Duration::from_secs(3600);
    let exporter = OtlpExporter::start_with_interval(endpoint, Sample::with_spans(1), hour);
    exporter.expect("a thread").end();
    let paths: Vec<_> = received.try_iter().map(|r| r.path).collect();
    assert_eq!(paths, ["/v1/metrics", "/v1/traces"]);
}

#[test]
fn addresses_and_headers_that_cannot_be_used_are_refused() {
    for url in ["", "localhost:4318", "ftp://a", "http://", "http://a?b=c", "http://a b"] {
        assert!(OtlpEndpoint::new(url, "").is_err(), "{url:?}");
    }
    for headers in ["a", "a b=c", "a=%0a", "a=%ff"] {
        let error = OtlpEndpoint::new("http://a:1/b", headers).expect_err(headers);
        assert!(error.contains("OTEL_EXPORTER_OTLP_HEADERS"), "{error}");
    }
    OtlpEndpoint::new("https://collector.example/otlp/", "x-key=1, y-key=2,").expect("an endpoint");
    let endpoint = OtlpEndpoint::new("http://a", "").expect("an endpoint");
    assert!(endpoint.clone().for_service(None, "a").is_err());
    let attributes = "service.name=other,host.name=h";
    let other = endpoint.clone().for_service(None, attributes).expect("attributes").resource;
    assert!(other.contains(&("service.name".to_owned(), "other".to_owned())), "{other:?}");
    let named = endpoint.for_service(Some("mine"), attributes).expect("attributes").resource;
    let value =
        |key: &str| named.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
    assert_eq!((value("service.name"), value("host.name")), (vec!["mine"], vec!["h"]));
}
