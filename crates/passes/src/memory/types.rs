//! Types that follow from the definitions of values: those of sums, choices and block parameters whose types
//! were unknown when they were made.
//!
//! The least types that agree with all definitions, found from below: a value that comes around a loop has
//! the type that it had before the loop as long as nothing speaks against it.

use cranelift_entity::SecondaryMap;
use millstream_ir::context::field;
use millstream_ir::{AluOp, Block, Cfg, Function, Inst, Linkage, Op, Prov, Size, Type, Value, Width};

use crate::manager::{FuncPass, PassContext};

const NAME: &str = "types";

/// The pass.
pub(crate) struct RefineTypes;

impl FuncPass for RefineTypes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "find the types of values from what they are made of"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        let found = infer(func, &cfg);
        if found.is_empty() || !cx.fuel(NAME) {
            return false;
        }
        retype(func, found);
        true
    }
}

/// Retypes values of [`Type::Any`] for which a better type can be found.
pub(crate) fn refine_types(func: &mut Function, cfg: &Cfg) {
    let found = infer(func, cfg);
    retype(func, found);
}

fn retype(func: &mut Function, found: Vec<(Value, Type)>) {
    for (value, ty) in found {
        func.types[value] = ty;
    }
}

/// Better types for values that are [`Type::Any`].
fn infer(func: &Function, cfg: &Cfg) -> Vec<(Value, Type)> {
    let mut state =
        TypeInference { func, known: SecondaryMap::with_capacity(func.defs.len()), open: Vec::new() };
    state.start(cfg);
    if state.open.is_empty() {
        return Vec::new();
    }
    while cfg.rpo.iter().fold(false, |changed, &block| state.block(block) | changed) {}
    let better = |&value: &Value| state.known[value].filter(|&ty| ty != Type::Any).map(|ty| (value, ty));
    state.open.iter().filter_map(better).collect()
}

struct TypeInference<'a> {
    func: &'a Function,
    // `None`: no definition has been seen yet.
    known: SecondaryMap<Value, Option<Type>>,
    // Values whose type is to be found.
    open: Vec<Value>,
}

impl TypeInference<'_> {
    fn start(&mut self, cfg: &Cfg) {
        for &block in &cfg.rpo {
            for &param in &self.func.blocks[block].params {
                self.declare(param, block != self.func.entry());
            }
            for &inst in &self.func.blocks[block].insts {
                if let Some(result) = self.func.result(inst) {
                    self.declare(result, self.follows(inst));
                }
            }
        }
    }

    fn declare(&mut self, value: Value, follows: bool) {
        if follows && self.func.types[value] == Type::Any {
            self.open.push(value);
        } else {
            self.known[value] = Some(self.func.types[value]);
        }
    }

    /// Returns true if the type of the result follows from those of the operands.
    fn follows(&self, inst: Inst) -> bool {
        match self.func.insts[inst].op {
            Op::Alu { op: AluOp::Add | AluOp::Sub, width: Width::W64 } | Op::Select {} => true,
            Op::Load { flags, .. } => flags.core.is_none(),
            _ => false,
        }
    }

    fn block(&mut self, block: Block) -> bool {
        let func = self.func;
        let mut changed = false;
        for &inst in &func.blocks[block].insts {
            let open = func.result(inst).filter(|&r| func.types[r] == Type::Any && self.follows(inst));
            if let (Some(result), Some(new)) = (open, self.result(inst)) {
                changed |= self.join(result, new);
            }
        }
        for target in func.targets(block) {
            for (&arg, &param) in target.args.iter().zip(&func.blocks[target.block].params) {
                if matches!(func.def_op(arg), Some(Op::Undef {})) {
                    continue;
                }
                if let (Type::Any, Some(new)) = (func.types[param], self.known[arg]) {
                    changed |= self.join(param, new);
                }
            }
        }
        changed
    }

    fn join(&mut self, value: Value, new: Type) -> bool {
        let joined = self.known[value].map_or(new, |old| old.join(new));
        let changed = self.known[value] != Some(joined);
        self.known[value] = Some(joined);
        changed
    }

    /// The type of a result, as far as those of the operands are known.
    fn result(&self, inst: Inst) -> Option<Type> {
        let data = &self.func.insts[inst];
        let ty = |i: usize| self.known[data.args[i]];
        Some(match data.op {
            Op::Alu { op: AluOp::Add, width: Width::W64 } => match (ty(0)?, ty(1)?) {
                (pointer @ Type::Ptr(_), offset) | (offset, pointer @ Type::Ptr(_)) if offset.is_int() => {
                    pointer
                }
                (a, b) if a.is_int() && b.is_int() => Type::I64,
                _ => Type::Any,
            },
            Op::Alu { op: AluOp::Sub, width: Width::W64 } => match (ty(0)?, ty(1)?) {
                (pointer @ Type::Ptr(_), offset) if offset.is_int() => pointer,
                (Type::Ptr(_), Type::Ptr(_)) => Type::I64,
                (a, b) if a.is_int() && b.is_int() => Type::I64,
                _ => Type::Any,
            },
            Op::Select {} => match (ty(1), ty(2)) {
                (Some(a), Some(b)) => a.join(b),
                (a, b) => a.or(b)?,
            },
            Op::Load { size, sext, offset, .. } => self.loaded(ty(0)?, size, sext, offset),
            _ => Type::Any,
        })
    }

    /// Type of the result of a load. Packets hold only numbers; elsewhere, narrow loads give numbers, except
    /// from the context.
    fn loaded(&self, base: Type, size: Size, sext: bool, offset: i32) -> Type {
        let number = if sext { Type::I64 } else { Type::int(size.bits()) };
        match (base, &self.func.linkage) {
            // A context that came out of memory: its packet pointers can be told only now.
            (Type::Ptr(Prov::Ctx), Linkage::Program { prog_type }) => match field(*prog_type, offset, size) {
                Some(prov) => Type::Ptr(prov),
                None if size == Size::Dw => Type::Any,
                None => number,
            },
            (Type::Ptr(Prov::Packet | Prov::PacketMeta), _) => number,
            (Type::Ptr(Prov::MapValue(_)), _) if size != Size::Dw => number,
            _ => Type::Any,
        }
    }
}
