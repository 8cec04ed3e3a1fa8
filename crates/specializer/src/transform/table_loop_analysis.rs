//! Loops that go through a table: the effect of each turn on the packet, found ahead of time.
//!
//! As long as the counters of a loop are known, so are the words that it reads from a known table. The tests
//! that a turn then makes of the packet are conditions on bits of words that were there before the loop. A
//! turn is passed over where they do not hold, if nothing visible to others happens on that path, and the
//! values that go round are known again.
//!
//! Invariant: where a condition that a [`LoopIteration`] needs does not hold, the turn ends at the header
//! with the values with which the next of the turns begins. Turns that are not listed always do, one after
//! the other.

use std::rc::Rc;

use cranelift_entity::EntityRef;
use millstream_ir::{
    AluOp, Block, BlockCall, Cfg, Cond, Inst, Map, MemFlags, Module, Op, Size, Value, ValueDef, Width,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::abstract_key::key_bytes;
use super::eval::{AbstractValue, LookupValueId, ValueAddress, ValueBytes, read};
use super::partial_eval::{AbstractEnv, PartialEvaluator};
use super::site::{KeyForm, LookupSite};
use super::symbolic_bits::{BitCondition, BitLiterals, KnownWordBits, SymbolicWord};

/// Turns of one loop.
const TURNS: usize = 4_096;
/// Instructions that are evaluated for all turns of one loop.
const STEPS: usize = 400_000;
/// Branches that are not decided, one behind the other, in one turn.
const DEPTH: usize = 32;

/// One turn of a loop.
#[derive(Debug)]
pub(super) struct LoopIteration {
    /// Values of the header's parameters.
    pub(super) params: Vec<AbstractValue>,
    /// Conditions without which the turn is passed over.
    pub(super) needs: Vec<BitCondition>,
    /// The branches on its path if the conditions hold, as far as they are decided then, and the direction of
    /// each.
    pub(super) path: Vec<(Inst, bool)>,
    /// True if the turn is passed over where the conditions do not hold: otherwise nothing is known of what
    /// follows it.
    pub(super) may_pass: bool,
    /// True if there may be other branches on its path, which nothing decides.
    pub(super) is_open: bool,
}

/// Knowledge about a value in a turn.
#[derive(Clone, PartialEq, Debug)]
enum SymbolicValue {
    Const(u64),
    Bits(Rc<SymbolicWord>),
    /// This many bytes into a value known before the loop.
    Known(LookupValueId, i64),
    /// This many bytes into a value that a lookup of the turn found.
    Found(usize, i64),
    /// The same as this value from before the loop, which is not a number.
    Before(Value),
    Other,
}

/// Possible outcomes of a turn from one place on.
#[derive(Clone)]
struct IterationOutcome {
    /// Parameters of the next turn, if this one is passed over.
    next: Option<Vec<SymbolicValue>>,
    /// True if the turn is passed over, whatever the packet.
    passes: bool,
    needs: Vec<BitCondition>,
    /// Branches, as far as they are decided, and the direction of each.
    path: Vec<(Inst, bool)>,
    /// True if there may be others, which nothing decides.
    is_open: bool,
}

impl IterationOutcome {
    /// The loop is left, or is gone through again when others could see that.
    fn stays() -> IterationOutcome {
        IterationOutcome { next: None, passes: false, needs: Vec::new(), path: Vec::new(), is_open: false }
    }

    /// Nothing is known.
    fn open() -> IterationOutcome {
        IterationOutcome { is_open: true, ..IterationOutcome::stays() }
    }

    fn passed(next: Vec<SymbolicValue>) -> IterationOutcome {
        IterationOutcome { next: Some(next), passes: true, ..IterationOutcome::stays() }
    }
}

type SymbolicEnv = FxHashMap<Value, SymbolicValue>;

/// Turns on their way.
struct LoopEvaluator<'c, 'a> {
    copier: &'c PartialEvaluator<'a>,
    env: &'c AbstractEnv,
    header: Block,
    body: &'c FxHashSet<Block>,
    /// Values of the loop itself.
    inside: FxHashSet<Value>,
    found: Vec<(Map, Vec<u8>)>,
    steps: usize,
}

/// The blocks of the loop with this header, if it is one.
pub(super) fn loop_of(cfg: &Cfg, header: Block) -> FxHashSet<Block> {
    let mut body = FxHashSet::from_iter([header]);
    let back = |p: &&Block| cfg.rpo_index[**p] >= cfg.rpo_index[header];
    let mut work: Vec<Block> = cfg.preds[header].iter().filter(back).copied().collect();
    while let Some(block) = work.pop() {
        if body.insert(block) {
            work.extend(&cfg.preds[block]);
        }
    }
    body
}

/// Returns true if a lookup is in a loop, and its key is a parameter of the loop's header.
pub fn is_table_loop_lookup(module: &Module, site: &LookupSite) -> bool {
    let func = &module.funcs[site.func];
    let cfg = Cfg::new(func);
    let key = match &site.key {
        KeyForm::Values(_) => func.insts[site.inst].args.first().copied(),
        _ => None,
    };
    let Some(ValueDef::Param(header, _)) = key.map(|key| func.defs[key]) else { return false };
    let body = loop_of(&cfg, header);
    body.len() > 1 && body.contains(&site.block) || func.targets(header).iter().any(|t| t.block == header)
}

/// The turns of a loop that matter, in their order. `env` describes values before the first one. `None`
/// if there are no such turns.
pub(super) fn turns(
    evaluator: &PartialEvaluator<'_>,
    header: Block,
    body: &FxHashSet<Block>,
    env: &AbstractEnv,
) -> Option<Vec<LoopIteration>> {
    let blocks = body.iter().map(|block| &evaluator.original.src.blocks[*block]);
    let results = |insts: &[Inst]| -> Vec<Value> {
        insts.iter().filter_map(|inst| evaluator.original.src.result(*inst)).collect()
    };
    let inside = blocks.flat_map(|b| b.params.iter().copied().chain(results(&b.insts))).collect();
    let mut walk =
        LoopEvaluator { copier: evaluator, env, header, body, inside, found: Vec::new(), steps: STEPS };
    let first: Vec<SymbolicValue> =
        evaluator.original.src.blocks[header].params.iter().map(|param| walk.before(*param)).collect();
    let mut params = first.clone();
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let abs = walk.abs(&params, &first)?;
        let IterationOutcome { next, passes, needs, path, is_open } = walk.turn(&params);
        if walk.steps == 0 {
            break;
        }
        let may_pass = next.is_some() && !needs.is_empty();
        if !passes {
            turns.push(LoopIteration { params: abs, needs, path, may_pass, is_open });
        }
        match next.filter(|_| passes || may_pass) {
            Some(next) if next == params => break,
            Some(next) => params = next,
            None => return Some(turns),
        }
    }
    // What is beyond the limits is left to the loop itself.
    let params = walk.abs(&params, &first)?;
    let (needs, path) = (Vec::new(), Vec::new());
    turns.push(LoopIteration { params, needs, path, may_pass: false, is_open: true });
    Some(turns)
}

impl LoopEvaluator<'_, '_> {
    /// Knowledge about a value from before the loop, or a parameter of its header in the first turn.
    fn before(&self, value: Value) -> SymbolicValue {
        match self.env[value.index()] {
            AbstractValue::Const(constant) => SymbolicValue::Const(constant as u64),
            AbstractValue::Ptr(id, at)
                if matches!(self.copier.lookups.known[id].bytes, ValueBytes::One(_)) =>
            {
                SymbolicValue::Known(id, at)
            }
            AbstractValue::Val(_) => match self.copier.original.src.types[value].int_bits() {
                Some(bits) => SymbolicValue::Bits(Rc::new(SymbolicWord::word(value, bits))),
                None => SymbolicValue::Before(value),
            },
            _ => SymbolicValue::Other,
        }
    }

    /// The parameters of the header, as the copy has them in a later turn.
    fn abs(&self, now: &[SymbolicValue], first: &[SymbolicValue]) -> Option<Vec<AbstractValue>> {
        let params = &self.copier.original.src.blocks[self.header].params;
        let abs = |(param, (now, first)): (&Value, (&SymbolicValue, &SymbolicValue))| match now {
            SymbolicValue::Const(constant) => Some(AbstractValue::Const(*constant as i64)),
            SymbolicValue::Known(id, at)
                if matches!(self.copier.lookups.known[*id].address, ValueAddress::Direct) =>
            {
                Some(AbstractValue::Ptr(*id, *at))
            }
            // Nothing that changes from turn to turn.
            SymbolicValue::Bits(_) | SymbolicValue::Before(_) if now == first => {
                Some(self.env[param.index()])
            }
            _ => None,
        };
        params.iter().zip(now.iter().zip(first)).map(abs).collect()
    }

    fn turn(&mut self, params: &[SymbolicValue]) -> IterationOutcome {
        let params =
            self.copier.original.src.blocks[self.header].params.iter().copied().zip(params.iter().cloned());
        self.rest(self.header, params.collect(), false, 0)
    }

    /// Evaluates the turn from a block on. `seen`: true if something has happened that others can see.
    fn rest(
        &mut self,
        mut block: Block,
        mut values: SymbolicEnv,
        mut seen: bool,
        depth: usize,
    ) -> IterationOutcome {
        let src = self.copier.original.src;
        let mut path = Vec::new();
        loop {
            let Some((&last, insts)) = src.blocks[block].insts.split_last() else {
                return IterationOutcome::open();
            };
            for &inst in insts {
                self.steps = self.steps.saturating_sub(1);
                seen |= self.inst(inst, &mut values);
            }
            if self.steps == 0 || depth > DEPTH {
                return IterationOutcome::open();
            }
            let data = &src.insts[last];
            let target = match data.op {
                Op::Jump {} => &data.targets[0],
                Op::Branch { cond, width } => {
                    match self.condition(cond, width, [data.args[0], data.args[1]], &values) {
                        BitCondition::Always(is) => {
                            path.push((last, is));
                            &data.targets[usize::from(!is)]
                        }
                        condition => {
                            let sides = [&data.targets[0], &data.targets[1]];
                            let sides = sides.map(|target| self.over(target, &values, seen, depth));
                            let mut rest = branched(last, condition, sides);
                            rest.path.splice(0..0, path);
                            return rest;
                        }
                    }
                }
                Op::Return {} => return IterationOutcome { path, ..IterationOutcome::stays() },
                _ => return IterationOutcome { path, ..IterationOutcome::open() },
            };
            match self.edge(target, &values, seen) {
                Ok(entered) => values = entered,
                Err(rest) => return IterationOutcome { path, ..rest },
            }
            block = target.block;
        }
    }

    fn over(
        &mut self,
        target: &BlockCall,
        values: &SymbolicEnv,
        seen: bool,
        depth: usize,
    ) -> IterationOutcome {
        match self.edge(target, values, seen) {
            Ok(entered) => self.rest(target.block, entered, seen, depth + 1),
            Err(rest) => rest,
        }
    }

    /// The values behind an edge, if it leads to a block of the turn.
    fn edge(
        &self,
        target: &BlockCall,
        values: &SymbolicEnv,
        seen: bool,
    ) -> Result<SymbolicEnv, IterationOutcome> {
        if !self.body.contains(&target.block) {
            return Err(IterationOutcome::stays());
        }
        let args: Vec<SymbolicValue> = target.args.iter().map(|arg| self.sym(*arg, values)).collect();
        if target.block == self.header {
            return Err(if seen { IterationOutcome::stays() } else { IterationOutcome::passed(args) });
        }
        // A branch in a loop within goes this way and that in one turn.
        let index = &self.copier.original.cfg.rpo_index;
        if self.copier.original.cfg.preds[target.block].iter().any(|pred| index[*pred] >= index[target.block])
        {
            return Err(IterationOutcome::open());
        }
        let mut entered = values.clone();
        entered.extend(self.copier.original.src.blocks[target.block].params.iter().copied().zip(args));
        Ok(entered)
    }

    fn sym(&self, value: Value, values: &SymbolicEnv) -> SymbolicValue {
        match values.get(&value) {
            Some(sym) => sym.clone(),
            None if self.inside.contains(&value) => SymbolicValue::Other,
            None => self.before(value),
        }
    }

    /// Evaluates an instruction; returns true if it has effects that others can see.
    fn inst(&mut self, inst: Inst, values: &mut SymbolicEnv) -> bool {
        let data = &self.copier.original.src.insts[inst];
        let args: Vec<SymbolicValue> = data.args.iter().map(|arg| self.sym(*arg, values)).collect();
        let mut seen = data.op.effects().writes || data.op.effects().calls;
        let sym = match &data.op {
            Op::MapLookup { map, key } => {
                let piece = |n: usize| match args.get(n) {
                    Some(SymbolicValue::Const(constant)) => Some(*constant as i64),
                    _ => None,
                };
                let size = self.copier.original.module.maps[*map].key_size;
                let found =
                    key_bytes(key, size, piece).and_then(|key| self.copier.plans.contents.lookup(*map, &key));
                seen = found.is_none();
                found.map_or(SymbolicValue::Other, |found| self.found(*map, found))
            }
            Op::MapValueAddr { map, offset } => {
                let found = self.copier.plans.contents.lookup(*map, &[0; 4]).flatten();
                match found.map(|bytes| self.found(*map, Some(bytes))) {
                    Some(SymbolicValue::Found(n, _)) => SymbolicValue::Found(n, i64::from(*offset)),
                    _ => SymbolicValue::Other,
                }
            }
            Op::Load { size, sext, offset, flags } if *flags == MemFlags::default() => {
                self.load(&args[0], *offset, *size, *sext)
            }
            Op::Load { flags, .. } => {
                seen |= flags.volatile;
                SymbolicValue::Other
            }
            op => computed(op, &args),
        };
        if let Some(result) = data.result.expand() {
            values.insert(result, sym);
        }
        seen
    }

    fn found(&mut self, map: Map, found: Option<Vec<u8>>) -> SymbolicValue {
        let Some(bytes) = found else { return SymbolicValue::Const(0) };
        self.found.push((map, bytes));
        SymbolicValue::Found(self.found.len() - 1, 0)
    }

    fn load(&self, base: &SymbolicValue, offset: i32, size: Size, sext: bool) -> SymbolicValue {
        let (map, bytes, at) = match base {
            SymbolicValue::Found(n, at) => (self.found[*n].0, &self.found[*n].1, at),
            SymbolicValue::Known(id, at) => match &self.copier.lookups.known[*id].bytes {
                ValueBytes::One(bytes) => (self.copier.lookups.known[*id].map, bytes, at),
                _ => return SymbolicValue::Other,
            },
            _ => return SymbolicValue::Other,
        };
        let start = at.checked_add(i64::from(offset)).and_then(|at| u32::try_from(at).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(size.bytes())?));
        let Some(range) = range.filter(|range| self.copier.plans.contents.constant(map, range.clone()))
        else {
            return SymbolicValue::Other;
        };
        read(bytes, range.start, size, sext)
            .map_or(SymbolicValue::Other, |value| SymbolicValue::Const(value as u64))
    }

    fn condition(&self, cond: Cond, width: Width, args: [Value; 2], values: &SymbolicEnv) -> BitCondition {
        let args = args.map(|arg| self.sym(arg, values));
        if let [SymbolicValue::Found(..) | SymbolicValue::Known(..), SymbolicValue::Const(0)] = args
            && width == Width::W64
            && matches!(cond, Cond::Eq | Cond::Ne)
        {
            return BitCondition::Always(cond == Cond::Ne);
        }
        match [bits(&args[0]), bits(&args[1])] {
            [Some(a), Some(b)] => BitCondition::new(cond, width, &a, &b),
            _ => BitCondition::Open,
        }
    }
}

/// A number, bit by bit.
fn bits(sym: &SymbolicValue) -> Option<Rc<SymbolicWord>> {
    match sym {
        SymbolicValue::Const(constant) => Some(Rc::new(SymbolicWord::constant(*constant))),
        SymbolicValue::Bits(bits) => Some(Rc::clone(bits)),
        _ => None,
    }
}

/// The result of arithmetic.
fn computed(op: &Op, args: &[SymbolicValue]) -> SymbolicValue {
    let number = |bits: SymbolicWord| match bits.as_constant() {
        Some(constant) => SymbolicValue::Const(constant),
        None => SymbolicValue::Bits(Rc::new(bits)),
    };
    let of = |n: usize| args.get(n).and_then(bits);
    match (op, args) {
        (Op::Const { value }, _) => SymbolicValue::Const(*value as u64),
        (
            Op::Alu { op: AluOp::Add, width: Width::W64 },
            [SymbolicValue::Known(id, at), SymbolicValue::Const(by)],
        )
        | (
            Op::Alu { op: AluOp::Add, width: Width::W64 },
            [SymbolicValue::Const(by), SymbolicValue::Known(id, at)],
        ) => at.checked_add(*by as i64).map_or(SymbolicValue::Other, |at| SymbolicValue::Known(*id, at)),
        (
            Op::Alu { op: AluOp::Add, width: Width::W64 },
            [SymbolicValue::Found(n, at), SymbolicValue::Const(by)],
        )
        | (
            Op::Alu { op: AluOp::Add, width: Width::W64 },
            [SymbolicValue::Const(by), SymbolicValue::Found(n, at)],
        ) => at.checked_add(*by as i64).map_or(SymbolicValue::Other, |at| SymbolicValue::Found(*n, at)),
        (Op::Alu { op, width }, _) => match (of(0), of(1)) {
            (Some(a), Some(b)) => number(SymbolicWord::alu(*op, *width, &a, &b)),
            _ => SymbolicValue::Other,
        },
        (Op::Zext {}, _) => of(0).map_or(SymbolicValue::Other, |a| number(a.lowest(32))),
        (Op::Sext { bits, width }, _) => {
            of(0).map_or(SymbolicValue::Other, |a| number(a.sign_extended(u32::from(*bits), *width)))
        }
        (Op::Swap { kind, bits }, _) => {
            of(0).map_or(SymbolicValue::Other, |a| number(a.swapped(*kind, u32::from(*bits))))
        }
        _ => SymbolicValue::Other,
    }
}

/// Combines the outcomes of both sides of an undecided branch, the taken one first.
fn branched(
    branch: Inst,
    condition: BitCondition,
    [taken, fallen]: [IterationOutcome; 2],
) -> IterationOutcome {
    let agree = |a: &IterationOutcome, b: &IterationOutcome| match (&a.next, &b.next) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    if !agree(&taken, &fallen) {
        return IterationOutcome::open();
    }
    let next = taken.next.clone().or_else(|| fallen.next.clone());
    let (rest, condition, is_taken) = match (taken.passes, fallen.passes) {
        (true, true) => return taken,
        (false, true) => (taken, condition, true),
        (true, false) => (fallen, condition.not(), false),
        (false, false) => {
            let needs = common(&taken.needs, &fallen.needs);
            return IterationOutcome { next, passes: false, needs, path: Vec::new(), is_open: true };
        }
    };
    if condition == BitCondition::Open {
        // The way on which it is passed over may come to the same branches.
        return IterationOutcome { next, passes: false, path: Vec::new(), is_open: true, ..rest };
    }
    let (mut needs, mut path) = (rest.needs, rest.path);
    needs.insert(0, condition);
    path.insert(0, (branch, is_taken));
    IterationOutcome { next, passes: false, needs, path, is_open: rest.is_open }
}

/// The literals that both sides need.
fn common(a: &[BitCondition], b: &[BitCondition]) -> Vec<BitCondition> {
    let literals =
        |all: &[BitCondition]| -> BitLiterals { all.iter().flat_map(BitCondition::literals).collect() };
    let (a, b) = (literals(a), literals(b));
    let both: BitLiterals = a.into_iter().filter(|literal| b.contains(literal)).collect();
    if both.is_empty() { Vec::new() } else { vec![BitCondition::All(both)] }
}

/// Those of the turns that packets with these facts may reach: up to the first that none of them passes over.
pub(super) fn possible(turns: &[LoopIteration], among: &[usize], facts: &KnownWordBits) -> Vec<usize> {
    let mut left = Vec::with_capacity(among.len());
    for &n in among {
        let needs = || turns[n].needs.iter().map(|need| need.under(facts));
        if turns[n].may_pass && needs().any(|is| is == Some(false)) {
            continue;
        }
        left.push(n);
        if !turns[n].may_pass || needs().all(|is| is == Some(true)) {
            break;
        }
    }
    left
}
