//! `Script`: instructions that run beside the packets, or for each of them.
//!
//! A script of TYPE PACKET is run by whoever runs the program. Code counts the packet and puts it aside; when
//! the script has run, the packet goes on at [`RESUMED`], where its output is read from an array.

use millstream_ir::Size;
use millstream_isa::{AluOp, Cond};

use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, RESUMED, ScriptKind, read_script};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "0-1/-",
    ..ElementClass::filter("Script", "Carries out instructions while packets run.", &[key("TYPE")], script)
}
.and(at("INSTRUCTION"))];

/// Packets that may wait for their output at a time.
const RESULTS: u32 = 4096;

/// Sends each packet to the output that the script returns for it.
struct PacketScript {
    outputs: u32,
    /// Counts of packets that the script is to run for, and of those that have gone on.
    due: u32,
    done: u32,
    results: ElementHashTable,
}

/// A script without ports.
struct NoPackets;

impl ElementCodegen for NoPackets {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.drop(packet, "unconnected");
    }
}

fn script(setup: &mut ElementSetup<'_>) -> ElementResult {
    let has_ports = setup.inputs + setup.outputs > 0;
    let usual = if has_ports { ScriptKind::Packet } else { ScriptKind::Active };
    let script = read_script(&mut setup.arguments, &setup.element.name, usual)?;
    if script.kind != ScriptKind::Packet {
        if has_ports {
            let message = "packets come to scripts of TYPE PACKET alone";
            return Err(Error::new(setup.element.span, message));
        }
        setup.script(script);
        return Ok(Box::new(NoPackets));
    }
    if !setup.is_timed() {
        let message = "scripts run for packets only where they come one by one: not in stages, and not in \
            code for other programs";
        return Err(Error::new(setup.element.span, message));
    }
    let results = setup.array("results", &[Size::W], &[Size::Dw], RESULTS);
    let map = setup.map_name(&results);
    let due = setup.script_of_packets(script, (map, RESULTS));
    Ok(Box::new(PacketScript { outputs: setup.outputs, due, done: setup.number(), results }))
}

impl ElementCodegen for PacketScript {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let one = code.int(1);
        if port != RESUMED {
            code.count(self.due, one);
            return code.wait_at(RESUMED, packet);
        }
        let number = code.get(self.done);
        code.count(self.done, one);
        let place = code.with(AluOp::And, number, i64::from(RESULTS - 1));
        let entry = code.find(&self.results, &[place]);
        code.check_int(Cond::Ne, entry, 0, |code| code.drop(packet, "no_output"));
        let output = code.wide(entry, 0);
        for port in 0..self.outputs {
            code.check_int(Cond::Ne, output, i64::from(port), |code| code.out(port, packet));
        }
        code.drop(packet, "no_output");
    }
}
