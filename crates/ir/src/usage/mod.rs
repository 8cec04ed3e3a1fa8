//! Uses of each map by each function and program: lookups, updates, deletions, the bytes of values that are
//! read and written, and the instructions that do so.
//!
//! The answer is an over-approximation: a use that is not listed cannot happen through this module's code,
//! provided that the kernel's verifier accepts it (pointers cannot be forged from integers). An unknown
//! address may point to a value of any map. An inner map of a map of maps may be any map of the same shape as
//! its template.
//!
//! Others may write a map too (other programs, user space); this analysis does not know them.

mod points;
mod record;

use std::collections::BTreeMap;

use crate::entities::*;
use crate::func::{Function, Linkage};
use crate::module::{MapDecl, Module};
use crate::op::Op;

pub use points::{PointsTo, PointsToSet, ValueOffsets};

/// A place in a module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstSite {
    /// The function.
    pub func: Func,
    /// The instruction.
    pub inst: Inst,
}

/// Bytes of a value that an instruction accesses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AccessRange {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// Access to the bytes of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueAccess {
    /// Place of the access.
    pub site: InstSite,
    /// Bytes accessed.
    pub range: AccessRange,
    /// By an atomic operation.
    pub atomic: bool,
    /// Through a helper or kernel function that is handed the address.
    pub escapes: bool,
}

/// Uses of one map by a function or program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapUse {
    /// Lookups of a key.
    pub lookups: Vec<InstSite>,
    /// Insertions and replacements of whole values, pushes and pops.
    pub updates: Vec<InstSite>,
    /// Deletions.
    pub deletes: Vec<InstSite>,
    /// Other uses of the map object that leave its contents alone: redirects, events, tail calls, walks.
    pub others: Vec<InstSite>,
    /// Reads of bytes of values.
    pub reads: Vec<ValueAccess>,
    /// Writes of bytes of values.
    pub writes: Vec<ValueAccess>,
}

/// Degree to which a map is read-only for some code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapAccess {
    /// Not mentioned at all.
    Unused,
    /// Neither entries nor bytes of values change.
    ReadOnly,
    /// Only these bytes of values change, ascending and disjoint; which entries exist does not.
    FieldsWritten(Vec<AccessRange>),
    /// Entries come and go, or any byte of a value may change.
    Written,
}

impl MapUse {
    /// Returns true if there is no use at all.
    pub fn is_empty(&self) -> bool {
        *self == MapUse::default()
    }

    /// Degree to which the map is read-only.
    pub fn access(&self, decl: &MapDecl) -> MapAccess {
        let written = merge(self.writes.iter().map(|w| w.range));
        let whole = AccessRange { start: 0, end: decl.value_size };
        match () {
            () if self.is_empty() => MapAccess::Unused,
            () if !self.updates.is_empty() || !self.deletes.is_empty() => MapAccess::Written,
            () if written.is_empty() => MapAccess::ReadOnly,
            () if written == [whole] => MapAccess::Written,
            () => MapAccess::FieldsWritten(written),
        }
    }

    /// The bytes of values that are read, ascending and disjoint.
    pub fn bytes_read(&self) -> Vec<AccessRange> {
        merge(self.reads.iter().map(|r| r.range))
    }

    /// Adds the uses of another.
    pub fn absorb(&mut self, other: &MapUse) {
        self.lookups.extend(&other.lookups);
        self.updates.extend(&other.updates);
        self.deletes.extend(&other.deletes);
        self.others.extend(&other.others);
        self.reads.extend(&other.reads);
        self.writes.extend(&other.writes);
    }
}

/// Joins ranges that overlap or touch.
fn merge(ranges: impl Iterator<Item = AccessRange>) -> Vec<AccessRange> {
    let mut sorted: Vec<AccessRange> = ranges.collect();
    sorted.sort_unstable();
    let mut merged: Vec<AccessRange> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Uses of the maps of a module, by function.
#[derive(Clone, Debug)]
pub struct ModuleMapUsage {
    /// Uses by each function itself.
    by_func: BTreeMap<Func, BTreeMap<Map, MapUse>>,
    /// Functions that each function calls or takes the address of.
    callees: BTreeMap<Func, Vec<Func>>,
}

impl ModuleMapUsage {
    /// Analyses a module, which must be valid.
    pub fn new(module: &Module) -> ModuleMapUsage {
        let points = PointsTo::new(module);
        let mut usage = ModuleMapUsage { by_func: BTreeMap::new(), callees: BTreeMap::new() };
        for (id, func) in &module.funcs {
            let mut uses = record::function(module, &points, id);
            alias_inner_maps(module, &mut uses);
            usage.by_func.insert(id, uses);
            usage.callees.insert(id, callees(func));
        }
        usage
    }

    /// Uses of a map by a function itself, callees not included.
    pub fn of_function(&self, func: Func, map: Map) -> MapUse {
        self.by_func.get(&func).and_then(|uses| uses.get(&map)).cloned().unwrap_or_default()
    }

    /// Uses of a map by a function and all functions that it calls. Tail calls are other programs.
    pub fn of_program(&self, func: Func, map: Map) -> MapUse {
        let mut all = MapUse::default();
        for f in self.reachable(func) {
            if let Some(uses) = self.by_func.get(&f).and_then(|uses| uses.get(&map)) {
                all.absorb(uses);
            }
        }
        all
    }

    /// Uses of a map by all programs of a module together.
    pub fn of_module(&self, map: Map) -> MapUse {
        let mut all = MapUse::default();
        self.by_func.values().filter_map(|uses| uses.get(&map)).for_each(|uses| all.absorb(uses));
        all
    }

    fn reachable(&self, func: Func) -> Vec<Func> {
        let mut seen = vec![func];
        let mut at = 0;
        while at < seen.len() {
            for &callee in self.callees.get(&seen[at]).map_or(&[][..], Vec::as_slice) {
                if !seen.contains(&callee) {
                    seen.push(callee);
                }
            }
            at += 1;
        }
        seen
    }
}

fn callees(func: &Function) -> Vec<Func> {
    let ops = func.insts_in_order().map(|(_, inst)| &func.insts[inst].op);
    ops.filter_map(|op| match op {
        Op::Call { func } | Op::FuncAddr { func } => Some(*func),
        _ => None,
    })
    .collect()
}

/// Copies the uses of an inner map to all maps of the same shape: user space may have put any of them there.
fn alias_inner_maps(module: &Module, uses: &mut BTreeMap<Map, MapUse>) {
    for template in module.maps.values().filter_map(|m| m.inner) {
        let Some(inner) = uses.get(&template).cloned() else { continue };
        let shape = |m: &MapDecl| (m.kind, m.key_size, m.value_size);
        for (map, decl) in &module.maps {
            if map != template && shape(decl) == shape(&module.maps[template]) {
                uses.entry(map).or_default().absorb(&inner);
            }
        }
    }
}

/// The programs of a module.
pub fn programs(module: &Module) -> impl Iterator<Item = Func> + '_ {
    module.funcs.iter().filter(|(_, f)| matches!(f.linkage, Linkage::Program { .. })).map(|(id, _)| id)
}
