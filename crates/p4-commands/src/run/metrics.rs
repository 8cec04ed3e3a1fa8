//! `--metrics ADDR:PORT` of `millstream p4 run`: counters of ports, tables and the program, for Prometheus.

use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::packets::PacketMover;
use super::ports::PortCounters;
use crate::metrics;

/// Cells of the program's counters in one answer, at most.
const MOST_CELLS: usize = 10_000;

/// Serves metrics for as long as the process lives.
pub(super) fn serve(listener: TcpListener, mover: Arc<PacketMover>) {
    let text = move || metrics::text(Box::new(SwitchCollector(Arc::clone(&mover))));
    std::thread::spawn(move || {
        if let Err(error) = metrics::serve(listener, Arc::new(text)) {
            tracing::warn!("metrics: {error}");
        }
    });
}

/// Reads all figures of a switch.
struct SwitchCollector(Arc<PacketMover>);

impl fmt::Debug for SwitchCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SwitchCollector")
    }
}

fn counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    rows: impl IntoIterator<Item = ([(&'static str, String); N], u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in rows {
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

impl Collector for SwitchCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.0.ports.all.iter().for_each(|port| _ = port.missed());
        let ports = |of: fn(&PortCounters) -> &AtomicU64| {
            let row = |port: &super::ports::SwitchPort| {
                ([("port", port.number.to_string())], of(&port.counters).load(Ordering::Relaxed))
            };
            self.0.ports.all.iter().map(row).collect::<Vec<_>>()
        };
        counters(encoder, ("millstream_received", "Packets received"), ports(|port| &port.received))?;
        let missed = ports(|port| &port.missed);
        counters(encoder, ("millstream_missed", "Packets that found no room in a socket"), missed)?;
        counters(encoder, ("millstream_sent", "Packets sent"), ports(|port| &port.sent))?;
        counters(encoder, ("millstream_unsent", "Packets that a port refused"), ports(|port| &port.unsent))?;
        let figures = self.0.handle.control(|switch| {
            (switch.counter_figures(MOST_CELLS), switch.table_sizes(), switch.lost_digests())
        });
        let (cells, tables, digests) = figures.unwrap_or_default();
        let lost = [
            ("digest", digests),
            ("controller", self.0.handle.lost_messages()),
            ("fault", self.0.faults.load(Ordering::Relaxed)),
            ("port", self.0.ports.nowhere.load(Ordering::Relaxed)),
        ];
        let lost = lost.map(|(kind, count)| ([("reason", kind.to_owned())], count));
        counters(encoder, ("millstream_lost", "Packets and messages lost, by reason"), lost)?;
        let cell = |of: fn(&millstream_p4runtime_server::CounterFigure) -> u64| {
            let row = |cell: &millstream_p4runtime_server::CounterFigure| {
                ([("counter", cell.name.clone()), ("index", cell.index.to_string())], of(cell))
            };
            cells.iter().map(row).collect::<Vec<_>>()
        };
        counters(
            encoder,
            ("millstream_p4_packets", "Packets that the program counted"),
            cell(|c| c.packets),
        )?;
        counters(encoder, ("millstream_p4_bytes", "Bytes that the program counted"), cell(|c| c.bytes))?;
        if let Some(status) = self.0.adaptation.as_ref().and_then(|adaptation| adaptation.status()) {
            let rows = [
                ("swap", status.swaps),
                ("written", status.withdrawals.withdrawn_written),
                ("no-gain", status.withdrawals.withdrawn_no_gain),
                ("shifted", status.withdrawals.withdrawn_shifted),
            ];
            let rows = rows.map(|(event, count)| ([("event", event.to_owned())], count));
            let help = "Specialised code that was installed, and withdrawn, by reason";
            counters(encoder, ("millstream_adaptation", help), rows)?;
        }
        let help = "Entries of tables";
        let mut family =
            encoder.encode_descriptor("millstream_p4_table_entries", help, None, MetricType::Gauge)?;
        for (table, entries) in tables {
            ConstGauge::new(entries as i64).encode(family.encode_family(&[("table", table)])?)?;
        }
        Ok(())
    }
}
