//! Jump threading: an edge to a block whose branch it decides goes directly to the side taken.
//!
//! The outcome follows from the arguments for the block's parameters (a flag set on each path, an error code)
//! and from the branches passed before (the same comparison twice, with other paths joining in between).
//! Evaluation is in the verifier's domain. The block's pure instructions are copied to the new edge, and
//! values of the block that are used beyond it get parameters where the copies meet.
//!
//! Loop headers are not threaded: another way into a loop would make it irreducible or hide its counter.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, BlockCall, Cfg, DomTree, Function, Inst, Op, Value};
use millstream_isa::absint::{AbstractDomain, Scalar};
use rustc_hash::FxHashMap;

use crate::manager::{FuncPass, PassContext};
use crate::memory::ssa::{self, SsaVariable};
use crate::scalar::facts::{EdgeFacts, decide, on_side, transfer};
use crate::scalar::remove_unreachable;

const NAME: &str = "jump-threading";

/// Blocks up to this many copied instructions are threaded: a copy costs a slot, a branch saved at least one.
const MOST_COPIED: usize = 2;

/// Number of earlier branches whose facts are used.
const MEMORY: usize = 8;

/// Blocks threaded in one run; each costs time linear in the function.
const MOST_BLOCKS: usize = 100;

/// Jump threading.
pub(crate) struct JumpThreading;

impl FuncPass for JumpThreading {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "go past branches whose outcome the way to them tells"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let domain = cx.target().domain();
        let mut graph = CfgAnalysis::of(func, domain);
        let mut threaded = 0;
        for block in func.layout.clone() {
            if threaded == MOST_BLOCKS || !graph.cfg.is_reachable(block) || !is_candidate(func, &graph, block)
            {
                continue;
            }
            let mut ways = graph.decided_ways(func, block);
            ways.retain(|_| cx.fuel(NAME));
            if !ways.is_empty() {
                thread(func, block, &ways);
                graph = CfgAnalysis::of(func, domain);
                threaded += 1;
            }
        }
        if threaded > 0 {
            remove_unreachable(func);
        }
        threaded > 0
    }
}

/// An edge into a block, and the side that the block's branch then takes.
struct ThreadableEdge {
    term: Inst,
    target: usize,
    side: usize,
}

struct CfgAnalysis {
    domain: AbstractDomain,
    cfg: Cfg,
    dom: DomTree,
}

impl CfgAnalysis {
    fn of(func: &Function, domain: AbstractDomain) -> CfgAnalysis {
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        CfgAnalysis { domain, cfg, dom }
    }

    /// The edges into `block` that tell how it ends.
    fn decided_ways(&self, func: &Function, block: Block) -> Vec<ThreadableEdge> {
        let mut preds = self.cfg.preds[block].clone();
        preds.dedup();
        let mut ways = Vec::new();
        for pred in preds {
            let Some(term) = func.terminator(pred) else { continue };
            for (target, call) in func.insts[term].targets.iter().enumerate() {
                if call.block == block
                    && let Some(truth) = self.outcome(func, pred, target, call)
                {
                    ways.push(ThreadableEdge { term, target, side: usize::from(!truth) });
                }
            }
        }
        ways
    }

    /// Outcome of the branch in the target of this edge, if it is known.
    fn outcome(&self, func: &Function, pred: Block, side: usize, call: &BlockCall) -> Option<bool> {
        let mut facts = self.facts_after(func, pred, side);
        let block = &func.blocks[call.block];
        for (&param, &arg) in block.params.iter().zip(&call.args) {
            let fact = known(func, &facts, arg);
            facts.insert(param, fact);
        }
        for &inst in &block.insts {
            if let Some(result) = func.result(inst) {
                let fact = transfer(self.domain, func, inst, |v| known(func, &facts, v));
                facts.insert(result, fact);
            }
        }
        decide(self.domain, func, func.terminator(call.block)?, |v| known(func, &facts, v))
    }

    /// Facts established by the branches on the way to the end of `pred`, and by its own.
    fn facts_after(&self, func: &Function, pred: Block, side: usize) -> FxHashMap<Value, Scalar> {
        let mut edges = Vec::new();
        edges.extend(func.terminator(pred).map(|term| (term, side)));
        let mut at = Some(pred);
        for _ in 0..MEMORY {
            let Some(block) = at else { break };
            if let [from] = self.cfg.preds[block][..]
                && let Some(term) = func.terminator(from)
                && let Some(side) = func.insts[term].targets.iter().position(|t| t.block == block)
            {
                edges.push((term, side));
            }
            at = self.dom.idom(block);
        }
        let mut facts = FxHashMap::default();
        for (term, side) in edges.into_iter().rev() {
            if let EdgeFacts::Known(taught) =
                on_side(self.domain, func, term, side, |v| known(func, &facts, v))
            {
                facts.extend(taught);
            }
        }
        facts
    }
}

fn known(func: &Function, facts: &FxHashMap<Value, Scalar>, value: Value) -> Scalar {
    match (facts.get(&value), func.as_const(value)) {
        (Some(fact), _) => *fact,
        (None, Some(constant)) => Scalar::constant(constant as u64),
        (None, None) => func.types[value].int_bits().map_or(Scalar::UNKNOWN, Scalar::of_width),
    }
}

/// Returns true if a block may be gone around: it ends with a branch, has only pure instructions, few of
/// which matter beyond the branch, and heads no loop.
fn is_candidate(func: &Function, graph: &CfgAnalysis, block: Block) -> bool {
    let Some(term) = func.terminator(block) else { return false };
    let data = &func.insts[term];
    let branches = matches!(data.op, Op::Branch { .. })
        && data.targets[0].block != data.targets[1].block
        && data.targets.iter().all(|t| t.block != block);
    if !branches || block == func.entry() || graph.cfg.preds[block].len() < 2 {
        return false;
    }
    if graph.cfg.preds[block].iter().any(|&p| graph.dom.dominates(block, p)) {
        return false;
    }
    let body = &func.blocks[block].insts[..func.blocks[block].insts.len() - 1];
    let mut copied = 0;
    for &inst in body {
        if !func.insts[inst].op.effects().is_pure() {
            return false;
        }
        let only_branch = func.result(inst).is_some_and(|v| data.args.contains(&v));
        copied += usize::from(!only_branch && !matches!(func.insts[inst].op, Op::Const { .. }));
    }
    copied <= MOST_COPIED
}

/// Leads each way around `block`, and repairs the uses of its values.
fn thread(func: &mut Function, block: Block, ways: &[ThreadableEdge]) {
    let mut own: Vec<Value> = func.blocks[block].params.clone();
    own.extend(func.blocks[block].insts.iter().filter_map(|&i| func.result(i)));
    let mut around = Vec::new();
    for way in ways {
        let copies = lead_around(func, block, way);
        around.push(copies);
    }
    repair(func, block, &own, &around);
}

/// The block on the new way, with the copies of the old one's values.
type BlockCopy = (Block, FxHashMap<Value, Value>);

fn lead_around(func: &mut Function, block: Block, way: &ThreadableEdge) -> BlockCopy {
    let new = func.add_block();
    let call = std::mem::replace(&mut func.insts[way.term].targets[way.target], BlockCall::new(new));
    let mut copy: FxHashMap<Value, Value> =
        func.blocks[block].params.iter().copied().zip(call.args.iter().copied()).collect();
    let insts = func.blocks[block].insts.clone();
    let (&term, body) = insts.split_last().expect("a block ends with a terminator");
    for &inst in body {
        let data = func.insts[inst].clone();
        let Some(result) = data.result.expand() else { continue };
        let args = data.args.iter().map(|v| *copy.get(v).unwrap_or(v));
        let ty = func.types[result];
        let made = func.make_inst(data.op, args, [], ty);
        func.insts[made].loc = data.loc;
        func.blocks[new].insts.push(made);
        copy.extend(func.result(made).map(|v| (result, v)));
    }
    let target = &func.insts[term].targets[way.side];
    let args: Vec<Value> = target.args.iter().map(|v| *copy.get(v).unwrap_or(v)).collect();
    let on = BlockCall::with(target.block, args);
    let loc = func.insts[term].loc;
    let jump = func.at_end(new).effect(Op::Jump {}, [], [on]);
    func.insts[jump].loc = loc;
    place_before(func, new, block);
    (new, copy)
}

/// Moves a block that was just appended to just before another.
fn place_before(func: &mut Function, new: Block, block: Block) {
    func.layout.pop();
    let at = func.layout.iter().position(|&b| b == block).unwrap_or(func.layout.len());
    func.layout.insert(at, new);
}

/// Values of `block` that are used elsewhere now have several definitions: joins them.
fn repair(func: &mut Function, block: Block, own: &[Value], around: &[BlockCopy]) {
    let mut number: SecondaryMap<Value, Option<u32>> = SecondaryMap::new();
    let mut escaping: Vec<Value> = Vec::new();
    let mut exposed: Vec<Vec<Block>> = Vec::new();
    let is_own: FxHashMap<Value, ()> = own.iter().map(|&v| (v, ())).collect();
    for user in func.layout.clone() {
        if user == block {
            continue;
        }
        for &inst in &func.blocks[user].insts {
            func.for_each_use(inst, |v| {
                if is_own.contains_key(&v) {
                    let n = *number[v].get_or_insert_with(|| {
                        escaping.push(v);
                        exposed.push(Vec::new());
                        escaping.len() as u32 - 1
                    });
                    exposed[n as usize].push(user);
                }
            });
        }
    }
    if escaping.is_empty() {
        return;
    }
    let mut defs = vec![block];
    defs.extend(around.iter().map(|(b, _)| *b));
    let variables: Vec<SsaVariable> =
        exposed.into_iter().map(|exposed| SsaVariable { defs: defs.clone(), exposed }).collect();
    let graph = CfgAnalysis::of(func, AbstractDomain::default());
    let joins = ssa::place(func, &graph.cfg, &graph.dom, &variables);
    let mut rename = SsaUpdater { number, here: SecondaryMap::new() };
    rename.here[block] = escaping.iter().map(|&v| Some(v)).collect();
    for (new, copy) in around {
        rename.here[*new] = escaping.iter().map(|v| copy.get(v).copied()).collect();
    }
    let out = rename.run(func, &graph, block, &joins, escaping.len());
    ssa::add_phi_args(func, &graph.cfg, &joins, &out);
}

struct SsaUpdater {
    number: SecondaryMap<Value, Option<u32>>,
    // The variables' values at the end of blocks that define them.
    here: SecondaryMap<Block, Vec<Option<Value>>>,
}

impl SsaUpdater {
    /// Puts the reaching definitions in place of the uses; the values at the end of each block.
    fn run(
        &self,
        func: &mut Function,
        graph: &CfgAnalysis,
        block: Block,
        joins: &ssa::PhiPlacement,
        count: usize,
    ) -> SecondaryMap<Block, Vec<Option<Value>>> {
        let mut out: SecondaryMap<Block, Vec<Option<Value>>> = SecondaryMap::new();
        // In reverse postorder a block's immediate dominator comes before it.
        for &at in &graph.cfg.rpo {
            let mut values = graph.dom.idom(at).map_or(vec![None; count], |d| out[d].clone());
            for &(variable, param) in &joins[at] {
                values[variable as usize] = Some(param);
            }
            if at != block {
                self.rewrite(func, at, &values);
            }
            for (value, own) in values.iter_mut().zip(&self.here[at]) {
                *value = own.or(*value);
            }
            out[at] = values;
        }
        out
    }

    fn rewrite(&self, func: &mut Function, at: Block, values: &[Option<Value>]) {
        let defines = &self.here[at];
        for i in 0..func.blocks[at].insts.len() {
            let inst = func.blocks[at].insts[i];
            let data = &mut func.insts[inst];
            let uses = data.args.iter_mut().chain(data.targets.iter_mut().flat_map(|t| t.args.iter_mut()));
            for value in uses {
                // Copies on the new way already name the values that hold there.
                if let Some(n) = self.number[*value]
                    && defines.is_empty()
                    && let Some(new) = values[n as usize]
                {
                    *value = new;
                }
            }
        }
    }
}
