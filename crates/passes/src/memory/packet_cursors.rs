//! Places in the packet that are carried along as offsets (`nh_off`) become addresses.
//!
//! Numbers that are only added to the packet's beginning and to constants, and on each path come from
//! constants, are that address with as many bytes more: the addition is made where the constant comes from,
//! once, instead of wherever the offset is used. On each path the verifier knows the same constant distance
//! as before; a number that is not constant on some path stays one, since a variable part is bounded by
//! checks of the sum.

use std::collections::BTreeMap;

use millstream_ir::{AluOp, Block, Cfg, DomTree, Function, Inst, Op, Prov, Type, Value, ValueDef, Width};

use crate::manager::{FuncPass, PassContext};
use crate::rewrite::ValueSubst;

const NAME: &str = "cursors";

/// The verifier's bound of distances in packets.
const FARTHEST: i64 = 0xffff;
/// Numbers that go together, at most.
const MOST: usize = 64;

/// Makes addresses of offsets.
pub(crate) struct PacketCursors;

impl FuncPass for PacketCursors {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "carry addresses in the packet along instead of offsets"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let mut any = false;
        let mut done: Vec<Value> = Vec::new();
        // A rewritten sum is no sum any more, so each finds its web once.
        while let Some(web) = next(func, &mut done) {
            if !cx.fuel(NAME) {
                continue;
            }
            web.rewrite(func);
            any = true;
        }
        any
    }
}

/// The next web that pays.
fn next(func: &Function, done: &mut Vec<Value>) -> Option<OffsetWeb> {
    let cfg = Cfg::new(func);
    let dom = DomTree::new(func, &cfg);
    let uses = DefUseChains::new(func, &cfg);
    for &block in &cfg.rpo {
        for &inst in &func.blocks[block].insts {
            let Some((base, offset)) = sum(func, inst).filter(|(_, offset)| !done.contains(offset)) else {
                continue;
            };
            done.push(offset);
            let web = OffsetWeb::new(func, &uses, base, offset).filter(|w| w.pays(func, &uses, &dom));
            if let Some(web) = web {
                done.extend(web.members.keys());
                return Some(web);
            }
        }
    }
    None
}

/// The packet's beginning and the number that is added to it.
fn sum(func: &Function, inst: Inst) -> Option<(Value, Value)> {
    let data = &func.insts[inst];
    let Op::Alu { op: AluOp::Add, width: Width::W64 } = data.op else { return None };
    let packet = |v: Value| func.types[v] == Type::Ptr(Prov::Packet);
    let (a, b) = (data.args[0], data.args[1]);
    let (base, offset) = if packet(a) { (a, b) } else { (b, a) };
    (packet(base) && !packet(offset) && func.as_const(offset).is_none()).then_some((base, offset))
}

/// Uses of values, and the arguments that parameters receive.
struct DefUseChains {
    insts: BTreeMap<Value, Vec<Inst>>,
    /// Block of each instruction.
    blocks: BTreeMap<Inst, Block>,
    /// The edges into each block: terminator and number of the target.
    edges: BTreeMap<Block, Vec<(Inst, usize)>>,
}

impl DefUseChains {
    fn new(func: &Function, cfg: &Cfg) -> DefUseChains {
        let mut uses =
            DefUseChains { insts: BTreeMap::new(), blocks: BTreeMap::new(), edges: BTreeMap::new() };
        for &block in &cfg.rpo {
            for &inst in &func.blocks[block].insts {
                uses.blocks.insert(inst, block);
                func.for_each_use(inst, |v| {
                    let list = uses.insts.entry(v).or_default();
                    if list.last() != Some(&inst) {
                        list.push(inst);
                    }
                });
                for (n, target) in func.insts[inst].targets.iter().enumerate() {
                    uses.edges.entry(target.block).or_default().push((inst, n));
                }
            }
        }
        uses
    }

    fn of(&self, value: Value) -> &[Inst] {
        self.insts.get(&value).map_or(&[], Vec::as_slice)
    }

    fn edges(&self, block: Block) -> &[(Inst, usize)] {
        self.edges.get(&block).map_or(&[], Vec::as_slice)
    }
}

/// Definition of a number in a web.
#[derive(Clone, Copy)]
enum WebMember {
    /// Another one and a constant.
    More(Inst, Value, i64),
    /// Another one, in more bits.
    Same(Value),
    /// The arguments of the edges.
    Param(Block, usize),
}

/// Numbers that become addresses together.
struct OffsetWeb {
    base: Value,
    members: BTreeMap<Value, WebMember>,
    /// Additions to the base.
    sums: Vec<(Inst, Value)>,
}

impl OffsetWeb {
    /// All that hangs together with an offset, if all of it is made of constants and used for nothing else.
    fn new(func: &Function, uses: &DefUseChains, base: Value, offset: Value) -> Option<OffsetWeb> {
        let mut web = OffsetWeb { base, members: BTreeMap::new(), sums: Vec::new() };
        let mut todo = vec![offset];
        while let Some(value) = todo.pop() {
            if web.members.contains_key(&value) || func.as_const(value).is_some() {
                continue;
            }
            let member = member(func, value)?;
            web.members.insert(value, member);
            match member {
                WebMember::More(_, x, _) | WebMember::Same(x) => todo.push(x),
                WebMember::Param(block, n) => {
                    let args = uses.edges(block).iter();
                    todo.extend(args.map(|&(term, target)| func.insts[term].targets[target].args[n]));
                }
            }
            for &user in uses.of(value) {
                web.user(func, user, value, &mut todo)?;
            }
            (web.members.len() <= MOST).then_some(())?;
        }
        let mut known = BTreeMap::new();
        let near = web.members.keys().all(|&m| {
            let range = web.range(func, uses, m, &mut known);
            range.is_some_and(|(low, high)| low >= 0 && high <= FARTHEST)
        });
        near.then_some(web)
    }

    /// Takes a use in: a sum, a number made of it, an argument.
    fn user(&mut self, func: &Function, user: Inst, value: Value, todo: &mut Vec<Value>) -> Option<()> {
        let data = &func.insts[user];
        if let Some((base, offset)) = sum(func, user) {
            (base == self.base && offset == value).then(|| self.sums.push((user, value)))
        } else if let Some(result) = func.result(user) {
            member(func, result)?;
            todo.push(result);
            Some(())
        } else {
            // A terminator decides nothing by it.
            (!data.targets.is_empty() && !data.args.contains(&value)).then_some(())?;
            for target in &data.targets {
                let params = &func.blocks[target.block].params;
                let given = target.args.iter().zip(params).filter(|(a, _)| **a == value);
                todo.extend(given.map(|(_, p)| *p));
            }
            Some(())
        }
    }

    /// The least and the greatest value; none if it goes round.
    fn range(
        &self,
        func: &Function,
        uses: &DefUseChains,
        value: Value,
        known: &mut BTreeMap<Value, Option<(i64, i64)>>,
    ) -> Option<(i64, i64)> {
        if let Some(k) = func.as_const(value) {
            return Some((k, k));
        }
        if let Some(range) = known.get(&value) {
            return *range;
        }
        known.insert(value, None);
        let range = match *self.members.get(&value)? {
            WebMember::Same(x) => self.range(func, uses, x, known)?,
            WebMember::More(_, x, k) => {
                let (low, high) = self.range(func, uses, x, known)?;
                (low.checked_add(k)?, high.checked_add(k)?)
            }
            WebMember::Param(block, n) => {
                let mut all: Option<(i64, i64)> = None;
                for &(term, target) in uses.edges(block) {
                    let (low, high) =
                        self.range(func, uses, func.insts[term].targets[target].args[n], known)?;
                    all = Some(all.map_or((low, high), |a| (a.0.min(low), a.1.max(high))));
                }
                all?
            }
        };
        known.insert(value, Some(range));
        Some(range)
    }

    /// The edges on which a constant comes into the web.
    fn leaves(&self, func: &Function, uses: &DefUseChains) -> Vec<(Inst, usize, usize)> {
        let mut out = Vec::new();
        for member in self.members.values() {
            let WebMember::Param(block, n) = *member else { continue };
            let constant = |&(term, target): &(Inst, usize)| {
                func.as_const(func.insts[term].targets[target].args[n]).map(|_| (term, target, n))
            };
            out.extend(uses.edges(block).iter().filter_map(constant));
        }
        out
    }

    /// Returns true if there are more sums than additions that come in their place, and the base is available
    /// at these.
    fn pays(&self, func: &Function, uses: &DefUseChains, dom: &DomTree) -> bool {
        let leaves = self.leaves(func, uses);
        let made = match func.defs[self.base] {
            ValueDef::Inst(inst) => uses.blocks.get(&inst).copied(),
            ValueDef::Param(block, _) => Some(block),
        };
        let there =
            |term: &Inst| made.zip(uses.blocks.get(term)).is_some_and(|(made, &at)| dom.dominates(made, at));
        self.sums.len() > leaves.len() && leaves.iter().all(|(term, _, _)| there(term))
    }

    /// Makes the addresses, and puts them in the place of the sums.
    fn rewrite(&self, func: &mut Function) {
        let ty = func.types[self.base];
        let mut now: BTreeMap<Value, Value> = BTreeMap::new();
        let mut params: Vec<(Block, usize)> = Vec::new();
        for (&value, member) in &self.members {
            if let WebMember::Param(block, n) = *member {
                params.push((block, n));
                now.insert(value, func.add_param(block, ty));
            }
        }
        let mut made: Vec<Value> = self.members.keys().copied().collect();
        // A number made from another one comes after it; chains are short.
        while !made.is_empty() {
            let before = made.len();
            made.retain(|value| !self.make(func, *value, &mut now));
            if made.len() == before {
                break;
            }
        }
        for n in 0..func.layout.len() {
            let Some(term) = func.terminator(func.layout[n]) else { continue };
            for target in 0..func.insts[term].targets.len() {
                self.pass(func, func.layout[n], (term, target), &params, &now);
            }
        }
        let mut subst = ValueSubst::default();
        for (inst, offset) in &self.sums {
            if let (Some(sum), Some(&address)) = (func.result(*inst), now.get(offset)) {
                subst.insert(sum, address);
            }
        }
        subst.apply(func);
    }

    /// Makes the address that a number becomes, if that it is made of has become one.
    fn make(&self, func: &mut Function, value: Value, now: &mut BTreeMap<Value, Value>) -> bool {
        let address = match self.members[&value] {
            WebMember::Param(..) => return true,
            WebMember::Same(x) => now.get(&x).copied(),
            WebMember::More(inst, x, k) => now.get(&x).copied().and_then(|x| {
                let (block, at) = place(func, inst)?;
                Some(plus(func, block, at, x, k))
            }),
        };
        address.map(|a| now.insert(value, a)).is_some()
    }

    /// Passes the new parameters of a target their arguments.
    fn pass(
        &self,
        func: &mut Function,
        block: Block,
        (term, target): (Inst, usize),
        params: &[(Block, usize)],
        now: &BTreeMap<Value, Value>,
    ) {
        let to = func.insts[term].targets[target].block;
        for &(_, n) in params.iter().filter(|p| p.0 == to) {
            let old = func.insts[term].targets[target].args[n];
            let new = match (func.as_const(old), now.get(&old)) {
                (Some(k), _) => {
                    let end = func.blocks[block].insts.len() - 1;
                    plus(func, block, end, self.base, k)
                }
                (None, Some(&address)) => address,
                // Nothing leads there.
                (None, None) => self.base,
            };
            func.insts[term].targets[target].args.push(new);
        }
    }
}

/// Definition of a value, if it may be in a web.
fn member(func: &Function, value: Value) -> Option<WebMember> {
    let inst = match func.defs[value] {
        ValueDef::Param(block, n) => {
            return (block != func.entry()).then_some(WebMember::Param(block, usize::from(n)));
        }
        ValueDef::Inst(inst) => inst,
    };
    let data = &func.insts[inst];
    let numbers = data.args.iter().all(|&v| !matches!(func.types[v], Type::Ptr(_)));
    match data.op {
        Op::Alu { op: AluOp::Add, .. } if numbers => {
            let (a, b) = (data.args[0], data.args[1]);
            match (func.as_const(a), func.as_const(b)) {
                (None, Some(k)) => Some(WebMember::More(inst, a, k)),
                (Some(k), None) => Some(WebMember::More(inst, b, k)),
                _ => None,
            }
        }
        Op::Zext {} if numbers => Some(WebMember::Same(data.args[0])),
        _ => None,
    }
}

/// The block of an instruction, and the place behind it.
fn place(func: &Function, inst: Inst) -> Option<(Block, usize)> {
    func.layout
        .iter()
        .find_map(|&b| func.blocks[b].insts.iter().position(|&i| i == inst).map(|at| (b, at + 1)))
}

/// An address so many bytes farther.
fn plus(func: &mut Function, block: Block, at: usize, base: Value, by: i64) -> Value {
    if by == 0 {
        return base;
    }
    let ty = func.types[base];
    let loc = func.blocks[block].insts.get(at.saturating_sub(1)).map_or(u32::MAX, |i| func.insts[*i].loc);
    let mut cursor = func.at(block, at);
    cursor.loc = loc;
    let by = cursor.iconst(by);
    cursor.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, [base, by], ty)
}
