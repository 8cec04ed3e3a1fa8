//! Maps, and the accesses of each program to them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use millstream_bpf::module as lifted;
use millstream_btf::{Btf, TypeId};
use millstream_ir::usage::{AccessRange, InstSite, MapAccess, MapUse, ModuleMapUsage};
use millstream_ir::{Module, Op};
use millstream_isa::helpers::Helper;
use millstream_object::{MapId, Object, ObjectMap};
use serde::Serialize;

/// A map, as JSON shows it.
#[derive(Debug, Serialize)]
pub(super) struct MapRow {
    name: String,
    kind: String,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_type: Option<String>,
    /// Accesses of all programs of the object together.
    access: &'static str,
    /// Bytes of values that programs write, if not all.
    written: Vec<ValueField>,
    programs: Vec<MapUsage>,
}

/// Some bytes of a value with the names of the members that they belong to.
#[derive(Debug, Serialize)]
struct ValueField {
    start: u32,
    end: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
}

/// Accesses of one program to a map.
#[derive(Debug, Serialize)]
struct MapUsage {
    program: String,
    access: &'static str,
    lookups: usize,
    updates: usize,
    deletes: usize,
    other: usize,
    /// Helpers of the other uses.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    other_helpers: BTreeSet<String>,
    read: Vec<ValueField>,
    written: Vec<ValueField>,
    atomic_writes: usize,
    helper_writes: usize,
}

/// All maps of the object.
pub(super) fn rows(object: &Object, module: &Module) -> Vec<MapRow> {
    let usage = ModuleMapUsage::new(module);
    (0..object.maps.len() as u32).map(|i| row(object, module, &usage, MapId(i))).collect()
}

fn row(object: &Object, module: &Module, usage: &ModuleMapUsage, id: MapId) -> MapRow {
    let map = &object.maps[id.index()];
    let spec = &map.spec;
    let ir = lifted::map(id);
    let decl = &module.maps[ir];
    let fields =
        |ranges: &[AccessRange]| ranges.iter().map(|&r| field(object.btf.as_ref(), map, r)).collect();
    let programs = object.programs.iter().filter_map(|program| {
        let uses = usage.of_program(lifted::func(program.func), ir);
        (!uses.is_empty()).then(|| MapUsage {
            program: program.name.clone(),
            access: access_name(&uses.access(decl)),
            lookups: uses.lookups.len(),
            updates: uses.updates.len(),
            deletes: uses.deletes.len(),
            other: uses.others.len(),
            other_helpers: uses.others.iter().filter_map(|site| helper(module, *site)).collect(),
            read: fields(&uses.bytes_read()),
            written: fields(&bytes_written(&uses)),
            atomic_writes: uses.writes.iter().filter(|w| w.atomic).count(),
            helper_writes: uses.writes.iter().filter(|w| w.escapes).count(),
        })
    });
    let all = usage.of_module(ir).access(decl);
    let written = match &all {
        MapAccess::FieldsWritten(ranges) => fields(ranges),
        _ => Vec::new(),
    };
    let btf = object.btf.as_ref();
    MapRow {
        name: map.name.clone(),
        kind: spec.map_type.name().map_or_else(|| format!("type {}", spec.map_type.0), str::to_owned),
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags: spec.flags,
        value_type: btf.zip(spec.value_type).map(|(btf, ty)| btf.c_name(ty)),
        access: access_name(&all),
        written,
        programs: programs.collect(),
    }
}

/// The name of the helper that is called at a place.
fn helper(module: &Module, site: InstSite) -> Option<String> {
    match module.funcs[site.func].insts[site.inst].op {
        Op::Helper { id } => Some(Helper::get(id).map_or(format!("helper {id}"), |h| h.name.to_string())),
        _ => None,
    }
}

fn bytes_written(uses: &MapUse) -> Vec<AccessRange> {
    let writes = MapUse { reads: uses.writes.clone(), ..MapUse::default() };
    writes.bytes_read()
}

fn access_name(access: &MapAccess) -> &'static str {
    match access {
        MapAccess::Unused => "unused",
        MapAccess::ReadOnly => "read-only",
        MapAccess::FieldsWritten(_) => "field-wise read-only",
        MapAccess::Written => "written",
    }
}

/// Names of the contents of a range: members of the value's type, or global variables.
fn field(btf: Option<&Btf>, map: &ObjectMap, range: AccessRange) -> ValueField {
    let overlaps = |start: u32, size: u32| start < range.end && range.start < start.saturating_add(size);
    let variables = map.variables.iter().filter(|v| overlaps(v.offset, v.size)).map(|v| v.name.clone());
    let mut names: Vec<String> = variables.collect();
    if let (Some(btf), Some(ty), true) = (btf, map.spec.value_type, names.is_empty()) {
        members(btf, ty, 0, range, "", 0, &mut names);
    }
    ValueField { start: range.start, end: range.end, names }
}

const MAX_NAMES: usize = 12;
const MAX_DEPTH: usize = 6;

/// Collects the innermost members that overlap a range; `at` is where the type starts in the value.
fn members(
    btf: &Btf,
    ty: TypeId,
    at: u64,
    range: AccessRange,
    prefix: &str,
    depth: usize,
    names: &mut Vec<String>,
) {
    let Ok(composite) = btf.composite(ty) else { return };
    for member in composite.members {
        let start = at + u64::from(member.bit_offset / 8);
        let size = btf.size_of(member.ty).unwrap_or(0).max(1);
        if start >= u64::from(range.end) || start + size <= u64::from(range.start) {
            continue;
        }
        let name = btf.str(member.name);
        let path = match (prefix, name) {
            ("", _) => name.to_string(),
            (_, "") => prefix.to_string(),
            _ => format!("{prefix}.{name}"),
        };
        let whole =
            start >= u64::from(range.start) && start + size <= u64::from(range.end) && !name.is_empty();
        if names.len() >= MAX_NAMES {
            return;
        }
        let before = names.len();
        if !whole && depth < MAX_DEPTH {
            members(btf, member.ty, start, range, &path, depth + 1, names);
        }
        if names.len() == before {
            names.push(path);
        }
    }
}

/// Formats the maps for people.
pub(super) fn text(rows: &[MapRow]) -> String {
    let mut out = String::new();
    for row in rows {
        let _ = writeln!(
            out,
            "map {} ({}, key {}, value {}, {}): {}",
            row.name,
            row.kind,
            row.key_size,
            row.value_size,
            super::counted(row.max_entries.into(), "entry", "entries"),
            row.access
        );
        if let Some(ty) = &row.value_type {
            let _ = writeln!(out, "  value: {ty}");
        }
        for uses in &row.programs {
            let _ = writeln!(out, "  {}: {}{}", uses.program, uses.access, counts(uses));
            line(&mut out, "reads", &uses.read);
            line(&mut out, "writes", &uses.written);
        }
    }
    out
}

fn counts(uses: &MapUsage) -> String {
    let mut out = String::new();
    let all = [
        (uses.lookups, "lookup", "lookups"),
        (uses.updates, "update", "updates"),
        (uses.deletes, "delete", "deletes"),
        (uses.other, "other use", "other uses"),
        (uses.atomic_writes, "atomic write", "atomic writes"),
        (uses.helper_writes, "write by a helper", "writes by helpers"),
    ];
    for (count, one, more) in all.into_iter().filter(|(count, ..)| *count > 0) {
        let _ = write!(out, ", {count} {}", if count == 1 { one } else { more });
        if one == "other use" && !uses.other_helpers.is_empty() {
            let names: Vec<&str> = uses.other_helpers.iter().map(String::as_str).collect();
            let _ = write!(out, " ({})", names.join(", "));
        }
    }
    out
}

fn line(out: &mut String, what: &str, fields: &[ValueField]) {
    if fields.is_empty() {
        return;
    }
    let show = |f: &ValueField| match f.names.is_empty() {
        true => format!("{}..{}", f.start, f.end),
        false => format!("{} ({}..{})", f.names.join(" "), f.start, f.end),
    };
    let fields: Vec<String> = fields.iter().map(show).collect();
    let _ = writeln!(out, "    {what} {}", fields.join(", "));
}
