//! Elements that choose an input or an output for all packets: `InputSwitch`, `StaticSwitch`.

use millstream_isa::Cond;

use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, SettingType, SettingValue, SpannedText};

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
