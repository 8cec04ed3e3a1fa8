//! From the IR to LLVM's: text of a whole module, with all functions that a program can reach.
//!
//! The module's entry is `ms_batch(worker, packets, count)`, which runs the program on each packet of a batch
//! and stores its verdict. Programs are `i64 (worker, packet)`; other functions have their signature in the
//! IR, and those whose address is taken have a second form with the five argument registers, which the
//! runtime calls back.
//!
//! Values of pointer type are LLVM pointers, all others 64-bit integers. Metadata (type-based alias analysis)
//! distinguishes accesses to packets, contexts and map values, as the IR's provenance does: a packet does not
//! alias a map value.
//!
//! Code is made for one engine: addresses of maps and of their storage are constants in it. Where one worker
//! owns the maps, atomic operations are plain ones.

mod batch;
mod batch_sorting;
mod calls;
mod code;
mod cuts;
mod debug_lines;
mod func;
mod hash;
mod keys;
mod lpm;
mod maps;
mod packets;
mod table;
mod tree;

use std::collections::BTreeSet;
use std::fmt::Write;

use cranelift_entity::{EntityRef, SecondaryMap};
use millstream_ir::{Func, Function, Linkage, Map, Module, Op};
use millstream_isa::helpers::Helper;
use millstream_match_tables::TablePlan;

use crate::classifier::cuts::CutClassifier;
use millstream_native_runtime::helpers;
use millstream_native_runtime::maps::{InlineLookup, RedirectTargets};
use millstream_native_runtime::packet::{DescriptorField, DescriptorLayout, WORD};
use millstream_plan::{BatchReordering, CompiledSchedule, PrefetchDecision, Schedule, TraversalReport};

use debug_lines::{DebugScope, in_scope};

pub(crate) use debug_lines::DebugLocation;
pub(crate) use table::ProgramExport;

/// Constructs that this back end cannot compile, and their location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// Unsupported operation.
    #[error("function {func:?}: {op} has no native form: {why}")]
    Op {
        /// The function.
        func: String,
        /// The operation's mnemonic.
        op: String,
        /// Reason.
        why: &'static str,
    },
    /// Helper that makes no sense outside of the kernel, or is not implemented.
    #[error("function {func:?} calls {}, which native code does not offer", helper_name(*.id))]
    Helper {
        /// The function.
        func: String,
        /// The helper.
        id: i32,
    },
    /// Unsupported map type.
    #[error("function {func:?} uses map {map:?} of type {kind}, which native code does not offer")]
    Map {
        /// The function.
        func: String,
        /// The map's name.
        map: String,
        /// `enum bpf_map_type`.
        kind: u32,
    },
}

fn helper_name(id: i32) -> String {
    Helper::get(id).map_or_else(|| format!("helper {id}"), |h| format!("bpf_{}", h.name))
}

/// Properties of a map that code depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapCodegenInfo {
    /// Address of the runtime's map.
    pub(crate) address: u64,
    /// Address of global data.
    pub(crate) first_value: Option<u64>,
    pub(crate) inline: Option<InlineLookup>,
    pub(crate) targets: Option<RedirectTargets>,
    pub(crate) only_reads: bool,
    /// True if other workers may change the table during a look-up.
    pub(crate) guarded: bool,
    /// Distance between the values of two workers; 0 if they share one.
    pub(crate) own: u64,
    /// True if the lines that its look-ups read are fetched ahead.
    pub(crate) ahead: bool,
    /// Bytes that look-ups are spread over when the map is full.
    pub(crate) lookup_bytes: u64,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
}

impl MapCodegenInfo {
    /// Returns true if the lines that its look-ups read can be fetched ahead.
    pub(crate) fn can_fetch(&self) -> bool {
        self.inline.is_some() && self.lookup_bytes > 0
    }
}

/// A match table as a tree of comparisons, of words of these widths.
pub(crate) struct ComparisonTree {
    pub(crate) plan: TablePlan,
    pub(crate) widths: Vec<u64>,
}

/// Function that searches a match table.
pub(crate) enum TableSearch {
    Tree(ComparisonTree),
    Cuts(CutClassifier),
}

/// Compilation unit.
pub(crate) struct CodegenUnit<'a> {
    pub(crate) module: &'a Module,
    pub(crate) maps: &'a SecondaryMap<Map, Option<MapCodegenInfo>>,
    /// Program that batches run; the first function of a pipeline.
    pub(crate) entry: Func,
    /// Functions of a pipeline, which are called with a packet's state as their context; empty for a program
    /// of batches.
    pub(crate) stages: &'a [Func],
    /// Programs that tail calls can reach.
    pub(crate) others: &'a [Func],
    /// Order of packets and stages.
    pub(crate) schedule: &'a Schedule,
    /// Layout of descriptors.
    pub(crate) layout: DescriptorLayout,
    /// True if several workers run the code.
    pub(crate) shared: bool,
    /// Ok if packets may run class by class, otherwise the reason why not.
    pub(crate) independent: &'a Result<(), String>,
    /// The path to look-ups that are fetched for.
    pub(crate) slice: Option<&'a Function>,
    /// Match tables that are functions, by number.
    pub(crate) matches: &'a [(millstream_ir::Table, TableSearch)],
    /// Exported symbol and description, if others link the code.
    pub(crate) table: Option<&'a ProgramExport>,
    /// True if code has source places ([`debug_lines`]).
    pub(crate) located: bool,
}

impl CodegenUnit<'_> {
    /// Linkage of the functions that a batch or a tail call enters.
    fn linkage(&self) -> &'static str {
        if self.table.is_some() { "internal " } else { "" }
    }

    /// A function with a scope, if code has source places.
    fn scoped(&self, text: String, scope: DebugScope) -> String {
        if self.located { in_scope(&text, scope) } else { text }
    }

    /// The loops over a batch.
    pub(crate) fn loops(&self) -> &'static [&'static str] {
        match self.slice {
            _ if self.is_pipeline() => &[],
            None => &[BATCH],
            Some(_) if !self.schedule.trials => &[BATCH_AHEAD],
            Some(_) => &[BATCH, BATCH_AHEAD],
        }
    }

    /// The loops, then the programs that tail calls reach; or the functions of a pipeline.
    pub(crate) fn symbols(&self) -> Vec<String> {
        let programs = self.others.iter().map(|&f| program_symbol(f));
        let stages = self.stages.iter().map(|&f| stage_symbol(f));
        self.loops().iter().map(|name| (*name).to_owned()).chain(programs).chain(stages).collect()
    }

    /// Returns true if contexts are the state of a packet, memory of the caller.
    fn is_pipeline(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Offset in a packet's descriptor where code notes the progress of fetching for a look-up in this map.
    /// Several maps may share one note: notes are checked, and one of another map fetches another line.
    fn note_of(&self, map: Map) -> usize {
        let before = self.maps.values().take(map.index()).flatten().filter(|info| info.ahead).count();
        let (first, places) = self.layout.notes();
        first + WORD * (before % places)
    }

    /// Bytes of all tables that are fetched for.
    fn fetched_bytes(&self) -> u64 {
        let ahead = self.maps.values().flatten().filter(|info| info.ahead);
        ahead.map(|info| info.lookup_bytes).sum()
    }

    /// Number of stages in which the lines of all tables are fetched.
    fn stages(&self) -> u32 {
        let ahead = self.maps.values().flatten().filter(|info| info.ahead);
        ahead.map(maps::stages).max().unwrap_or(1).min(MOST_STAGES)
    }
}

impl CodegenUnit<'_> {
    /// The schedule of the loops, and the reason for it.
    pub(crate) fn in_force(&self) -> CompiledSchedule {
        let stages = if self.slice.is_some() { self.stages() } else { 0 };
        let (schedule, why) = self.schedule.fitted(stages, self.fetched_bytes());
        let all = self.module.maps.keys().filter_map(|map| Some((map, self.maps[map].as_ref()?)));
        let fetched = |(map, info): (Map, &MapCodegenInfo)| {
            let table = self.module.maps[map].name.clone();
            match self.schedule.fetches(&table, info.lookup_bytes) {
                (true, _) if self.slice.is_none() => {
                    let why = "no look-up in it is reached without a trace".to_owned();
                    PrefetchDecision { table, fetched: false, why }
                }
                (fetched, why) => PrefetchDecision { table, fetched, why },
            }
        };
        let tables = all.filter(|(_, info)| info.can_fetch());
        let in_order = match (schedule.classes, self.independent) {
            (BatchReordering::One, _) | (_, Ok(())) => None,
            (_, Err(why)) => Some(why.clone()),
        };
        let schedule = Schedule { classes: self.classes(), ..schedule };
        let (tables, lookups) = (tables.map(fetched).collect(), TraversalReport::default());
        CompiledSchedule { schedule, why, in_order, stages, tables, lookups }
    }

    /// The classes that packets are sorted into.
    fn classes(&self) -> BatchReordering {
        if self.independent.is_ok() { self.schedule.classes } else { BatchReordering::One }
    }
}

/// Name of the function that runs a batch.
pub(crate) const BATCH: &str = "ms_batch";

/// Name of the loop that fetches ahead.
pub(crate) const BATCH_AHEAD: &str = "ms_batch_ahead";

/// Maximum number of stages in which the lines of a look-up are fetched: first those at places given by the
/// key, then those at places given by these, and so on.
const MOST_STAGES: u32 = 4;

/// Name of a program in native code.
pub(crate) fn program_symbol(func: Func) -> String {
    format!("ms_program{}", func.index())
}

/// Name of a function of a pipeline in native code.
fn stage_symbol(func: Func) -> String {
    format!("ms_stage{}", func.index())
}

/// Writes the module.
///
/// # Errors
/// [`EmitError`] for unsupported constructs.
pub(crate) fn emit(unit: &CodegenUnit<'_>) -> Result<String, EmitError> {
    let others: Vec<Func> = unit.others.iter().chain(unit.stages).copied().collect();
    let funcs = reachable(unit.module, unit.entry, &others);
    let mut out = String::new();
    out.push_str("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n");
    out.push_str("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n");
    out.push_str("declare i16 @llvm.bswap.i16(i16)\n");
    out.push_str("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n");
    out.push_str("declare i8 @llvm.cttz.i8(i8, i1)\n");
    out.push_str("declare i64 @llvm.ctpop.i64(i64)\n");
    out.push_str("declare i64 @llvm.umin.i64(i64, i64)\n");
    match unit.table {
        Some(_) => table::imports(&mut out),
        None => {
            for (symbol, _) in helpers::symbols() {
                let _ = writeln!(out, "declare i64 @{symbol}(ptr, i64, i64, i64, i64, i64) nounwind");
            }
        }
    }
    for (map, info) in unit.module.maps.keys().filter_map(|m| Some((m, unit.maps[m].as_ref()?))) {
        out.push_str(&maps::lookup(map.index(), info));
        if let (Some(targets), Some(target)) = (&info.targets, unit.layout.offset(DescriptorField::Target)) {
            out.push_str(&maps::redirect(map.index(), targets, target));
        }
        if info.ahead && unit.slice.is_some() {
            out.push_str(&maps::ahead(map.index(), info, unit.stages()));
        }
    }
    out.push_str(&packets::adjust_head(&unit.layout).unwrap_or_default());
    if unit.matches.iter().any(|(_, search)| matches!(search, TableSearch::Cuts(_))) {
        out.push_str(cuts::DECLARATIONS);
    }
    for (table, search) in unit.matches {
        match search {
            TableSearch::Tree(ComparisonTree { plan, widths }) => {
                out.push_str(&tree::function(table.index(), plan, widths));
            }
            TableSearch::Cuts(cuts) => {
                let data = cuts.map.and_then(|map| unit.maps[map]?.first_value);
                out.push_str(&cuts::function(table.index(), cuts, data.unwrap_or(0)));
            }
        }
    }
    for &f in &funcs {
        out.push_str(&func::emit(unit, f)?);
    }
    for &f in unit.others {
        let program = format!(
            "define {}i64 @{}(ptr %w, ptr %p) {{\n  %r = call i64 @fn{}(ptr %w, ptr %p)\n  ret i64 %r\n}}\n",
            unit.linkage(),
            program_symbol(f),
            f.index()
        );
        out.push_str(&unit.scoped(program, DebugScope::Caller(f)));
    }
    for &f in unit.stages {
        let symbol = stage_symbol(f);
        let call = format!("call i64 @fn{}(ptr %w, ptr %s, ptr %d, ptr %e)", f.index());
        let stage = format!(
            "define i64 @{symbol}(ptr %w, ptr %s, ptr %d, ptr %e) {{\n  %r = {call}\n  ret i64 %r\n}}\n"
        );
        out.push_str(&unit.scoped(stage, DebugScope::Caller(f)));
    }
    if let Some(slice) = unit.slice {
        for stage in 1..=unit.stages() {
            out.push_str(&func::slice(unit, slice, stage)?);
        }
    }
    if unit.loops().contains(&BATCH) {
        out.push_str(&unit.scoped(batch::batch(unit, false), DebugScope::Loop));
    }
    if unit.slice.is_some() {
        out.push_str(&unit.scoped(batch::batch(unit, true), DebugScope::LoopAhead));
    }
    if let Some(described) = unit.table {
        table::table(&mut out, described, &unit.symbols(), unit.loops().len());
    }
    out.push_str(func::METADATA);
    if unit.located {
        let functions = funcs.iter().flat_map(|&f| [DebugScope::Function(f), DebugScope::Caller(f)]);
        let slices = (1..=MOST_STAGES).map(DebugScope::Slice);
        debug_lines::scopes(
            &mut out,
            functions.chain(slices).chain([DebugScope::Loop, DebugScope::LoopAhead]),
        );
    }
    Ok(out)
}

/// Functions that the programs can reach, in order of number.
pub(crate) fn reachable(module: &Module, entry: Func, others: &[Func]) -> BTreeSet<Func> {
    let mut found = BTreeSet::new();
    let mut open: Vec<Func> = others.iter().copied().chain([entry]).collect();
    while let Some(f) = open.pop() {
        let Some(func) = module.funcs.get(f).filter(|_| found.insert(f)) else { continue };
        open.extend(func.insts_in_order().filter_map(|(_, inst)| match func.insts[inst].op {
            Op::Call { func } | Op::FuncAddr { func } => Some(func),
            _ => None,
        }));
    }
    found
}

/// Returns true if a function is one that the kernel would call.
pub(crate) fn is_program(module: &Module, func: Func) -> bool {
    module.funcs.get(func).is_some_and(|f| matches!(f.linkage, Linkage::Program { .. }))
}
