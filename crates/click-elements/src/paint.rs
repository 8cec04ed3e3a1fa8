//! Colours of packets.

use millstream_isa::Cond;

use millstream_click::arguments::byte;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, at, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, SettingType, SettingValue};

/// The annotation; there is only one.
const ANNOTATION: ArgumentSpec =
    refused_but("ANNO", &["PAINT"], "there is no annotation for paint but PAINT").or_at();

const PAINTED: &[ArgumentSpec] = &[at("COLOR"), ANNOTATION];

const fn class(
    name: &'static str,
    about: &'static str,
    (ports, processing): (&'static str, &'static str),
    make: fn(&mut ElementSetup<'_>) -> ElementResult,
) -> ElementClass {
    ElementClass { ports, processing, ..ElementClass::filter(name, about, PAINTED, make) }.passing()
}

pub(super) const CLASSES: &[ElementClass] = &[
    class("Paint", "Sets the paint of packets.", ("1/1", "a/a"), |setup| {
        Ok(Box::new(SetPaint(colour(setup)?)))
    }),
    ElementClass {
        passes_all: false,
        ..class("CheckPaint", "Lets packets of a paint pass.", ("1/1-2", "a/ah"), |setup| {
            Ok(Box::new(CheckPaint(colour(setup)?)))
        })
    },
    class("PaintTee", "Sends a copy of packets of a paint to output 1.", ("1/2", "a/ah"), |setup| {
        Ok(Box::new(PaintTee(colour(setup)?)))
    }),
    ElementClass {
        arguments: &[ANNOTATION],
        passes_all: false,
        ..class("PaintSwitch", "Sends packets to the output that their paint says.", ("1/-", "h/h"), switch)
    },
];

fn colour(setup: &mut ElementSetup<'_>) -> Result<SettingValue, Error> {
    let colour = byte(&setup.arguments.need("COLOR")?)? as i64;
    Ok(setup.setting("color", SettingType::Number(0, 255), colour))
}

struct SetPaint(SettingValue);

impl ElementCodegen for SetPaint {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let colour = code.setting(self.0);
        code.out(0, packet.with(Annotation::Paint, colour));
    }
}

struct CheckPaint(SettingValue);

impl ElementCodegen for CheckPaint {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let colour = code.setting(self.0);
        code.check(Cond::Eq, packet.note(Annotation::Paint), colour, |code| {
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "other_paint") }
        });
        code.out(0, packet);
    }
}

struct PaintTee(SettingValue);

impl ElementCodegen for PaintTee {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let colour = code.setting(self.0);
        // The copy goes first: so it is the original that waits, as a copy.
        code.check(Cond::Ne, packet.note(Annotation::Paint), colour, |code| {
            code.fork(0, packet);
            code.out(1, packet);
        });
        code.out(0, packet);
    }
}

fn switch(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(PaintSwitch { outputs: setup.outputs }))
}

struct PaintSwitch {
    outputs: u32,
}

impl ElementCodegen for PaintSwitch {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        for port in 0..self.outputs {
            code.check_int(Cond::Ne, packet.note(Annotation::Paint), i64::from(port), |code| {
                code.out(port, packet)
            });
        }
        code.drop(packet, "no_output_of_this_paint");
    }
}
