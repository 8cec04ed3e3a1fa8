//! Elements that choose an input or an output for all packets: `InputSwitch`, `StaticSwitch`, `PullSwitch`
//! and its like.

use millstream_isa::Cond;

use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, at};
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, SettingType, SettingValue, SpannedText};

/// A class that pulls from one input.
const fn pulling(
    name: &'static str,
    about: &'static str,
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports: "-/1", processing: "l/l", ..ElementClass::filter(name, about, INPUT, make) }
}

const INPUT: &[ArgumentSpec] = &[at("INPUT")];

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass {
        ports: "-/1",
        processing: "h/h",
        ..ElementClass::filter(
            "InputSwitch",
            "Passes packets of one input, which a handler sets.",
            &[at("INPUT")],
            input_switch,
        )
    },
    ElementClass {
        ports: "1/-",
        processing: "h/h",
        ..ElementClass::filter(
            "StaticSwitch",
            "Sends all packets to one output.",
            &[at("OUTPUT")],
            static_switch,
        )
    },
    pulling("PullSwitch", "Pulls from one input, which a handler sets.", |setup| pull_switch(setup, true)),
    pulling("SimplePullSwitch", "Pulls from one input, which a handler sets.", |setup| {
        pull_switch(setup, true)
    }),
    pulling("StaticPullSwitch", "Pulls from one input.", |setup| pull_switch(setup, false)),
];

/// The number of a port from 0 to `last`, or -1 for none.
pub(super) fn port_number(text: Option<SpannedText>, last: i64) -> Result<i64, Error> {
    match text {
        Some(text) if text.text.starts_with('-') => Ok(-1),
        Some(text) => Ok(unsigned(&text, last.max(0) as u64)? as i64),
        None => Ok(0),
    }
}

struct InputSwitch {
    input: SettingValue,
}

fn input_switch(setup: &mut ElementSetup<'_>) -> ElementResult {
    let last = i64::from(setup.inputs.max(1) - 1);
    let input = port_number(setup.arguments.next("INPUT"), last)?;
    Ok(Box::new(InputSwitch { input: setup.setting("switch", SettingType::Number(-1, last), input) }))
}

impl ElementCodegen for InputSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let input = code.setting(self.input);
        code.check_int(Cond::Eq, input, i64::from(port), |code| code.drop(packet, "switched_off"));
        code.out(0, packet);
    }
}

/// Packets of an input that is not pulled wait in front of it, so those that come have been pulled.
struct PullSwitch;

fn pull_switch(setup: &mut ElementSetup<'_>, has_handler: bool) -> ElementResult {
    let last = i64::from(setup.inputs.max(1) - 1);
    let said = port_number(setup.arguments.next("INPUT"), last)?;
    let input = match has_handler {
        true => setup.setting("switch", SettingType::Number(-1, last), said),
        false => SettingValue::Fixed(said),
    };
    // Its one input is always pulled: nothing waits.
    if input == SettingValue::Fixed(0) && setup.inputs == 1 {
        return Ok(Box::new(PullSwitch));
    }
    if !setup.is_timed() {
        let message =
            "inputs that are not pulled hold packets, which stages and code for other programs do not";
        return Err(Error::new(setup.element.span, message));
    }
    setup.declare_input_choice(input);
    setup.require_single_worker("packets that it does not pull wait in one order");
    Ok(Box::new(PullSwitch))
}

impl ElementCodegen for PullSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.out(0, packet);
    }
}

/// Output of all packets; negative to drop them.
struct StaticSwitch {
    output: i64,
}

fn static_switch(setup: &mut ElementSetup<'_>) -> ElementResult {
    let last = i64::from(setup.outputs.max(1) - 1);
    Ok(Box::new(StaticSwitch { output: port_number(setup.arguments.next("OUTPUT"), last)? }))
}

impl ElementCodegen for StaticSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        match u32::try_from(self.output) {
            Ok(port) => code.out(port, packet),
            Err(_) => code.drop(packet, "switched_off"),
        }
    }
}
