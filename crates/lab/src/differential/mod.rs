//! Checks two objects for equality of behaviour: random packets and tables, with the kernel as the judge.
//!
//! A program is run three times on every packet, each time with maps of its own: the first object's twice, the
//! second time with other bytes in the unwritten stack, the second's once. Where the first differs from itself
//! (time, random numbers, bytes that nobody wrote), nothing can be said and nothing is; where it agrees with
//! itself and the second does not, and the same values show when all is done anew, the second is different.
//! Return value, packet, context, and the final contents of the maps are compared. Each round has new tables,
//! filled at random and where the program looks (module `tables`).

pub mod compare;
mod counterexample;
mod frames;
mod replica;
mod stack;
mod tables;

use std::collections::BTreeSet;

use millstream_interp::ContextKind;
use millstream_isa::{Insn, Operand, RawInsn, decode_all};
use millstream_kernel::{ProgramType, TestOutput};
use millstream_object::{self as object, Object};
use millstream_rng::Rng;
use serde::Serialize;

pub use compare::{ByteDifference, ObservedDifference};
pub use counterexample::{KernelReplay, TestRunInput, replay};

use crate::error::{Error, Result};
use compare::{RunComparison, RunTriple};
use frames::FuzzValues;
use replica::{InitialStack, ProgramReplica};
use tables::TableEntry;

/// Packets that go through the same tables.
const ROUND: usize = 2048;
/// Number of repetitions in which a difference must show when all is done anew.
const CONFIRMATIONS: usize = 3;

/// Extent of the check.
#[derive(Clone, Copy, Debug)]
pub struct DifferentialPlan {
    /// Packets a program.
    pub packets: usize,
    /// Of all that is random.
    pub seed: u64,
}

/// Report on one program.
#[derive(Clone, Debug, Serialize)]
pub struct DifferentialReport {
    /// Its name.
    pub program: String,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: DifferentialOutcome,
    /// Packets that both were run on.
    pub packets: usize,
    /// Entries that were written into the maps, over all rounds.
    pub entries: usize,
    /// Instructions of the first that were executed at least once, and all; as far as the interpreter models
    /// them.
    pub reached: Option<[usize; 2]>,
    /// Observables in which two runs of the first differ; they were not compared.
    pub varies: BTreeSet<String>,
}

/// Outcome for one program.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum DifferentialOutcome {
    /// No difference.
    Equal,
    /// They differ.
    Different(Box<ConfirmedDifference>),
    /// It could not be tried.
    NotTried {
        /// Why.
        reason: String,
    },
}

/// A difference that showed each time.
#[derive(Clone, Debug, Serialize)]
pub struct ConfirmedDifference {
    /// First place in which it shows.
    #[serde(flatten)]
    pub observable: ObservedDifference,
    /// Packets that went before.
    pub after: usize,
    /// The packet, in hexadecimal.
    pub packet: String,
}

/// The two versions of a program.
struct ProgramPair<'a> {
    objects: [&'a Object; 2],
    programs: [&'a object::EntryProgram; 2],
    /// By the first object's number of a map, the second's.
    maps: Vec<Option<usize>>,
}

/// Tables and packets.
struct FuzzRound {
    entries: Vec<TableEntry>,
    packets: Vec<Vec<u8>>,
    context: Vec<u8>,
    /// Executions of each slot of the first; empty if the interpreter does not model the program.
    visits: Vec<u64>,
}

/// A round, or why there is none.
enum GeneratedRound {
    Round(FuzzRound),
    Nothing(String),
}

/// Holds the programs of this name against each other.
///
/// Maps with a value a CPU are compared, so the calling thread should stay on one CPU.
///
/// # Errors
/// If one of the objects has no such program or lacks a map of the other; or if the kernel refuses anything
/// but programs.
pub fn compare_objects(
    first: &Object,
    second: &Object,
    name: &str,
    plan: &DifferentialPlan,
) -> Result<DifferentialReport> {
    let pair = ProgramPair::new(first, second, name)?;
    let mut answer = DifferentialReport {
        program: name.to_owned(),
        outcome: DifferentialOutcome::Equal,
        packets: 0,
        entries: 0,
        reached: None,
        varies: BTreeSet::new(),
    };
    let mut visits: Vec<u64> = Vec::new();
    for number in 0..plan.packets.div_ceil(ROUND) {
        if crate::os::interrupted() {
            return Err(Error::Unusable("interrupted".to_owned()));
        }
        let count = ROUND.min(plan.packets - number * ROUND);
        let mut rng = Rng::new(plan.seed ^ (number as u64) << 32);
        let round = match pair.draw(count, &mut rng)? {
            GeneratedRound::Round(round) => round,
            GeneratedRound::Nothing(reason) => {
                answer.outcome = DifferentialOutcome::NotTried { reason };
                return Ok(answer);
            }
        };
        visits.resize(round.visits.len(), 0);
        visits.iter_mut().zip(&round.visits).for_each(|(all, one)| *all += one);
        answer.entries += round.entries.len();
        answer.packets += count;
        if let Some(difference) = pair.difference(&round, &mut answer.varies)? {
            answer.outcome = DifferentialOutcome::Different(Box::new(difference));
            break;
        }
    }
    if !visits.is_empty() {
        answer.reached = Some([visits.iter().filter(|v| **v > 0).count(), pair.instructions()]);
    }
    Ok(answer)
}

impl<'a> ProgramPair<'a> {
    fn new(first: &'a Object, second: &'a Object, name: &str) -> Result<Self> {
        let find = |object: &'a Object| {
            let found = object.programs.iter().find(|p| p.name == name);
            found.ok_or_else(|| Error::Unusable(format!("no program {name:?}")))
        };
        let same = |a: &object::ObjectMap, b: &object::ObjectMap| match a.origin.is_global() {
            // Named after the file.
            true => b.origin.is_global() && a.section == b.section,
            false => a.name == b.name,
        };
        let maps = first.maps.iter().map(|a| second.maps.iter().position(|b| same(a, b))).collect();
        Ok(ProgramPair { objects: [first, second], programs: [find(first)?, find(second)?], maps })
    }

    fn load(&self, side: usize, name: &str, stack: InitialStack) -> Result<ProgramReplica<'a>> {
        ProgramReplica::load(self.objects[side], self.programs[side], name, stack)
    }

    /// Instructions of the first.
    fn instructions(&self) -> usize {
        let linked = self.objects[0].link(self.programs[0].func);
        linked.map_or(0, |linked| decode_all(&linked.insns).map_or(0, |insns| insns.len()))
    }

    /// Tables and packets of a round.
    fn draw(&self, count: usize, rng: &mut Rng) -> Result<GeneratedRound> {
        // A type that the section tells needs no loading to be known.
        let told = ProgramType(self.programs[0].kind.program_type.0);
        if told != ProgramType::UNSPEC && context(told).is_none() {
            return Ok(GeneratedRound::Nothing(format!("a program of type {told} is not run on packets")));
        }
        let first = match self.load(0, "the first", InitialStack::Unwritten) {
            Ok(first) => first,
            Err(e @ (Error::Program { .. } | Error::Loader(_) | Error::Object(_))) if !e.is_forbidden() => {
                return Ok(GeneratedRound::Nothing(e.error_chain()));
            }
            Err(e) => return Err(e),
        };
        let found = first.program_type()?;
        let Some(kind) = context(found) else {
            return Ok(GeneratedRound::Nothing(format!("a program of type {found} is not run on packets")));
        };
        let slots = first.slots()?;
        let pool = FuzzValues::new(rng, constants(&slots));
        let packets: Vec<Vec<u8>> = (0..count).map(|_| pool.frame(rng)).collect();
        let mut entries = tables::draw(&first.session, &pool, rng);
        first.fill(&entries);
        let visits = tables::learn(&first.session, &slots, &packets, kind, (&pool, rng), &mut entries)?;
        let context = if kind == ContextKind::Skb { socket_buffer(rng) } else { Vec::new() };
        Ok(GeneratedRound::Round(FuzzRound { entries, packets, context, visits }))
    }

    /// The first difference of a round, if it shows each time.
    fn difference(
        &self,
        round: &FuzzRound,
        varies: &mut BTreeSet<String>,
    ) -> Result<Option<ConfirmedDifference>> {
        let all = round.packets.len();
        let Some((mut after, mut observable)) = self.play(round, all, varies)? else { return Ok(None) };
        if matches!(observable, ObservedDifference::Map { .. }) {
            // Maps are looked at in the end; the packet that made the difference is found by halving.
            let (mut without, mut with) = (0, all);
            while with - without > 1 {
                let middle = without.midpoint(with);
                match self.play(round, middle, varies)? {
                    Some((_, found)) => (with, observable) = (middle, found),
                    None => without = middle,
                }
            }
            after = with - 1;
        }
        for _ in 0..CONFIRMATIONS {
            match self.play(round, after + 1, varies)? {
                Some((at, again)) if at == after && again.is_repetition_of(&observable) => {}
                _ => {
                    varies.insert(observable.place());
                    return Ok(None);
                }
            }
        }
        let packet = hex::encode(&round.packets[after]);
        Ok(Some(ConfirmedDifference { observable, after, packet }))
    }

    /// Runs the first `count` packets of a round on fresh replicas. Returns the number of the packet at which
    /// a difference was seen, and the difference.
    fn play(
        &self,
        round: &FuzzRound,
        count: usize,
        varies: &mut BTreeSet<String>,
    ) -> Result<Option<(usize, ObservedDifference)>> {
        let first = self.load(0, "the first", InitialStack::Unwritten)?;
        let again = self.load(0, "the first", InitialStack::Written)?;
        let replicas = [first, again, {
            match self.load(1, "the second", InitialStack::Unwritten) {
                Ok(replica) => replica,
                Err(e @ Error::Program { .. }) => {
                    return Ok(Some((0, ObservedDifference::Rejected { message: e.error_chain() })));
                }
                Err(e) => return Err(e),
            }
        }];
        for (side, replica) in replicas.iter().enumerate() {
            replica.fill(&self.entries_for(side, &round.entries));
        }
        let mut outputs = [const { None::<TestOutput> }; 3];
        for (number, packet) in round.packets.iter().take(count).enumerate() {
            for (replica, output) in replicas.iter().zip(&mut outputs) {
                let mut room = output.take().unwrap_or_default();
                *output = replica.run(packet, &round.context, &mut room).ok().map(|()| room);
            }
            let [a, again, b] = outputs.each_ref().map(Option::as_ref);
            match compare::outputs(RunTriple { a, again, b }) {
                RunComparison::Same => {}
                RunComparison::Varies(what) => {
                    varies.insert(what);
                }
                RunComparison::Different(observable) => return Ok(Some((number, observable))),
            }
        }
        let observable = self.compare_maps(&replicas, varies)?;
        Ok(observable.map(|o| (count.saturating_sub(1), o)))
    }

    fn compare_maps(
        &self,
        replicas: &[ProgramReplica<'_>; 3],
        varies: &mut BTreeSet<String>,
    ) -> Result<Option<ObservedDifference>> {
        for (at, other) in self.maps.iter().enumerate() {
            let name = &self.objects[0].maps[at].name;
            let Some(a) = replicas[0].contents(at)? else { continue };
            let Some(other) = other else {
                return Err(Error::Unusable(format!("the second has no map {name:?}")));
            };
            let (again, b) = (replicas[1].contents(at)?, replicas[2].contents(*other)?);
            let (again, b) = (again.unwrap_or_default(), b.unwrap_or_default());
            match compare::maps(name, RunTriple { a: &a, again: &again, b: &b }) {
                RunComparison::Same => {}
                RunComparison::Varies(what) => {
                    varies.insert(what);
                }
                RunComparison::Different(observable) => return Ok(Some(observable)),
            }
        }
        Ok(None)
    }

    /// Entries with the numbers that the maps have in the object of this replica.
    fn entries_for(&self, side: usize, entries: &[TableEntry]) -> Vec<TableEntry> {
        if side < 2 {
            return entries.to_vec();
        }
        let renumber = |e: &TableEntry| Some(TableEntry { map: self.maps[e.map]?, ..e.clone() });
        entries.iter().filter_map(renumber).collect()
    }
}

/// The context of programs of this type that are run on packets.
fn context(kind: ProgramType) -> Option<ContextKind> {
    match kind {
        ProgramType::XDP => Some(ContextKind::Xdp),
        ProgramType::SOCKET_FILTER
        | ProgramType::SCHED_CLS
        | ProgramType::SCHED_ACT
        | ProgramType::CGROUP_SKB
        | ProgramType::LWT_IN
        | ProgramType::LWT_OUT
        | ProgramType::LWT_XMIT
        | ProgramType::LWT_SEG6LOCAL => Some(ContextKind::Skb),
        _ => None,
    }
}

/// Constants that a program compares with, in both byte orders.
fn constants(slots: &[u64]) -> Vec<i32> {
    let raw: Vec<RawInsn> = slots.iter().map(|s| RawInsn::from_bytes(s.to_ne_bytes())).collect();
    let compared = decode_all(&raw).unwrap_or_default().into_iter().filter_map(|(_, insn)| match insn {
        Insn::Branch { src: Operand::Imm(imm), .. } if imm != 0 => Some(imm),
        _ => None,
    });
    compared.flat_map(|imm| [imm, i32::from((imm as u16).swap_bytes())]).collect()
}

/// A `struct __sk_buff` with what user space may set: mark, priority, control block.
fn socket_buffer(rng: &mut Rng) -> Vec<u8> {
    let mut context = vec![0; ContextKind::Skb.size()];
    for offset in [8, 32, 48, 52, 56, 60, 64] {
        let value = if rng.below(2) == 0 { 0 } else { rng.next_u32() >> rng.below(32) };
        context[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    context
}
