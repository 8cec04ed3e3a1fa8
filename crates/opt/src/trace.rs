//! Origins of the instructions of a result, and the passes that touched them.
//!
//! Every instruction of the original is given a source line of its own: its function and slot. The compiler
//! carries source lines through all its passes, so the result gives the origin of each instruction, also
//! after inlining. Meanwhile a recorder compares each function before and after each pass, and notes the
//! lines of the instructions that were added, removed or changed.
//!
//! Invariant: the result is the same as from [`optimize`] alone. Where lines of its own make the compiler
//! decide otherwise, there are no origins.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millstream_btf::StrOff;
use millstream_ir::{Function, Inst, Module, Op};
use millstream_object::{LineInfo, Object};
use millstream_passes::DumpHook;

use crate::{OptError, OptimizationResult, OptimizeOptions, optimize, optimize_marked};

/// An instruction of the original.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InsnOrigin {
    /// Its function, by its number in the object.
    pub func: u32,
    /// Its slot in the function.
    pub slot: u32,
}

/// A result with its origins.
#[derive(Debug)]
pub struct TracedObject {
    /// The result.
    pub optimized: OptimizationResult,
    /// For each function, what each slot of it was made of, as far as known; nothing if that cannot be told.
    pub origins: Option<Vec<Vec<Option<InsnOrigin>>>>,
    /// The passes that added, removed or changed something on behalf of an instruction of the original.
    pub touched: BTreeMap<InsnOrigin, BTreeSet<&'static str>>,
}

/// Optimizes, and returns the origin of each instruction.
///
/// # Errors
/// As [`optimize`].
pub fn trace(object: &Object, options: &OptimizeOptions) -> Result<TracedObject, OptError> {
    let optimized = optimize(object, options)?;
    let recorded = OptimizeOptions { record: true, ..options.clone() };
    let mut made = optimize_marked(&mark(object), Some(object), &recorded)?;
    let code =
        |o: &Object| o.functions.iter().map(|f| (f.insns.clone(), f.relocs.clone())).collect::<Vec<_>>();
    if code(&made.object) != code(&optimized.object) {
        return Ok(TracedObject { optimized, origins: None, touched: BTreeMap::new() });
    }
    let origins = unmark(object, &mut made.object);
    let mut touched = BTreeMap::<InsnOrigin, BTreeSet<&'static str>>::new();
    for (line, passes) in made.touched {
        touched.entry(origin(&line)).or_default().extend(passes);
    }
    Ok(TracedObject { optimized, origins: Some(origins), touched })
}

/// The object with a source line for each instruction, which holds its function and slot, in place of its
/// own.
pub fn mark(object: &Object) -> Object {
    let mut object = object.clone();
    for (func, f) in object.functions.iter_mut().enumerate() {
        let (file, text) = (StrOff(0), StrOff(0));
        let line = |insn: u32| LineInfo { insn, file, text, line: insn + 1, column: func as u32 + 1 };
        f.line_info = (0..f.insns.len() as u32).map(line).collect();
    }
    object
}

/// Origins of each slot of each function, in an object that was made of a marked one; it gets the lines of
/// the original.
pub fn unmark(original: &Object, made: &mut Object) -> Vec<Vec<Option<InsnOrigin>>> {
    let mut all = Vec::with_capacity(made.functions.len());
    for f in &mut made.functions {
        let origins = origins(&f.line_info, f.insns.len());
        let line = |(slot, o): (usize, &Option<InsnOrigin>)| {
            let lines = &original.functions.get(o.as_ref()?.func as usize)?.line_info;
            let before = lines.partition_point(|l| l.insn <= o.as_ref().map_or(0, |o| o.slot));
            Some(LineInfo { insn: slot as u32, ..*lines.get(before.checked_sub(1)?)? })
        };
        f.line_info = origins.iter().enumerate().filter_map(line).collect();
        f.line_info.dedup_by_key(|l| (l.file, l.text, l.line, l.column));
        all.push(origins);
    }
    all
}

fn origin(line: &LineInfo) -> InsnOrigin {
    InsnOrigin { func: line.column.saturating_sub(1), slot: line.line.saturating_sub(1) }
}

fn origins(lines: &[LineInfo], slots: usize) -> Vec<Option<InsnOrigin>> {
    let mut lines = lines.iter().peekable();
    let mut last = None;
    let of = |slot: usize| {
        while let Some(line) = lines.next_if(|l| l.insn as usize <= slot) {
            last = Some(origin(line));
        }
        last
    };
    (0..slots).map(of).collect()
}

/// Notes the lines that passes touch. The functions are told apart by name.
#[derive(Clone, Default)]
pub(crate) struct PassRecorder(Rc<RefCell<PassRecord>>);

#[derive(Default)]
struct PassRecord {
    /// Functions as they were last seen; [`None`] for names that several have.
    last: BTreeMap<String, Option<Function>>,
    /// Passes by line number.
    touched: BTreeMap<u32, BTreeSet<&'static str>>,
}

impl PassRecorder {
    /// Notes the functions from which the next passes start.
    pub(crate) fn begin(&self, module: &Module) {
        let last = &mut self.0.borrow_mut().last;
        last.clear();
        for f in module.funcs.values() {
            let entry = last.entry(f.name.clone());
            entry.and_modify(|f| *f = None).or_insert_with(|| Some(f.clone()));
        }
    }

    /// To be called after each pass.
    pub(crate) fn hook(&self) -> DumpHook {
        let record = Rc::clone(&self.0);
        Box::new(move |pass, now| {
            let PassRecord { last, touched } = &mut *record.borrow_mut();
            let Some(Some(before)) = last.get_mut(&now.name) else { return };
            for loc in differences(before, now) {
                touched.entry(loc).or_default().insert(pass);
            }
            before.clone_from(now);
        })
    }

    /// Returns the records, with the lines themselves.
    pub(crate) fn finish(self, lines: &[LineInfo]) -> Vec<(LineInfo, BTreeSet<&'static str>)> {
        let touched = std::mem::take(&mut self.0.borrow_mut().touched);
        touched.into_iter().filter_map(|(loc, passes)| Some((*lines.get(loc as usize)?, passes))).collect()
    }
}

/// Lines of instructions that only one of two versions of a function has, or that do something else.
/// Constants do not count: they come and go with what uses them.
fn differences(before: &Function, now: &Function) -> BTreeSet<u32> {
    let present = |f: &Function| -> BTreeSet<Inst> { f.insts_in_order().map(|(_, i)| i).collect() };
    let (was, is) = (present(before), present(now));
    let constant = |f: &Function, i: Inst| matches!(f.insts[i].op, Op::Const { .. });
    let gone = was.difference(&is).filter(|i| !constant(before, **i)).map(|i| before.insts[*i].loc);
    let new = is.difference(&was).filter(|i| !constant(now, **i)).map(|i| now.insts[*i].loc);
    let changed = was.intersection(&is).filter(|i| {
        let (a, b) = (&before.insts[**i], &now.insts[**i]);
        let consts = |f: &Function| f.insts[**i].args.iter().map(|v| f.as_const(*v)).collect::<Vec<_>>();
        a.op != b.op || a.targets.len() != b.targets.len() || consts(before) != consts(now)
    });
    gone.chain(new).chain(changed.map(|i| now.insts[*i].loc)).filter(|loc| *loc != u32::MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_isa::asm::assemble;
    use millstream_isa::{RawInsn, encode_all};
    use millstream_object::RawInput;

    fn program(source: &str) -> Object {
        let insns: Vec<u8> =
            encode_all(&assemble(source).unwrap()).into_iter().flat_map(RawInsn::to_bytes).collect();
        let files = RawInput { insns: &insns, ..RawInput::default() };
        Object::parse_raw("x_xdp.insns", files, None).unwrap()
    }

    #[test]
    fn an_instruction_is_of_the_one_that_it_was_made_of() {
        let object = program("r6 = r1\nr2 = *(u32 *)(r6 + 12)\nr2 += 0\nr0 = r2\nr0 &= 3\nexit");
        let traced = trace(&object, &OptimizeOptions::default()).unwrap();
        let slots: Vec<_> = traced.origins.unwrap()[0].iter().map(|o| o.unwrap().slot).collect();
        assert_eq!(slots, [1, 4, 5]);
        let addition = InsnOrigin { func: 0, slot: 2 };
        assert_eq!(traced.touched[&addition], BTreeSet::from(["simplify"]));
        let untouched = InsnOrigin { func: 0, slot: 4 };
        assert!(!traced.touched.contains_key(&untouched), "{:?}", traced.touched);
    }

    #[test]
    fn our_own_programs_can_be_traced() {
        let object = Object::parse("router.o", millstream_programs::ROUTER.object).unwrap();
        let traced = trace(&object, &OptimizeOptions::default()).unwrap();
        let origins = traced.origins.expect("its lines do not matter to the compiler");
        let known = origins.iter().flatten().filter(|o| o.is_some()).count();
        assert_eq!(known, traced.optimized.object.functions.iter().map(|f| f.insns.len()).sum::<usize>());
        assert!(!traced.touched.is_empty());
    }
}
