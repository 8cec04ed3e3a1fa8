//! Bounds of an index, from its definition and from the branches above a place.
//!
//! Only what stack partitioning needs: unsigned bounds of values that are added to an address.

use millstream_ir::{AluOp, Block, Cfg, Cond, DomTree, Function, Op, Value, Width};

const DEPTH: u32 = 6;
const DOMINATORS: u32 = 64;

/// Least and greatest value, signed, of a 64-bit word.
pub(crate) type SignedRange = (i64, i64);

/// Bounds of `value` at the start of `block`; `None` where nothing is known.
pub(crate) fn bounds(
    func: &Function,
    cfg: &Cfg,
    dom: &DomTree,
    value: Value,
    block: Block,
) -> Option<SignedRange> {
    let own = intrinsic(func, value, DEPTH);
    let met = dominating(func, cfg, dom, value, block);
    let through = through_op(func, value, &mut |v| bounds_shallow(func, cfg, dom, v, block));
    [own, met, through].into_iter().flatten().reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))
}

fn bounds_shallow(
    func: &Function,
    cfg: &Cfg,
    dom: &DomTree,
    value: Value,
    block: Block,
) -> Option<SignedRange> {
    let own = intrinsic(func, value, DEPTH);
    let met = dominating(func, cfg, dom, value, block);
    let inner = through_op(func, value, &mut |v| {
        [intrinsic(func, v, DEPTH), dominating(func, cfg, dom, v, block)].into_iter().flatten().reduce(meet)
    });
    [own, met, inner].into_iter().flatten().reduce(meet)
}

fn meet(a: SignedRange, b: SignedRange) -> SignedRange {
    (a.0.max(b.0), a.1.min(b.1))
}

fn intrinsic(func: &Function, value: Value, depth: u32) -> Option<SignedRange> {
    let by_type = func.types[value].int_bits().filter(|&b| b < 64).map(|b| (0, (1i64 << b) - 1));
    if depth == 0 {
        return by_type;
    }
    let by_op = through_op(func, value, &mut |v| intrinsic(func, v, depth - 1));
    [by_type, by_op].into_iter().flatten().reduce(meet)
}

/// Bounds that follow from those of the operands.
fn through_op(
    func: &Function,
    value: Value,
    of: &mut dyn FnMut(Value) -> Option<SignedRange>,
) -> Option<SignedRange> {
    let inst = func.def_inst(value)?;
    let data = &func.insts[inst];
    match data.op {
        Op::Const { value } => Some((value, value)),
        Op::Load { size, sext: false, .. } if size.bits() < 64 => Some((0, (1i64 << size.bits()) - 1)),
        Op::Zext {} => match of(data.args[0]) {
            Some((lo, hi)) if lo >= 0 && hi <= i64::from(u32::MAX) => Some((lo, hi)),
            _ => Some((0, i64::from(u32::MAX))),
        },
        Op::Alu { op, width } => {
            let wide = alu_bounds(op, (data.args[0], data.args[1]), func, of);
            match width {
                Width::W64 => wide,
                // A 32-bit result equals the 64-bit one where neither it nor the operands leave 32 bits.
                Width::W32 => wide
                    .filter(|b| b.0 >= 0 && b.1 <= i64::from(u32::MAX))
                    .filter(|_| data.args.iter().all(|&a| op == AluOp::And || fits32(of(a))))
                    .or(Some((0, i64::from(u32::MAX)))),
            }
        }
        Op::Select {} => {
            let (a, b) = (of(data.args[1])?, of(data.args[2])?);
            Some((a.0.min(b.0), a.1.max(b.1)))
        }
        _ => None,
    }
}

fn fits32(bounds: Option<SignedRange>) -> bool {
    bounds.is_some_and(|b| b.0 >= 0 && b.1 <= i64::from(u32::MAX))
}

fn alu_bounds(
    op: AluOp,
    (x, y): (Value, Value),
    func: &Function,
    of: &mut dyn FnMut(Value) -> Option<SignedRange>,
) -> Option<SignedRange> {
    let constant = func.as_const(y);
    match op {
        AluOp::And => {
            let masks = [func.as_const(x), constant].into_iter().flatten();
            masks.filter(|m| *m >= 0).min().map(|m| (0, m))
        }
        AluOp::Add => {
            let (a, b) = (of(x)?, of(y)?);
            Some((a.0.checked_add(b.0)?, a.1.checked_add(b.1)?))
        }
        AluOp::Sub => {
            let (a, b) = (of(x)?, of(y)?);
            Some((a.0.checked_sub(b.1)?, a.1.checked_sub(b.0)?))
        }
        AluOp::Lsh => {
            let c = constant.filter(|c| (0..32).contains(c))?;
            let a = of(x).filter(|a| a.0 >= 0 && a.1 < 1 << 31)?;
            Some((a.0 << c, a.1 << c))
        }
        AluOp::Rsh => {
            let c = constant.filter(|c| (0..64).contains(c))?;
            match of(x) {
                Some(a) if a.0 >= 0 => Some((a.0 >> c, a.1 >> c)),
                _ if c > 0 => Some((0, (u64::MAX >> c) as i64)),
                _ => None,
            }
        }
        AluOp::Mul => {
            let (a, b) = (of(x)?, of(y)?);
            (a.0 >= 0 && b.0 >= 0).then_some(())?;
            Some((a.0.checked_mul(b.0)?, a.1.checked_mul(b.1)?))
        }
        AluOp::Mod => constant.filter(|c| *c > 0).map(|c| (0, c - 1)),
        _ => None,
    }
}

/// Bounds that hold because a branch above compared the value with a constant.
fn dominating(func: &Function, cfg: &Cfg, dom: &DomTree, value: Value, block: Block) -> Option<SignedRange> {
    let mut met: Option<SignedRange> = None;
    let mut at = block;
    for _ in 0..DOMINATORS {
        if let [pred] = cfg.preds[at][..]
            && let Some(b) = edge(func, pred, at, value)
        {
            met = Some(met.map_or(b, |m| meet(m, b)));
        }
        match dom.idom(at) {
            Some(up) => at = up,
            None => break,
        }
    }
    met
}

fn edge(func: &Function, pred: Block, to: Block, value: Value) -> Option<SignedRange> {
    let term = func.terminator(pred)?;
    let data = &func.insts[term];
    let Op::Branch { cond, width } = data.op else { return None };
    if data.targets[0].block == data.targets[1].block {
        return None;
    }
    let (cond, constant) = match (func.as_const(data.args[0]), func.as_const(data.args[1])) {
        (_, Some(c)) if data.args[0] == value => (cond, c),
        (Some(c), _) if data.args[1] == value => (cond.swapped(), c),
        _ => return None,
    };
    let narrow = func.types[value].int_bits().is_some_and(|b| b <= 32);
    if width == Width::W32 && !narrow {
        return None;
    }
    let cond = if data.targets[0].block == to { cond } else { cond.negated()? };
    let c = if width == Width::W32 { i64::from(constant as u32) } else { constant };
    match cond {
        Cond::Eq => Some((c, c)),
        Cond::Lt if c > 0 => Some((0, c - 1)),
        Cond::Le if c >= 0 => Some((0, c)),
        Cond::Sgt if width == Width::W64 => Some((c.checked_add(1)?, i64::MAX)),
        Cond::Sge if width == Width::W64 => Some((c, i64::MAX)),
        Cond::Slt if width == Width::W64 => Some((i64::MIN, c.checked_sub(1)?)),
        Cond::Sle if width == Width::W64 => Some((i64::MIN, c)),
        _ => None,
    }
}
