//! Elements of FastClick's flow subsystem, each with a table of its own: there, a manager looks a flow up for all that follow; here,
//! the compiler sees all tables at once, and a manager has nothing to do.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{header, header_length};
use crate::build::{Code, Table};
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::packet::Packet;

const MANAGED: &[&str] = &["CAPACITY", "RESERVE", "TIMEOUT", "RECYCLE_INTERVAL", "VERBOSE", "LF", "CACHE"];

const fn manager(name: &'static str) -> Class {
    Class {
        processing: "h/h",
        ..Class::filter(name, MANAGED, |_| Ok(Box::new(Passing))).ignoring(MANAGED).passing()
    }
}

/// How the manager of MiddleClick's contexts keeps these, which the compiler has no need of.
const CONTEXTS: &[&str] = &[
    "BUILDER",
    "AGGTRUST",
    "VERBOSE_FCB",
    "AGGCACHE",
    "CACHESIZE",
    "CACHERINGSIZE",
    "VERBOSE",
    "EARLYDROP",
    "CLEAN_TIMER",
    "PULLBURST",
    "CONTEXT",
    "OPTIMIZE",
    "RESERVE",
    "SIZE_VERBOSE",
    "RELEASE",
    "ORDERED",
    "NOCUT",
];

const fn contexts(name: &'static str) -> Class {
    Class { ports: "1/1-2", arguments: CONTEXTS, ignored: CONTEXTS, ..manager(name) }
}

pub(super) const CLASSES: &[Class] = &[
    // A dispatcher is a classifier, wherever its manager is; `FlowClassifier` is the manager's former name.
    contexts("CTXManager"),
    contexts("FlowClassifier"),
    manager("FlowIPManager"),
    manager("FlowIPManagerIMP"),
    manager("FlowIPManager_CuckooPP"),
    manager("FlowIPManagerHMP"),
    manager("FlowIPManagerMP"),
    Class {
        processing: "h/h",
        ..Class::filter("FlowCounter", &["CLOSECONNECTION"], counter).ignoring(&["CLOSECONNECTION"]).passing()
    },
];

/// Flows of which a counter knows at once; the one that was seen least lately is counted anew when it comes again.
const FLOWS: u32 = 1 << 16;
/// Addresses; ports; protocol.
const KEY: [Size; 3] = [Size::Dw, Size::W, Size::W];
/// Packets.
const VALUE: [Size; 1] = [Size::Dw];
const TCP: i64 = 6;
const UDP: i64 = 17;

struct Passing;

impl Behaviour for Passing {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        code.out(0, packet);
    }
}

/// Counts flows: by addresses, protocol, and ports where there are any.
struct Counter {
    flows: Table,
    counter: u32,
}

fn counter(setup: &mut Setup<'_>) -> Made {
    let flows = setup.evicting_table("flows", &KEY, &VALUE, 0, FLOWS);
    Ok(Box::new(Counter { flows, counter: setup.counter("count") }))
}

/// A flow: both addresses, both ports, or zero where there are none, each as they lie in the packet; the protocol.
pub(super) fn key(code: &mut Code<'_, '_>, packet: Packet) -> [Value; 3] {
    let header = header(code, packet);
    let protocol = code.byte(header, 9);
    let (with_ports, flow) = (code.block(), code.block());
    let ports = code.number_param(flow);
    let zero = code.int(0);
    for number in [TCP, UDP] {
        let (number, next) = (code.int(number), code.block());
        code.branch(Cond::Eq, protocol, number, with_ports, next);
        code.go(next);
    }
    code.jump(flow, &[zero]);
    code.go(with_ports);
    let fragment = code.half(header, 6);
    let offset = code.with(AluOp::And, fragment, 0x1fff);
    code.check_int(Cond::Eq, offset, 0, |code| code.jump(flow, &[zero]));
    let length = header_length(code, header);
    let transport = code.plus(header, length);
    let beyond = code.at(transport, 4);
    code.check(Cond::Le, beyond, packet.end, |code| code.jump(flow, &[zero]));
    let found = code.raw(4, transport, 0);
    code.jump(flow, &[found]);
    code.go(flow);
    [code.raw(8, header, 12), ports, protocol]
}

impl Behaviour for Counter {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let key = key(code, packet);
        let zero = code.int(0);
        let known = code.find(&self.flows, &key);
        let (new, old, on) = (code.block(), code.block(), code.block());
        code.branch(Cond::Eq, known, zero, new, old);
        code.go(new);
        let one = code.int(1);
        code.remember(&self.flows, &key, &[one]);
        code.count(self.counter, one);
        code.jump(on, &[]);
        code.go(old);
        let before = code.wide(known, 0);
        let packets = code.with(AluOp::Add, before, 1);
        code.set_wide(known, 0, packets);
        code.jump(on, &[]);
        code.go(on);
        code.out(0, packet);
    }
}
