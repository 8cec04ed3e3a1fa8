//! OpenTelemetry: metrics and spans, sent to a collector by OTLP over HTTP with protobuf bodies
//! (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP").
//!
//! One thread sends at intervals. A collector that is slow, away or hostile costs this thread time and nobody
//! else: each export has one deadline, answers are read up to a limit, and redirects are not followed. Spans
//! wait for a collector that is away; of too many, the oldest are dropped, and counted in the log.

mod convert;
mod span;

use std::collections::VecDeque;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};
use percent_encoding::percent_decode_str;
use prometheus_client::collector::Collector;
use prost::Message;
use ureq::http::{HeaderName, HeaderValue, StatusCode, Uri};

pub use span::{AttributeValue, TelemetrySpan, TraceIds};

/// Interval between two exports.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Time that an export may take, all its requests together.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time for the last export, at the end of the process.
const LAST_DEADLINE: Duration = Duration::from_secs(2);
/// Bytes of an answer at most.
const LONGEST_ANSWER: u64 = 64 << 10;
/// Spans of one request at most.
const SPANS_OF_REQUEST: usize = 1000;
/// Spans that wait at most.
const WAITING_SPANS: usize = 20_000;

/// Address of a collector, and the headers that it wants.
#[derive(Clone, Debug)]
pub struct OtlpEndpoint {
    /// Without a slash at its end: the paths of signals are appended.
    base: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes of this process.
    resource: Vec<(String, String)>,
}

impl OtlpEndpoint {
    /// An endpoint at a base URL, such as `http://localhost:4318`. `headers` is a list as in
    /// `OTEL_EXPORTER_OTLP_HEADERS`: `key=value,...`, percent-encoded.
    ///
    /// # Errors
    /// If the URL is not one of HTTP, or if the headers cannot be read: the message names the fault.
    pub fn new(url: &str, headers: &str) -> Result<OtlpEndpoint, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(format!("{url:?} is no URL of a collector, such as http://localhost:4318"));
        }
        if uri.query().is_some() {
            return Err(format!(
                "{url:?} has a query; the paths /v1/metrics and /v1/traces are appended to it"
            ));
        }
        let headers = pairs(headers).map_err(|error| format!("OTEL_EXPORTER_OTLP_HEADERS: {error}"))?;
        let headers = headers.into_iter().map(|(name, value)| {
            let header = name.parse::<HeaderName>().ok().zip(value.parse::<HeaderValue>().ok());
            header.ok_or_else(|| format!("OTEL_EXPORTER_OTLP_HEADERS: {name:?} cannot be a header"))
        });
        let base = url.trim_end_matches('/').to_owned();
        let headers = headers.collect::<Result<_, _>>()?;
        Ok(OtlpEndpoint { base, headers, resource: Vec::new() })
    }

    /// The endpoint, to which this process has attributes besides those that it has on its own, and a name:
    /// `service`, else that among the attributes, else `millstream`. `attributes` is a list as in
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    ///
    /// # Errors
    /// If the attributes cannot be read.
    pub fn for_service(mut self, service: Option<&str>, attributes: &str) -> Result<OtlpEndpoint, String> {
        self.resource = vec![
            ("service.name".to_owned(), service.unwrap_or("millstream").to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("process.pid".to_owned(), std::process::id().to_string()),
            ("host.name".to_owned(), rustix::system::uname().nodename().to_string_lossy().into_owned()),
        ];
        let given = pairs(attributes).map_err(|error| format!("OTEL_RESOURCE_ATTRIBUTES: {error}"))?;
        for (key, value) in given.into_iter().filter(|(key, _)| service.is_none() || key != "service.name") {
            self.resource.retain(|(known, _)| *known != key);
            self.resource.push((key, value));
        }
        Ok(self)
    }
}

/// Reads `key=value,...` with percent-encoded values, as OpenTelemetry's environment variables have it.
fn pairs(list: &str) -> Result<Vec<(String, String)>, String> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
            let value = percent_decode_str(value.trim()).decode_utf8();
            let value = value.map_err(|_| format!("the value of {:?} is not UTF-8", key.trim()))?;
            Ok((key.trim().to_owned(), value.into_owned()))
        })
        .collect()
}

/// Metrics and spans to export.
pub trait TelemetrySource: Send {
    /// Reader of the present metrics.
    fn collector(&self) -> Box<dyn Collector>;
    /// Spans that have ended since the last call.
    fn ended_spans(&mut self) -> Vec<TelemetrySpan>;
}

/// Thread that exports to a collector.
#[derive(Debug)]
pub struct OtlpExporter {
    end: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl OtlpExporter {
    /// Starts to export at intervals of [`INTERVAL`].
    ///
    /// # Errors
    /// If the system has no thread, or no certificates for an address of `https`.
    pub fn start(
        endpoint: OtlpEndpoint,
        source: impl TelemetrySource + 'static,
    ) -> Result<OtlpExporter, String> {
        OtlpExporter::start_with_interval(endpoint, source, INTERVAL)
    }

    fn start_with_interval(
        endpoint: OtlpEndpoint,
        mut source: impl TelemetrySource + 'static,
        interval: Duration,
    ) -> Result<OtlpExporter, String> {
        let mut export = Export::new(endpoint)?;
        let (end, ended) = sync_channel(1);
        let work = move || {
            loop {
                let is_last = ended.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
                export.once(&mut source, if is_last { LAST_DEADLINE } else { DEADLINE });
                if is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("ms-otlp".to_owned()).spawn(work);
        Ok(OtlpExporter { end, thread: thread.map_err(|error| format!("no thread: {error}"))? })
    }

    /// Exports the rest, in two seconds at most, and ends.
    pub fn end(self) {
        // A thread that has gone needs no order.
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

/// Result of a request that was not accepted.
enum ExportError {
    /// Another attempt may succeed.
    Retryable(String),
    Permanent(String),
}

/// State of the exporting thread.
struct Export {
    agent: ureq::Agent,
    endpoint: OtlpEndpoint,
    resource: Resource,
    /// Beginning of all counters, in nanoseconds of Unix time.
    start_ns: u64,
    waiting: VecDeque<TelemetrySpan>,
    dropped: usize,
    /// Reason why the last export failed: it is logged when it begins, and not at each interval.
    failing: Option<String>,
}

impl Export {
    fn new(endpoint: OtlpEndpoint) -> Result<Export, String> {
        let mut config = ureq::Agent::config_builder().max_redirects(0).http_status_as_error(false);
        if endpoint.base.starts_with("https:") {
            config = config.tls_config(crate::tls::client_config()?);
        }
        let resource = endpoint.resource.iter();
        let attributes = resource.map(|(key, value)| AttributeValue::Text(value.clone()).named(key));
        Ok(Export {
            agent: config.build().new_agent(),
            resource: Resource { attributes: attributes.collect(), ..Resource::default() },
            endpoint,
            start_ns: unix_ns(),
            waiting: VecDeque::new(),
            dropped: 0,
            failing: None,
        })
    }

    /// Exports the metrics and the spans that have ended.
    fn once(&mut self, source: &mut dyn TelemetrySource, time: Duration) {
        let deadline = Instant::now() + time;
        self.waiting.extend(source.ended_spans());
        let excess = self.waiting.len().saturating_sub(WAITING_SPANS);
        self.waiting.drain(..excess);
        self.dropped += excess;
        let metrics = self.send_metrics(source.collector(), deadline);
        // A collector that is away is not asked twice.
        let result = match metrics {
            Err(ExportError::Retryable(reason)) => Err(reason),
            metrics => self.send_spans(deadline).and(match metrics {
                Err(ExportError::Permanent(reason)) => Err(reason),
                _ => Ok(()),
            }),
        };
        match (result, self.failing.take()) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                tracing::info!(
                    collector = self.endpoint.base,
                    "telemetry is exported again; {} spans were dropped",
                    std::mem::take(&mut self.dropped)
                );
            }
            (Err(reason), before) => {
                if before.as_ref() != Some(&reason) {
                    tracing::warn!(collector = self.endpoint.base, "telemetry is not exported: {reason}");
                }
                self.failing = Some(reason);
            }
        }
    }

    fn send_metrics(&self, collector: Box<dyn Collector>, deadline: Instant) -> Result<(), ExportError> {
        let families = crate::metrics::families(collector)
            .map_err(|error| ExportError::Permanent(format!("the metrics cannot be encoded: {error}")))?;
        let metrics = convert::metrics(families, self.start_ns, unix_ns());
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics, schema_url: String::new() }];
        let resource = Some(self.resource.clone());
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, schema_url: String::new() }];
        let request = ExportMetricsServiceRequest { resource_metrics };
        let answer: ExportMetricsServiceResponse = self.post("/v1/metrics", &request, deadline)?;
        match answer.partial_success {
            Some(part) if part.rejected_data_points > 0 => Err(ExportError::Permanent(format!(
                "the collector rejects {} metrics: {:?}",
                part.rejected_data_points, part.error_message
            ))),
            _ => Ok(()),
        }
    }

    /// Sends the spans that wait. Those that cannot be sent now stay.
    fn send_spans(&mut self, deadline: Instant) -> Result<(), String> {
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(SPANS_OF_REQUEST);
            let spans = self.waiting.iter().take(count).map(TelemetrySpan::message).collect();
            let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, schema_url: String::new() }];
            let resource = Some(self.resource.clone());
            let resource_spans = vec![ResourceSpans { resource, scope_spans, schema_url: String::new() }];
            let request = ExportTraceServiceRequest { resource_spans };
            let answer: Result<ExportTraceServiceResponse, _> = self.post("/v1/traces", &request, deadline);
            let answer = match answer {
                Err(ExportError::Retryable(reason)) => return Err(reason),
                answer => answer,
            };
            self.waiting.drain(..count);
            let rejected = match answer {
                Ok(answer) => answer.partial_success.filter(|part| part.rejected_spans > 0).map(|part| {
                    let rejected = usize::try_from(part.rejected_spans).unwrap_or(count).min(count);
                    let reason = format!("the collector rejects spans: {:?}", part.error_message);
                    (rejected, reason)
                }),
                Err(ExportError::Retryable(reason) | ExportError::Permanent(reason)) => Some((count, reason)),
            };
            if let Some((rejected, reason)) = rejected {
                self.dropped += rejected;
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Sends a request for one signal, and reads the answer.
    fn post<A: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
        deadline: Instant,
    ) -> Result<A, ExportError> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut post = self.agent.post(format!("{}{path}", self.endpoint.base));
        for (name, value) in &self.endpoint.headers {
            post = post.header(name, value);
        }
        let post = post.header("content-type", "application/x-protobuf");
        let post = post.config().timeout_global(Some(left)).build();
        let mut answer = post
            .send(request.encode_to_vec().as_slice())
            .map_err(|error| ExportError::Retryable(error.to_string()))?;
        let status = answer.status();
        if !status.is_success() {
            let reason = format!("{path}: the collector answers {status}");
            // As the specification has it ("Retryable Response Codes").
            return Err(match status {
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => ExportError::Retryable(reason),
                _ => ExportError::Permanent(reason),
            });
        }
        let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec();
        let body = body.map_err(|error| ExportError::Permanent(format!("{path}: its answer: {error}")))?;
        A::decode(body.as_slice())
            .map_err(|error| ExportError::Permanent(format!("{path}: its answer is no OTLP: {error}")))
    }
}

/// Name of the code that metrics and spans are of.
fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "millstream".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// Nanoseconds of Unix time.
fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
