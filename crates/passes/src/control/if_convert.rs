//! If-conversion: a branch that only chooses one of two constants by one bit becomes arithmetic on that bit.
//!
//! BPF has no select, so the choice must cost fewer instructions than branch and moves do. The facts that the
//! verifier learns on separate paths must not be missed: nothing but bit operations may look at the tested
//! value, and the chosen one may only be stored, returned, combined or tested, never become part of an
//! address or a size. There is no conversion of clamps, minima and maxima: without the branch their bounds
//! could not be seen.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, BlockCall, Cond, Function, Inst, Op, Type, Value, Width};

use crate::manager::{FuncPass, PassContext};
use crate::rewrite::{edge_counts, make_jump};
use crate::scalar::remove_unreachable;

const NAME: &str = "if-convert";

/// Instructions that a branch between two constants takes: itself and a move for each.
const BRANCH: u32 = 3;

/// Number of further block parameters through which the chosen value is followed.
const DEPTH: u32 = 3;

/// Replaces branches by arithmetic.
pub(crate) struct IfConvert;

impl FuncPass for IfConvert {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "replace branches that choose a constant by one bit by arithmetic, where that is shorter"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let candidates: Vec<(Block, SelectPattern)> =
            func.layout.iter().filter_map(|&b| Some((b, choice(func, b)?))).collect();
        if candidates.is_empty() {
            return false;
        }
        let users = users(func);
        let edges = edge_counts(func);
        let mut changed = false;
        for (block, choice) in candidates {
            let hidden = !choice.arms.iter().flatten().all(|&arm| edges[arm] == 1);
            let Some(way) = choice.way(func, &users) else { continue };
            if hidden || (cx.target().keep_verifier_facts && !choice.is_harmless(func, &users)) {
                continue;
            }
            if cx.fuel(NAME) {
                apply(func, block, &choice, &way);
                changed = true;
            }
        }
        if changed {
            remove_unreachable(func);
        }
        changed
    }
}

type ValueUsers = SecondaryMap<Value, Vec<Inst>>;

fn users(func: &Function) -> ValueUsers {
    let mut users = ValueUsers::new();
    for (_, inst) in func.insts_in_order() {
        func.for_each_use(inst, |v| users[v].push(inst));
    }
    users
}

/// A branch both of whose sides lead to one block, with arguments that differ in one constant.
struct SelectPattern {
    term: Inst,
    // Blocks that hold nothing but constants and a jump.
    arms: [Option<Block>; 2],
    join: BlockCall,
    // Index of the argument that differs, and its values with the bit set and clear.
    index: usize,
    set: i64,
    clear: i64,
    value: Value,
    bit: u32,
}

fn choice(func: &Function, block: Block) -> Option<SelectPattern> {
    let term = func.terminator(block)?;
    let (value, bit, if_set) = tested_bit(func, term)?;
    let (first, arm0) = lands(func, &func.insts[term].targets[0]);
    let (second, arm1) = lands(func, &func.insts[term].targets[1]);
    if first.block != second.block || first.block == block {
        return None;
    }
    let same =
        |(a, b): (&Value, &Value)| a == b || func.as_const(*a).is_some_and(|c| func.as_const(*b) == Some(c));
    let mut differing = first.args.iter().zip(&second.args).enumerate().filter(|&(_, pair)| !same(pair));
    let (index, (&yes, &no)) = differing.next()?;
    if differing.next().is_some() {
        return None;
    }
    let (yes, no) = (func.as_const(yes)?, func.as_const(no)?);
    let (set, clear) = if if_set { (yes, no) } else { (no, yes) };
    // Constants of an arm go with it: the other arguments must be there without.
    let own = |arm: Option<Block>, v: &Value| {
        arm.is_some_and(|arm| func.def_inst(*v).is_some_and(|inst| func.blocks[arm].insts.contains(&inst)))
    };
    let kept = |call: &BlockCall, arm| !call.args.iter().enumerate().any(|(i, v)| i != index && own(arm, v));
    let join = match (kept(&first, arm0), kept(&second, arm1)) {
        (true, _) => first,
        (_, true) => second,
        _ => return None,
    };
    Some(SelectPattern { term, arms: [arm0, arm1], join, index, set, clear, value, bit })
}

/// Destination of an edge past a block of constants, and that block.
fn lands(func: &Function, call: &BlockCall) -> (BlockCall, Option<Block>) {
    let data = &func.blocks[call.block];
    if let Some((&last, body)) = data.insts.split_last()
        && data.params.is_empty()
        && matches!(func.insts[last].op, Op::Jump {})
        && body.iter().all(|&i| matches!(func.insts[i].op, Op::Const { .. }))
    {
        return (func.insts[last].targets[0].clone(), Some(call.block));
    }
    (call.clone(), None)
}

/// The bit that a branch tests, and whether its first side is taken where it is set.
fn tested_bit(func: &Function, term: Inst) -> Option<(Value, u32, bool)> {
    let data = &func.insts[term];
    let Op::Branch { cond, width } = data.op else { return None };
    let (value, constant) = (data.args[0], func.as_const(data.args[1])?);
    let bits = func.types[value].int_bits()?;
    let mask = if width == Width::W32 { u64::from(constant as u32) } else { constant as u64 };
    let sign = width.bits() - 1;
    match (cond, constant) {
        (Cond::Set, _) if mask.is_power_of_two() => Some((value, mask.trailing_zeros(), true)),
        (Cond::Ne, 0) | (Cond::Eq, 1) if bits == 1 => Some((value, 0, true)),
        (Cond::Eq, 0) | (Cond::Ne, 1) if bits == 1 => Some((value, 0, false)),
        (Cond::Slt, 0) if bits > sign => Some((value, sign, true)),
        (Cond::Sge, 0) | (Cond::Sgt, -1) if bits > sign => Some((value, sign, false)),
        _ => None,
    }
}

/// Operations with constants that turn the tested value into the chosen one.
type AluSequence = Vec<(AluOp, i64)>;

impl SelectPattern {
    /// The shortest way, if it is shorter than the branch.
    fn way(&self, func: &Function, users: &ValueUsers) -> Option<AluSequence> {
        let step = (self.set ^ self.clear) as u64;
        let mut way = AluSequence::new();
        if !step.is_power_of_two() {
            return None;
        }
        let to = step.trailing_zeros();
        match self.bit.cmp(&to) {
            std::cmp::Ordering::Greater => way.push((AluOp::Rsh, i64::from(self.bit - to))),
            std::cmp::Ordering::Less => way.push((AluOp::Lsh, i64::from(to - self.bit))),
            std::cmp::Ordering::Equal => {}
        }
        // The highest bit of a value leaves nothing above it, and the lowest nothing below.
        let bits = func.types[self.value].int_bits()?;
        let alone = (to == 0 && self.bit + 1 >= bits) || (to == 63 && self.bit == 0) || bits == 1;
        if !alone {
            way.push((AluOp::And, step as i64));
        }
        let base = self.clear & !(step as i64);
        if self.set & step as i64 == 0 {
            way.push((AluOp::Xor, self.clear));
        } else if base != 0 {
            way.push((AluOp::Or, base));
        }
        let immediate = way.iter().all(|&(_, c)| c == i64::from(c as i32));
        let lives_on = users[self.value].iter().any(|&user| user != self.term);
        let cost = way.len() as u32 + u32::from(lives_on && !way.is_empty());
        (immediate && cost < BRANCH).then_some(way)
    }

    /// Returns true if the verifier can do without the two paths.
    fn is_harmless(&self, func: &Function, users: &ValueUsers) -> bool {
        let only_bits = users[self.value].iter().all(|&user| {
            let data = &func.insts[user];
            match data.op {
                Op::Branch { cond: Cond::Set, .. } | Op::Alu { op: AluOp::And, .. } => {
                    func.as_const(data.args[1]).is_some()
                }
                _ => user == self.term,
            }
        });
        // The verifier links sums and copies with their operands: facts about one hold for the others.
        let linked = matches!(
            func.def_op(self.value),
            Some(Op::Alu { op: AluOp::Add | AluOp::Sub, .. } | Op::Zext {})
        );
        let param = func.blocks[self.join.block].params[self.index];
        only_bits && !linked && is_plain_data(func, users, param, DEPTH)
    }
}

/// Returns true if a value is never part of an address, a size or another argument of a call.
fn is_plain_data(func: &Function, users: &ValueUsers, value: Value, depth: u32) -> bool {
    depth > 0
        && users[value].iter().all(|&user| {
            let data = &func.insts[user];
            let as_argument = data.args.contains(&value);
            let passed_on = data.targets.iter().all(|target| {
                let params = &func.blocks[target.block].params;
                let fed = target.args.iter().zip(params).filter(|&(&arg, _)| arg == value);
                fed.into_iter().all(|(_, &param)| is_plain_data(func, users, param, depth - 1))
            });
            let harmless = match data.op {
                Op::Return {} | Op::Jump {} => true,
                Op::Branch { cond, .. } => matches!(cond, Cond::Eq | Cond::Ne | Cond::Set),
                Op::Store { .. } => data.args[0] != value,
                Op::Alu { op: AluOp::And | AluOp::Or | AluOp::Xor, .. } => {
                    func.result(user).is_some_and(|result| is_plain_data(func, users, result, depth - 1))
                }
                _ => false,
            };
            passed_on && (harmless || !as_argument)
        })
}

fn apply(func: &mut Function, block: Block, choice: &SelectPattern, way: &AluSequence) {
    let at = func.blocks[block].insts.len() - 1;
    let loc = func.insts[choice.term].loc;
    let mut value = choice.value;
    let mut cursor = func.at(block, at);
    cursor.loc = loc;
    for &(op, constant) in way {
        let constant = cursor.iconst(constant);
        value = cursor.value(Op::Alu { op, width: Width::W64 }, [value, constant], Type::I64);
    }
    let mut target = choice.join.clone();
    target.args[choice.index] = value;
    make_jump(func, choice.term, target);
}
