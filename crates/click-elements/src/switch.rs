//! `EtherSwitch`: a switch that learns where addresses are. Source: IEEE 802.1D, 7.7 to 7.9.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use super::span_tree::SpanTreeState;
use millstream_click::arguments::seconds;
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::key;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, TableFormat, TableOperation};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "1-/1-",
    processing: "h/h",
    ..ElementClass::filter(
        "EtherSwitch",
        "Is a switch that learns where addresses are.",
        &[key("TIMEOUT")],
        switch,
    )
}];

/// Addresses that are known at a time.
const STATIONS: u32 = 1 << 16;
/// Nanoseconds for which an address is known, unless said otherwise.
const USUAL: u64 = 300_000_000_000;
/// Port at which it was seen, and the time.
const STATION: [Size; 2] = [Size::Dw, Size::Dw];

struct EtherSwitch {
    stations: ElementHashTable,
    /// 0 for a switch that learns nothing.
    timeout: u64,
    outputs: u32,
}

fn switch(setup: &mut ElementSetup<'_>) -> ElementResult {
    let timeout = setup.arguments.keyword_or("TIMEOUT", USUAL, seconds)?;
    let stations = setup.evicting_table("stations", &[Size::Dw], &STATION, 0, STATIONS);
    let map = setup.map_name(&stations);
    let verbs =
        [("table", TableOperation::List), ("count", TableOperation::Count), ("clear", TableOperation::Clear)];
    setup.table_handlers(&map, TableFormat::Stations { timeout }, &verbs);
    Ok(Box::new(EtherSwitch { stations, timeout, outputs: setup.outputs }))
}

/// An Ethernet address as a number.
fn address(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, offset: i32) -> Value {
    let (high, low) = (code.word(packet.data, offset), code.half(packet.data, offset + 4));
    let high = code.with(AluOp::Lsh, high, 16);
    code.alu(AluOp::Or, high, low)
}

impl ElementCodegen for EtherSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        code.need(packet, packet.data, 12, "too_short");
        if self.timeout == 0 {
            return self.flood(code, port, packet);
        }
        let now = code.time();
        self.learn(code, port, packet, now);
        let unknown = code.block();
        let destination = address(code, packet, 0);
        let group = code.with(AluOp::And, destination, 1 << 40);
        code.check_int(Cond::Eq, group, 0, |code| code.jump(unknown, &[]));
        let station = code.find(&self.stations, &[destination]);
        code.check_int(Cond::Ne, station, 0, |code| code.jump(unknown, &[]));
        let seen = code.wide(station, 8);
        let age = code.sub(now, seen);
        code.check_int(Cond::Lt, age, self.timeout as i64, |code| code.jump(unknown, &[]));
        if let Some(tree) = code.published::<SpanTreeState>() {
            let forgotten = tree.forgotten(code);
            code.check(Cond::Ge, seen, forgotten, |code| code.jump(unknown, &[]));
        }
        let at = code.wide(station, 0);
        for output in 0..self.outputs {
            code.check_int(Cond::Ne, at, i64::from(output), |code| {
                if output == port { code.drop(packet, "same_port") } else { code.out(output, packet) }
            });
        }
        code.drop(packet, "no_such_port");
        code.switch_to_block(unknown);
        self.flood(code, port, packet);
    }
}

impl EtherSwitch {
    /// Notes where the source is.
    fn learn(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues, now: Value) {
        let (source, at) = (address(code, packet, 6), code.int(i64::from(port)));
        let station = code.find(&self.stations, &[source]);
        let (known, new, on, zero) = (code.block(), code.block(), code.block(), code.int(0));
        code.branch(Cond::Ne, station, zero, known, new);
        code.switch_to_block(known);
        code.set_wide(station, 0, at);
        code.set_wide(station, 8, now);
        code.jump(on, &[]);
        code.switch_to_block(new);
        // If the table has no room, the address stays unknown.
        code.update_entry(&self.stations, &[source], &[at, now]);
        code.jump(on, &[]);
        code.switch_to_block(on);
    }

    /// Sends the packet out of all other ports.
    fn flood(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let others: Vec<u32> = (0..self.outputs).filter(|output| *output != port).collect();
        let Some((first, rest)) = others.split_first() else { return code.drop(packet, "no_other_port") };
        for output in rest.iter().rev() {
            code.fork(*output, packet);
        }
        code.out(*first, packet);
    }
}
