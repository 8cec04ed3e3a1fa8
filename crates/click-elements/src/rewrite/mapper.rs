//! Mappers: elements that choose among the patterns of a rewriter's input, by turns or by the source.
//!
//! `SourceIPHashMapper` places each server at many points of a ring, and a source belongs to the server of the
//! next point (Karger and others, 1997): if servers come or go, few sources change theirs.

use millstream_ir::{Block, Value};
use millstream_isa::{AluOp, Cond};

use super::spec::{RewritePattern, flow_spec};
use crate::basic::nothing;
use millstream_click::arguments::unsigned;
use millstream_click::build::ElementBuilder;
use millstream_click::class::ElementClass;
use millstream_click::keyword::at;
use millstream_click::{Element, ElementSetup, Error, FlowKey, words};

const fn mapper(name: &'static str, about: &'static str) -> ElementClass {
    ElementClass { ports: "0/0", processing: "a/a", ..ElementClass::filter(name, about, &[], nothing) }
}

pub(super) const ROUND_ROBIN: ElementClass =
    mapper("RoundRobinIPMapper", "Gives flows of a rewriter patterns by turns.").and(at("PATTERN"));
pub(super) const SOURCE_HASH: ElementClass =
    mapper("SourceIPHashMapper", "Gives flows of a rewriter patterns by their source.")
        .and(at("NODES SEED, PATTERN OUTPUTS SERVER..."));

/// Points of all servers on the ring, at most.
const MOST_POINTS: u64 = 4096;

/// One of several patterns, for each flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PatternMapper {
    /// Patterns, each with the outputs of the flow and of its answers.
    pub(super) patterns: Vec<(RewritePattern, [u32; 2])>,
    choice: MapperChoice,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum MapperChoice {
    /// By turns: offset of the next one's number.
    Turns(u32),
    /// By points on the ring, in order, each with the number of its pattern.
    Ring(Vec<(u32, usize)>),
}

/// The mapper of this name, if it is one.
pub(super) fn named(setup: &ElementSetup<'_>, name: &str) -> Option<Element> {
    let is_mapper = |class: &str| [ROUND_ROBIN.name, SOURCE_HASH.name].contains(&class);
    setup.named(name).filter(|element| is_mapper(&element.class)).cloned()
}

/// Reads the patterns of a mapper.
pub(super) fn read(setup: &mut ElementSetup<'_>, mapper: &Element) -> Result<PatternMapper, Error> {
    let empty = |what: &str| Error::new(mapper.span, format!("`{}` has no {what}", mapper.name));
    if mapper.class == ROUND_ROBIN.name {
        let all = mapper.arguments.iter().enumerate();
        let patterns = all
            .map(|(at, text)| flow_spec(setup, &format!("{}.{at}", mapper.name), text, &words(text)))
            .collect::<Result<Vec<_>, Error>>()?;
        if patterns.is_empty() {
            return Err(empty("patterns"));
        }
        let choice = MapperChoice::Turns(setup.shared_number(&format!("mapper {}", mapper.name)));
        return Ok(PatternMapper { patterns, choice });
    }
    let [ring, servers @ ..] = &mapper.arguments[..] else { return Err(empty("number of nodes")) };
    if servers.is_empty() {
        return Err(empty("patterns"));
    }
    let (nodes, seed) = match &words(ring)[..] {
        [nodes, seed] => (unsigned(nodes, MOST_POINTS)?.max(1), unsigned(seed, u64::from(u32::MAX))?),
        _ => return Err(Error::new(ring.span, "expected the number of nodes and a seed")),
    };
    if nodes * servers.len() as u64 > MOST_POINTS {
        return Err(Error::new(ring.span, format!("there may be {MOST_POINTS} nodes of all servers")));
    }
    let (mut patterns, mut points) = (Vec::new(), Vec::new());
    for (at, text) in servers.iter().enumerate() {
        let mut all = words(text);
        let missing = || Error::new(text.span, "expected a pattern, outputs, and the number of the server");
        let id = unsigned(&all.pop().ok_or_else(missing)?, 65_535)?;
        patterns.push(flow_spec(setup, &format!("{}.{at}", mapper.name), text, &all)?);
        points.extend((0..nodes).map(|node| (point(seed << 32 | id << 16 | node, 0), at)));
    }
    points.sort_unstable();
    Ok(PatternMapper { patterns, choice: MapperChoice::Ring(points) })
}

/// Place on the ring of a number.
fn point(addresses: u64, rest: u64) -> u32 {
    (FlowKey { addresses, rest }.digest() >> 32) as u32
}

impl PatternMapper {
    /// Goes on in the block of the pattern that a flow from an address gets: `blocks` are those of the
    /// patterns, in order. Ends.
    pub(super) fn choose(&self, code: &mut ElementBuilder<'_, '_>, source: Value, blocks: &[Block]) {
        match &self.choice {
            MapperChoice::Turns(next) => {
                let turn = code.get(*next);
                let following = code.with(AluOp::Add, turn, 1);
                let following = code.with(AluOp::Mod, following, blocks.len() as i64);
                code.set(*next, following);
                let [rest @ .., last] = blocks else { return };
                for (at, block) in rest.iter().enumerate() {
                    code.check_int(Cond::Ne, turn, at as i64, |code| code.jump(*block, &[]));
                }
                code.jump(*last, &[]);
            }
            MapperChoice::Ring(points) => {
                // The multiplication mixes low bits into high ones, and the shift takes these.
                let mixed = code.number_of(MULTIPLIER);
                let mixed = code.alu(AluOp::Mul, source, mixed);
                let folded = code.with(AluOp::Rsh, mixed, 32);
                let place = code.with(AluOp::And, folded, 0xffff_ffff);
                search(code, place, points, points.first().map_or(0, |(_, server)| *server), blocks);
            }
        }
    }
}

/// Odd multiplier of the hash of sources (Fibonacci hashing: Knuth, volume 3, 6.4).
const MULTIPLIER: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;

/// Ends in the block of the server of the first point that is not in front of a place; behind the last one it
/// is `wrapped`.
fn search(
    code: &mut ElementBuilder<'_, '_>,
    place: Value,
    points: &[(u32, usize)],
    wrapped: usize,
    blocks: &[Block],
) {
    let to = |server: usize| blocks.get(server).copied();
    if points.is_empty() {
        if let Some(block) = to(wrapped) {
            code.jump(block, &[]);
        }
        return;
    }
    let middle = points.len() / 2;
    let (lower, upper) = points.split_at(middle);
    let Some(((at, server), upper)) = upper.split_first() else { return };
    // Behind this point are those above it; else it is the first one, unless one below is, too.
    code.check_int(Cond::Gt, place, i64::from(*at), |code| search(code, place, lower, *server, blocks));
    search(code, place, upper, wrapped, blocks);
}
