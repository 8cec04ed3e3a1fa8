//! Colours of packets.

use millstream_isa::Cond;

use crate::arguments::byte;
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::error::Error;
use crate::handlers::{Setting, Takes};
use crate::keyword::{Argument, at, refused_but};
use crate::packet::{Note, Packet};

/// The annotation; there is only one.
const ANNOTATION: Argument =
    refused_but("ANNO", &["PAINT"], "there is no annotation for paint but PAINT").or_at();

const PAINTED: &[Argument] = &[at("COLOR"), ANNOTATION];

const fn class(
    name: &'static str,
    about: &'static str,
    (ports, processing): (&'static str, &'static str),
    make: fn(&mut Setup<'_>) -> Made,
) -> Class {
    Class { ports, processing, ..Class::filter(name, about, PAINTED, make) }.passing()
}

pub(super) const CLASSES: &[Class] = &[
    class("Paint", "Sets the paint of packets.", ("1/1", "a/a"), |setup| Ok(Box::new(Paint(colour(setup)?)))),
    Class {
        passes_all: false,
        ..class("CheckPaint", "Lets packets of a paint pass.", ("1/1-2", "a/ah"), |setup| {
            Ok(Box::new(Check(colour(setup)?)))
        })
    },
    class("PaintTee", "Sends a copy of packets of a paint to output 1.", ("1/2", "a/ah"), |setup| {
        Ok(Box::new(Tee(colour(setup)?)))
    }),
    Class {
        arguments: &[ANNOTATION],
        passes_all: false,
        ..class("PaintSwitch", "Sends packets to the output that their paint says.", ("1/-", "h/h"), switch)
    },
];

fn colour(setup: &mut Setup<'_>) -> Result<Setting, Error> {
    let colour = byte(&setup.arguments.need("COLOR")?)? as i64;
    Ok(setup.setting("color", Takes::Number(0, 255), colour))
}

struct Paint(Setting);

impl Behaviour for Paint {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let colour = code.setting(self.0);
        code.out(0, packet.with(Note::Paint, colour));
    }
}

struct Check(Setting);

impl Behaviour for Check {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let colour = code.setting(self.0);
        code.check(Cond::Eq, packet.note(Note::Paint), colour, |code| {
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "other_paint") }
        });
        code.out(0, packet);
    }
}

struct Tee(Setting);

impl Behaviour for Tee {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        let colour = code.setting(self.0);
        // The copy goes first: so it is the original that waits, as a copy.
        code.check(Cond::Ne, packet.note(Note::Paint), colour, |code| {
            code.fork(0, packet);
            code.out(1, packet);
        });
        code.out(0, packet);
    }
}

fn switch(setup: &mut Setup<'_>) -> Made {
    Ok(Box::new(Switch { outputs: setup.outputs }))
}

struct Switch {
    outputs: u32,
}

impl Behaviour for Switch {
    fn build(&self, code: &mut Code<'_, '_>, _: u32, packet: Packet) {
        for port in 0..self.outputs {
            code.check_int(Cond::Ne, packet.note(Note::Paint), i64::from(port), |code| {
                code.out(port, packet)
            });
        }
        code.drop(packet, "no_output_of_this_paint");
    }
}
