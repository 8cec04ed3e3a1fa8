//! `BPF(FILE, PROGRAM)`: an XDP or TC program as an element. Source: `enum xdp_action`, `TC_ACT_*`.
//!
//! Packets leave by output 0 if they go on to the stack, by 1 if they are sent back, and by 2 if they are
//! redirected. Each element has its own maps.

use millstream_ir::{Func, Prov, Type};
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::string;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, ProgramHook};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "1/1-3",
    processing: "a/ah",
    ..ElementClass::filter(
        "BPF",
        "Runs an XDP or TC program of an object file.",
        &[at("FILE"), at("PROGRAM")],
        make,
    )
}];

/// Effect of a verdict.
#[derive(Clone, Copy)]
enum VerdictAction {
    Out(u32, &'static str),
    Drop(&'static str),
}

const PASS: VerdictAction = VerdictAction::Out(0, "pass");
const BACK: VerdictAction = VerdictAction::Out(1, "tx");
const ELSEWHERE: VerdictAction = VerdictAction::Out(2, "redirect");
const XDP: &[(i64, VerdictAction)] = &[
    (2, PASS),
    (3, BACK),
    (4, ELSEWHERE),
    (1, VerdictAction::Drop("drop")),
    (0, VerdictAction::Drop("aborted")),
];
const TC: &[(i64, VerdictAction)] = &[
    (0, PASS),
    // TC_ACT_UNSPEC: the default.
    (0xffff_ffff, PASS),
    (3, PASS),
    (7, ELSEWHERE),
    (2, VerdictAction::Drop("drop")),
    // TC_ACT_STOLEN, QUEUED and TRAP: the program or somebody else has it.
    (4, VerdictAction::Drop("stolen")),
    (5, VerdictAction::Drop("stolen")),
    (8, VerdictAction::Drop("stolen")),
];

struct BpfElement {
    program: Func,
    verdicts: &'static [(i64, VerdictAction)],
}

fn make(setup: &mut ElementSetup<'_>) -> ElementResult {
    let file = setup.arguments.need("FILE")?;
    let name = setup.arguments.next("PROGRAM").map(|text| string(&text));
    let (program, hook) = setup.foreign(&string(&file), name.as_deref()).map_err(|why| {
        let what = name.map_or(String::new(), |name| format!("program `{name}` of "));
        Error::new(file.span, format!("{what}`{}` cannot be an element: {why}", file.text))
    })?;
    let verdicts = match hook {
        ProgramHook::Xdp => XDP,
        ProgramHook::Tc => TC,
    };
    Ok(Box::new(BpfElement { program, verdicts }))
}

impl ElementCodegen for BpfElement {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let verdict = code.call(self.program, packet);
        let verdict = code.with(AluOp::And, verdict, 0xffff_ffff);
        // The program may have moved both.
        let data = code.bound(packet.handle, 0, Type::Ptr(Prov::Packet));
        let end = code.bound(packet.handle, 4, Type::Ptr(Prov::PacketEnd));
        let packet = packet.bounded(data, end);
        for (number, fate) in self.verdicts {
            code.check_int(Cond::Ne, verdict, *number, |code| match *fate {
                VerdictAction::Out(port, _) if code.connected(port) => code.out(port, packet),
                VerdictAction::Out(_, reason) | VerdictAction::Drop(reason) => code.drop(packet, reason),
            });
        }
        code.drop(packet, "no_verdict");
    }
}
