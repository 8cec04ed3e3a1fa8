//! Spans: work with a beginning, an end, and attributes.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status, span::SpanKind};

/// Value of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// A number.
    Int(i64),
    /// A number that need not be whole.
    Float(f64),
}

impl AttributeValue {
    pub(super) fn named(self, key: impl Into<String>) -> KeyValue {
        let value = match self {
            AttributeValue::Text(text) => Value::StringValue(text),
            AttributeValue::Int(number) => Value::IntValue(number),
            AttributeValue::Float(number) => Value::DoubleValue(number),
        };
        KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
    }
}

/// Makes the numbers of traces and spans: random ones, by keys that each process chooses anew.
#[derive(Debug, Default)]
pub struct TraceIds {
    keys: [RandomState; 2],
    spans: AtomicU64,
}

impl TraceIds {
    /// Number of the trace of a subject: the same for the same subject.
    pub fn trace(&self, subject: impl std::hash::Hash) -> [u8; 16] {
        let [a, b] = self.keys.each_ref().map(|keys| keys.hash_one(&subject));
        // Zero means that there is no trace.
        (u128::from(a) << 64 | u128::from(b)).max(1).to_be_bytes()
    }

    fn span(&self) -> [u8; 8] {
        let number = self.spans.fetch_add(1, Ordering::Relaxed);
        self.keys[0].hash_one(number).max(1).to_be_bytes()
    }
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub struct TelemetrySpan {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    name: &'static str,
    start_ns: u64,
    end_ns: u64,
    attributes: Vec<(&'static str, AttributeValue)>,
    failure: Option<String>,
}

impl TelemetrySpan {
    /// A span of a trace that has no parent. Times are in nanoseconds of Unix time.
    pub fn root(
        ids: &TraceIds,
        trace: [u8; 16],
        name: &'static str,
        start_ns: u64,
        end_ns: u64,
    ) -> TelemetrySpan {
        TelemetrySpan {
            trace,
            id: ids.span(),
            parent: None,
            name,
            start_ns: start_ns.min(end_ns),
            end_ns,
            attributes: Vec::new(),
            failure: None,
        }
    }

    /// A part of this span.
    pub fn child(&self, ids: &TraceIds, name: &'static str, start_ns: u64, end_ns: u64) -> TelemetrySpan {
        TelemetrySpan {
            parent: Some(self.id),
            ..TelemetrySpan::root(ids, self.trace, name, start_ns, end_ns)
        }
    }

    /// The span with an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: AttributeValue) -> TelemetrySpan {
        self.attributes.push((key, value));
        self
    }

    /// The span as one that failed.
    #[must_use]
    pub fn failed(mut self, reason: impl Into<String>) -> TelemetrySpan {
        self.failure = Some(reason.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of its trace.
    pub fn trace(&self) -> [u8; 16] {
        self.trace
    }

    /// Its own number.
    pub fn id(&self) -> [u8; 8] {
        self.id
    }

    /// Number of the span that it is a part of.
    pub fn parent(&self) -> Option<[u8; 8]> {
        self.parent
    }

    /// Its beginning, in nanoseconds of Unix time.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Its end, in nanoseconds of Unix time.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// The span as OTLP has it.
    pub(super) fn message(&self) -> Span {
        let attributes = self.attributes.iter().map(|(key, value)| value.clone().named(*key));
        let status = self
            .failure
            .as_ref()
            .map(|reason| Status { message: reason.clone(), code: StatusCode::Error as i32 });
        Span {
            trace_id: self.trace.to_vec(),
            span_id: self.id.to_vec(),
            parent_span_id: self.parent.map_or_else(Vec::new, |id| id.to_vec()),
            name: self.name.to_owned(),
            kind: SpanKind::Internal as i32,
            start_time_unix_nano: self.start_ns,
            end_time_unix_nano: self.end_ns,
            attributes: attributes.collect(),
            status,
            ..Span::default()
        }
    }
}
