//! Prometheus' data model as OTLP's.
//!
//! Names lose the endings for units and counters, and units become those of UCUM: from these, collectors make
//! the names that Prometheus has (opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics).

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, metric::Data,
};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as prometheus;

use super::AttributeValue;

/// Interval of the points, in nanoseconds of Unix time.
#[derive(Clone, Copy)]
struct PointTimes {
    start_ns: u64,
    now_ns: u64,
}

/// The metrics of these families. Counters and histograms count from `start_ns`; both times are in nanoseconds
/// of Unix time.
pub(super) fn metrics(families: Vec<prometheus::MetricFamily>, start_ns: u64, now_ns: u64) -> Vec<Metric> {
    let times = PointTimes { start_ns, now_ns };
    families.into_iter().filter_map(|family| metric(family, times)).collect()
}

/// A family; `None` if it has no points, or is of a type that Millstream has no metrics of.
fn metric(family: prometheus::MetricFamily, times: PointTimes) -> Option<Metric> {
    if family.metric.is_empty() {
        return None;
    }
    let mut name = family.name.as_str();
    let cumulative = AggregationTemporality::Cumulative as i32;
    let data = match prometheus::MetricType::try_from(family.r#type).ok()? {
        prometheus::MetricType::Counter => {
            name = name.strip_suffix("_total").unwrap_or(name);
            let points = family.metric.iter();
            let points =
                points.filter_map(|m| Some(number(m, m.counter.as_ref()?.value, times.start_ns, times)));
            let data_points = points.collect();
            Data::Sum(Sum { data_points, aggregation_temporality: cumulative, is_monotonic: true })
        }
        prometheus::MetricType::Gauge => {
            let points = family.metric.iter();
            let points = points.filter_map(|m| Some(number(m, m.gauge.as_ref()?.value, 0, times)));
            Data::Gauge(Gauge { data_points: points.collect() })
        }
        prometheus::MetricType::Histogram => {
            let points = family.metric.iter();
            let data_points = points.filter_map(|m| Some(buckets(m, m.histogram.as_ref()?, times))).collect();
            Data::Histogram(Histogram { data_points, aggregation_temporality: cumulative })
        }
        _ => return None,
    };
    let without_unit = name.strip_suffix(family.unit.as_str()).and_then(|name| name.strip_suffix('_'));
    Some(Metric {
        name: without_unit.unwrap_or(name).to_owned(),
        description: family.help,
        unit: if family.unit == "seconds" { "s".to_owned() } else { family.unit },
        metadata: Vec::new(),
        data: Some(data),
    })
}

fn attributes(metric: &prometheus::Metric) -> Vec<KeyValue> {
    metric.label.iter().map(|l| AttributeValue::Text(l.value.clone()).named(l.name.clone())).collect()
}

fn number(metric: &prometheus::Metric, value: f64, start_ns: u64, times: PointTimes) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(metric),
        start_time_unix_nano: start_ns,
        time_unix_nano: times.now_ns,
        value: Some(Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

/// Prometheus counts in each bucket what is at most its bound, OTLP what is in no bucket before it. The last
/// bucket has the greatest number or infinity as its bound, which OTLP leaves out.
fn buckets(
    metric: &prometheus::Metric,
    histogram: &prometheus::Histogram,
    times: PointTimes,
) -> HistogramDataPoint {
    let (mut explicit_bounds, mut bucket_counts, mut below) = (Vec::new(), Vec::new(), 0);
    for bucket in histogram.bucket.iter().filter(|bucket| bucket.upper_bound < f64::MAX) {
        explicit_bounds.push(bucket.upper_bound);
        bucket_counts.push(bucket.cumulative_count.saturating_sub(below));
        below = bucket.cumulative_count;
    }
    bucket_counts.push(histogram.sample_count.saturating_sub(below));
    HistogramDataPoint {
        attributes: attributes(metric),
        start_time_unix_nano: times.start_ns,
        time_unix_nano: times.now_ns,
        count: histogram.sample_count,
        sum: Some(histogram.sample_sum),
        bucket_counts,
        explicit_bounds,
        ..HistogramDataPoint::default()
    }
}
