//! Elements of FastClick's flow subsystem, each with a table of its own. There, a manager looks a flow up for
//! all elements that follow; here, the compiler sees all tables at once, and a manager has nothing to do.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{header, header_length};
use millstream_click::arguments::seconds;
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, COUNT, IgnoredValueKind, NUMBER, key as named, moot};
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, words};

const OWN_TABLES: &str = "each element behind it has a table of its own";
const MANAGED: &[ArgumentSpec] = &[
    moot("CAPACITY", COUNT, OWN_TABLES).or_at(),
    moot("RESERVE", COUNT, OWN_TABLES),
    named("TIMEOUT"),
    moot("LF", IgnoredValueKind::Truth, OWN_TABLES),
    moot("CACHE", IgnoredValueKind::Truth, OWN_TABLES),
    moot("VERBOSE", IgnoredValueKind::Any, "nothing is said of flows"),
    moot("RECYCLE_INTERVAL", IgnoredValueKind::Any, OWN_TABLES),
];

const fn manager(name: &'static str) -> ElementClass {
    ElementClass {
        processing: "h/h",
        ..ElementClass::filter(
            name,
            "Passes packets on: elements behind it know flows by themselves.",
            MANAGED,
            managed,
        )
        .passing()
    }
}

/// Arguments of the manager of MiddleClick's contexts that have no effect here.
const CONTEXTS: &[ArgumentSpec] = &[
    moot("AGGCACHE", IgnoredValueKind::Truth, OWN_TABLES).or_at(),
    moot("RESERVE", COUNT, OWN_TABLES).or_at(),
    moot("CACHESIZE", COUNT, OWN_TABLES),
    moot("CACHERINGSIZE", COUNT, OWN_TABLES),
    moot("BUILDER", IgnoredValueKind::Truth, OWN_TABLES),
    moot("AGGTRUST", IgnoredValueKind::Truth, OWN_TABLES),
    moot("VERBOSE", IgnoredValueKind::Any, "nothing is said of flows"),
    moot("VERBOSE_FCB", IgnoredValueKind::Any, "nothing is said of flows"),
    moot(
        "CONTEXT",
        IgnoredValueKind::Any,
        "dispatchers look at packets themselves, wherever their manager is",
    ),
    moot("CLEAN_TIMER", NUMBER, OWN_TABLES),
    moot("EARLYDROP", IgnoredValueKind::Truth, "packets that no way leads on from are dropped in any case"),
    moot("ORDERED", IgnoredValueKind::Truth, OWN_TABLES),
    moot("NOCUT", IgnoredValueKind::Truth, OWN_TABLES),
    moot("OPTIMIZE", IgnoredValueKind::Truth, OWN_TABLES),
    moot("RELEASE", IgnoredValueKind::Any, OWN_TABLES),
];

/// Reads a timeout that has no effect here: elements that remove flows take their own ([`managed_time`]).
fn managed(setup: &mut ElementSetup<'_>) -> ElementResult {
    setup.arguments.keyword_or("TIMEOUT", 0, seconds)?;
    Ok(Box::new(FlowManager))
}

/// Nanoseconds after which the managers of a configuration let flows go that had no packet, if they say so.
pub(super) fn managed_time(setup: &ElementSetup<'_>) -> Result<Option<u64>, Error> {
    let managers = setup.elements().iter().filter(|element| element.class.starts_with("FlowIPManager"));
    let mut time = None;
    for argument in managers.flat_map(|element| &element.arguments) {
        if let [name, value] = &words(argument)[..]
            && name.text == "TIMEOUT"
        {
            time = Some(seconds(value)?).filter(|time| *time > 0);
        }
    }
    Ok(time)
}

const fn contexts(name: &'static str) -> ElementClass {
    ElementClass { ports: "1/1-2", arguments: CONTEXTS, ..manager(name) }
}

pub(super) const CLASSES: &[ElementClass] = &[
    // A dispatcher is a classifier, independent of its manager; `FlowClassifier` is the manager's former
    // name.
    contexts("CTXManager"),
    contexts("FlowClassifier"),
    manager("FlowIPManager"),
    manager("FlowIPManagerIMP"),
    manager("FlowIPManager_CuckooPP"),
    manager("FlowIPManagerHMP"),
    manager("FlowIPManagerMP"),
    ElementClass {
        processing: "h/h",
        ..ElementClass::filter("FlowCounter", "Counts flows when they begin.", &[], counter).passing()
    },
];

/// Flows that a counter knows at once; the least recently used one is counted anew when it comes again.
const FLOWS: u32 = 1 << 16;
/// Addresses; ports; protocol.
const KEY: [Size; 3] = [Size::Dw, Size::W, Size::W];
/// Packets.
const VALUE: [Size; 1] = [Size::Dw];
const TCP: i64 = 6;
const UDP: i64 = 17;

struct FlowManager;

impl ElementCodegen for FlowManager {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.out(0, packet);
    }
}

/// Counts flows: by addresses, protocol, and ports if there are any.
struct FlowCounter {
    flows: ElementHashTable,
    counter: u32,
}

fn counter(setup: &mut ElementSetup<'_>) -> ElementResult {
    let flows = setup.evicting_table("flows", &KEY, &VALUE, 0, FLOWS);
    Ok(Box::new(FlowCounter { flows, counter: setup.counter("count") }))
}

/// A flow: both addresses, both ports, or zero without ports, each as they lie in the packet; the protocol.
pub(super) fn key(code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> [Value; 3] {
    let header = header(code, packet);
    let protocol = code.byte(header, 9);
    let (with_ports, flow) = (code.block(), code.block());
    let ports = code.number_param(flow);
    let zero = code.int(0);
    for number in [TCP, UDP] {
        let (number, next) = (code.int(number), code.block());
        code.branch(Cond::Eq, protocol, number, with_ports, next);
        code.switch_to_block(next);
    }
    code.jump(flow, &[zero]);
    code.switch_to_block(with_ports);
    let fragment = code.half(header, 6);
    let offset = code.with(AluOp::And, fragment, 0x1fff);
    code.check_int(Cond::Eq, offset, 0, |code| code.jump(flow, &[zero]));
    let length = header_length(code, header);
    let transport = code.plus(header, length);
    let beyond = code.at(transport, 4);
    code.check(Cond::Le, beyond, packet.end, |code| code.jump(flow, &[zero]));
    let found = code.raw(4, transport, 0);
    code.jump(flow, &[found]);
    code.switch_to_block(flow);
    [code.raw(8, header, 12), ports, protocol]
}

impl ElementCodegen for FlowCounter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let key = key(code, packet);
        let zero = code.int(0);
        let known = code.find(&self.flows, &key);
        let (new, old, on) = (code.block(), code.block(), code.block());
        code.branch(Cond::Eq, known, zero, new, old);
        code.switch_to_block(new);
        let one = code.int(1);
        code.update_entry(&self.flows, &key, &[one]);
        code.count(self.counter, one);
        code.jump(on, &[]);
        code.switch_to_block(old);
        let before = code.wide(known, 0);
        let packets = code.with(AluOp::Add, before, 1);
        code.set_wide(known, 0, packets);
        code.jump(on, &[]);
        code.switch_to_block(on);
        code.out(0, packet);
    }
}
