//! Random early detection. Source: Floyd and Jacobson, "Random Early Detection Gateways for Congestion
//! Avoidance", 1993, section 4; Floyd, "Recommendation on using the gentle variant of RED", 2000.
//!
//! Lengths are those of the queues that hold packets, for an element of time; others are always empty.

use std::collections::BTreeSet;

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use super::basic::{QUEUES, QueueLength};
use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key};
use millstream_click::packet::PacketValues;
use millstream_click::{
    ElementSetup, Error, HandlerAccess, SettingType, SettingValue, SpannedText, StateRatio, words,
};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::check(
    "RED",
    "Drops packets at random before queues are full.",
    &[at("MIN_THRESH"), at("MAX_THRESH"), at("MAX_P"), key("QUEUES"), key("STABILITY"), key("GENTLE")],
    red,
)];

/// Averages are multiples of 2^-10, probabilities of 2^-16.
const SCALE: i64 = 10;
const CERTAIN: i64 = 1 << 16;
/// The longest queue.
const MOST: u64 = 1 << 20;

struct RandomEarlyDetection {
    queues: Vec<String>,
    /// Thresholds of the average length.
    thresholds: [SettingValue; 2],
    /// Probability at the upper threshold.
    most_likely: i64,
    stability: i64,
    gentle: bool,
    average: u32,
    /// Packets since the last drop, and a random number of 16 bits that was drawn then.
    since: u32,
    drawn: u32,
    drops: u32,
}

/// A probability from 0 to 1.
fn probability(text: &SpannedText) -> Result<i64, Error> {
    let number = text.text.parse().ok().filter(|p: &f64| (0.0..=1.0).contains(p));
    let number = number.ok_or_else(|| Error::new(text.span, "expected a probability from 0 to 1"))?;
    Ok((number * CERTAIN as f64) as i64)
}

fn red(setup: &mut ElementSetup<'_>) -> ElementResult {
    let length = |text: &SpannedText| unsigned(text, MOST);
    let least = length(&setup.arguments.need("MIN_THRESH")?)? as i64;
    let text = setup.arguments.need("MAX_THRESH")?;
    let most = length(&text)? as i64;
    if most < least {
        return Err(Error::new(text.span, "MAX_THRESH is less than MIN_THRESH"));
    }
    let text = setup.arguments.need("MAX_P")?;
    let most_likely = probability(&text)?;
    setup.handler("max_p", HandlerAccess::Text(text.text));
    let stability = setup.arguments.keyword_or("STABILITY", 4, |text| unsigned(text, 16))? as i64;
    let gentle = setup.arguments.keyword_or("GENTLE", true, boolean)?;
    let queues = queues(setup)?;
    setup.handler("queues", HandlerAccess::Text(queues.join("\n")));
    let range = SettingType::Number(0, MOST as i64);
    let thresholds =
        [("min_thresh", least), ("max_thresh", most)].map(|(name, n)| setup.setting(name, range, n));
    let [average, since, drawn] = [0; 3].map(|_| setup.number());
    let ratio = StateRatio { of: average, by: None, divisor: 1 << SCALE };
    setup.handler("avg_queue_size", HandlerAccess::Ratio(ratio));
    let drops = setup.counter("drops");
    Ok(Box::new(RandomEarlyDetection {
        queues,
        thresholds,
        most_likely,
        stability,
        gentle,
        average,
        since,
        drawn,
        drops,
    }))
}

/// The queues it goes by: those it names, or the nearest ones behind it, or in front.
fn queues(setup: &mut ElementSetup<'_>) -> Result<Vec<String>, Error> {
    if let Some(text) = setup.arguments.keyword("QUEUES") {
        let named =
            |word: &SpannedText| setup.needed(word, "queue", QUEUES).map(|element| element.name.clone());
        return words(&text).iter().map(named).collect();
    }
    for downstream in [true, false] {
        let (mut open, mut seen) = (vec![setup.element.name.clone()], BTreeSet::new());
        let mut found = Vec::new();
        while let Some(name) = open.pop() {
            for element in setup.neighbours(&name, downstream) {
                if !seen.insert(element.name.clone()) {
                    continue;
                }
                let is_queue = QUEUES.contains(&element.class.as_str());
                if is_queue { &mut found } else { &mut open }.push(element.name.clone());
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(Error::new(setup.element.span, "there is no queue in front of `RED` or behind it"))
}

impl ElementCodegen for RandomEarlyDetection {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let average = self.averaged(code);
        let [least, most] = self.thresholds.map(|threshold| {
            let threshold = code.setting(threshold);
            code.with(AluOp::Lsh, threshold, SCALE)
        });
        let (pass, drop) = (code.block(), code.block());
        let never = code.int(-1);
        code.check(Cond::Gt, average, least, |code| {
            code.set(self.since, never);
            code.jump(pass, &[]);
        });
        let decide = code.block();
        let likely = code.number_param(decide);
        let (between, above) = (code.block(), code.block());
        code.branch(Cond::Le, average, most, between, above);
        code.switch_to_block(between);
        let zero = code.int(0);
        let p = self.rising(code, average, (least, most), (zero, self.most_likely));
        code.jump(decide, &[p]);
        code.switch_to_block(above);
        let twice = code.with(AluOp::Lsh, most, 1);
        if self.gentle {
            code.check(Cond::Le, average, twice, |code| {
                code.set(self.since, never);
                code.jump(drop, &[]);
            });
            let from = code.int(self.most_likely);
            let p = self.rising(code, average, (most, twice), (from, CERTAIN - self.most_likely));
            code.jump(decide, &[p]);
        } else {
            code.set(self.since, never);
            code.jump(drop, &[]);
        }
        code.switch_to_block(decide);
        self.decide(code, likely, (pass, drop));
        code.switch_to_block(drop);
        let one = code.int(1);
        code.count(self.drops, one);
        if code.connected(1) {
            code.out(1, packet)
        } else {
            code.drop(packet, "early")
        }
        code.switch_to_block(pass);
        code.out(0, packet);
    }
}

impl RandomEarlyDetection {
    /// The average length of all queues together, with the length that they have now.
    fn averaged(&self, code: &mut ElementBuilder<'_, '_>) -> Value {
        let mut length = code.int(0);
        for queue in &self.queues {
            if let Some(QueueLength(at)) = code.published_by(queue) {
                let own = code.get(at);
                length = code.add(length, own);
            }
        }
        let (now, old) = (code.with(AluOp::Lsh, length, SCALE), code.get(self.average));
        let difference = code.sub(now, old);
        let change = code.with(AluOp::Arsh, difference, self.stability);
        let average = code.add(old, change);
        code.set(self.average, average);
        average
    }

    /// A probability that rises by `more` between two averages.
    fn rising(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        average: Value,
        (least, most): (Value, Value),
        (from, more): (Value, i64),
    ) -> Value {
        let (above, range) = (code.sub(average, least), code.sub(most, least));
        let (zero, one) = (code.int(0), code.int(1));
        let none = code.compare(Cond::Eq, range, zero);
        let range = code.select(none, one, range);
        let share = code.with(AluOp::Mul, above, more);
        let share = code.alu(AluOp::Div, share, range);
        code.add(from, share)
    }

    /// Goes on in one of the blocks for packets that pass and that are dropped: the number of packets between
    /// two drops is uniform (section 7 of the source).
    fn decide(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        likely: Value,
        (pass, drop): (millstream_ir::Block, millstream_ir::Block),
    ) {
        let one = code.int(1);
        code.count(self.since, one);
        let since = code.get(self.since);
        code.check_int(Cond::Ne, since, 0, |code| {
            self.draw(code);
            code.jump(pass, &[]);
        });
        code.check_int(Cond::Ne, likely, 0, |code| code.jump(pass, &[]));
        let (drawn, reached) = (code.get(self.drawn), code.alu(AluOp::Mul, since, likely));
        code.check(Cond::Gt, reached, drawn, |code| code.jump(pass, &[]));
        let zero = code.int(0);
        code.set(self.since, zero);
        self.draw(code);
        code.jump(drop, &[]);
    }

    fn draw(&self, code: &mut ElementBuilder<'_, '_>) {
        let random = code.random();
        let drawn = code.with(AluOp::And, random, CERTAIN - 1);
        code.set(self.drawn, drawn);
    }
}
