//! `RandomSample`: passes packets with a probability.

use millstream_isa::Cond;

use super::transport::bad;
use millstream_click::arguments::boolean;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::PacketValues;
use millstream_click::{ElementSetup, Error, HandlerAccess, SettingType, SettingValue, SpannedText};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::check(
    "RandomSample",
    "Passes packets with a probability.",
    &[at("P"), key("SAMPLE"), key("DROP"), key("ACTIVE")],
    sample,
)];

/// Number of values of a random number.
const VALUES: f64 = (1u64 << 32) as f64;

struct RandomSample {
    /// Packets pass whose random number is below this one.
    below: i64,
    active: SettingValue,
}

/// A probability.
fn probability(text: &SpannedText) -> Result<f64, Error> {
    let parsed = match text.text.strip_suffix('%') {
        Some(number) => number.trim().parse().map(|number: f64| number / 100.0),
        None => text.text.parse(),
    };
    let fits = parsed.ok().filter(|number| (0.0..=1.0).contains(number));
    fits.ok_or_else(|| Error::new(text.span, format!("`{}` is no probability from 0 to 1", text.text)))
}

fn sample(setup: &mut ElementSetup<'_>) -> ElementResult {
    let said = [setup.arguments.next("P"), setup.arguments.keyword("SAMPLE")];
    let dropped = setup.arguments.keyword("DROP");
    let mut passing = said.iter().flatten().map(probability).collect::<Result<Vec<f64>, _>>()?;
    passing.extend(dropped.map(|text| probability(&text).map(|drop| 1.0 - drop)).transpose()?);
    let [passing] = passing[..] else {
        return Err(Error::new(setup.element.span, "expected one of P, SAMPLE and DROP"));
    };
    for (name, value) in [("sampling_prob", passing), ("drop_prob", 1.0 - passing)] {
        setup.handler(name, HandlerAccess::Constant(value.to_string()));
    }
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let active = setup.setting("active", SettingType::Truth, i64::from(active));
    Ok(Box::new(RandomSample { below: (passing * VALUES) as i64, active }))
}

impl ElementCodegen for RandomSample {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let active = code.setting(self.active);
        code.check_int(Cond::Ne, active, 0, |code| code.out(0, packet));
        let random = code.random();
        code.check_int(Cond::Lt, random, self.below, |code| bad(code, packet, "not_sampled"));
        code.out(0, packet);
    }
}
