//! Colours of packets.

use millstream_isa::Cond;

use crate::arguments::byte;
use crate::build::Code;
use crate::class::{Behaviour, Class, Made};
use crate::compile::Setup;
use crate::error::Error;
use crate::handlers::{Setting, Takes};
use crate::packet::{Note, Packet};

const fn class(
    name: &'static str,
    ports: &'static str,
    processing: &'static str,
    make: fn(&mut Setup<'_>) -> Made,
) -> Class {
    Class { name, ports, processing, arguments: &["COLOR", "ANNO"], ignored: &[], passes_all: true, make }
}

pub(super) const CLASSES: &[Class] = &[
    class("Paint", "1/1", "a/a", |setup| Ok(Box::new(Paint(colour(setup)?)))),
    Class {
        passes_all: false,
        ..class("CheckPaint", "1/1-2", "a/ah", |setup| Ok(Box::new(Check(colour(setup)?))))
    },
    class("PaintTee", "1/2", "a/ah", |setup| Ok(Box::new(Tee(colour(setup)?)))),
    Class { arguments: &["ANNO"], passes_all: false, ..class("PaintSwitch", "1/-", "h/h", switch) },
];

fn colour(setup: &mut Setup<'_>) -> Result<Setting, Error> {
    let colour = byte(&setup.arguments.need("COLOR")?)? as i64;
    annotation(setup)?;
    Ok(setup.setting("color", Takes::Number(0, 255), colour))
}

/// There is one annotation for paint.
fn annotation(setup: &mut Setup<'_>) -> Result<(), Error> {
    match setup.arguments.next("ANNO") {
        Some(text) if text.text != "PAINT" => {
            Err(Error::new(text.span, "there is no annotation for paint but PAINT"))
        }
        _ => Ok(()),
    }
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
    annotation(setup)?;
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
