//! Costs of programs before and after: slots, bytes of machine code, predicted cycles.

use millstream_bpf::cost::{CodeCost, CostModel, FlatProgram};
use millstream_object::{FuncId, LinkedProgram, Object, RelocKind};
use serde::Serialize;

/// The cost of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CostSummary {
    /// Slots, subprograms included.
    pub slots: u32,
    /// Bytes of machine code: as the kernel says, or estimated if it was not asked.
    pub jited: u32,
    /// Predicted cycles of one run, in thousandths; of a result, as if the same traffic went through it as
    /// through the original.
    pub cycles: u64,
}

impl From<CodeCost> for CostSummary {
    fn from(CodeCost { slots, jited, cycles }: CodeCost) -> CostSummary {
        CostSummary { slots, jited, cycles }
    }
}

/// A program's cost before and after, without asking the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramCosts {
    /// Name.
    pub name: String,
    /// Section.
    pub section: String,
    /// The original.
    pub before: CostSummary,
    /// The result.
    pub after: CostSummary,
}

/// The costs of all programs of an object, and of the same programs of an object made of it.
pub fn costs(before: &Object, after: &Object) -> Vec<ProgramCosts> {
    let program = |p: &millstream_object::EntryProgram| {
        let [old, new] = costs_of_both(before, after, p.func);
        ProgramCosts {
            name: p.name.clone(),
            section: p.section.clone(),
            before: old.into(),
            after: new.into(),
        }
    };
    before.programs.iter().map(program).collect()
}

/// The cost of a program with all that it calls; nothing of one that cannot be linked.
pub(crate) fn cost_of(object: &Object, func: FuncId) -> CodeCost {
    whole(object, func).map_or(CodeCost::default(), |whole| whole.cost(CostModel::current(), None))
}

/// The cost of a program that was made of an original: its cycles are the original's, plus or minus the
/// difference under the same traffic.
pub(crate) fn cost_beside(original: &Object, object: &Object, func: FuncId) -> CodeCost {
    costs_of_both(original, object, func)[1]
}

/// The costs of a program and of a program made of it.
pub(crate) fn costs_of_both(original: &Object, object: &Object, func: FuncId) -> [CodeCost; 2] {
    let (Some(old), Some(new)) = (whole(original, func), whole(object, func)) else {
        return [cost_of(original, func), cost_of(object, func)];
    };
    old.compare_costs(&new, CostModel::current())
}

/// The costs of a function by itself and of a function made of it: callees count only as calls.
pub(crate) fn costs_of_function(original: &Object, object: &Object, function: u32) -> Option<[CodeCost; 2]> {
    Some(alone(original, function)?.compare_costs(&alone(object, function)?, CostModel::current()))
}

fn alone(object: &Object, function: u32) -> Option<FlatProgram> {
    let f = &object.functions[function as usize];
    let mut linked =
        LinkedProgram { insns: f.insns.clone(), line_info: f.line_info.clone(), ..LinkedProgram::default() };
    for r in &f.relocs {
        match r.kind {
            // Leads out of the function.
            RelocKind::Call(_) | RelocKind::FuncAddr(_) => linked.insns[r.insn as usize].imm = i32::MIN,
            _ => linked.relocs.push(*r),
        }
    }
    FlatProgram::of_linked(object, &linked).ok()
}

fn whole(object: &Object, func: FuncId) -> Option<FlatProgram> {
    FlatProgram::of_linked(object, &object.link(func).ok()?).ok()
}
