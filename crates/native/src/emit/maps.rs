//! Look-ups as code: one function per map, always inlined at its look-ups.
//!
//! LLVM sees index computation, hashing, bucket load, key comparison and value address: a key built on the
//! stack stays in registers, and a null check after the look-up merges with the look-up's own. The search in
//! hash tables ([`super::hash`]) is that of `runtime::hash`, the walk through tries ([`super::lpm`]) that of
//! `runtime::lpm`. If no template fits, the function calls the runtime, with a copy of the key, so that the
//! program's own key does not have to be in memory.
//!
//! With several workers, the result of a template in a table that programs change counts only if nobody
//! changed the table meanwhile (`runtime::sharing`); and per-CPU values are those of the worker.

use std::fmt::Write;

use millstream_native_runtime::maps::{InlineLookup, RedirectTargets};
use millstream_native_runtime::worker;

use super::{MapCodegenInfo, hash, lpm};

/// The function for look-ups in map number `n`: `ptr @lookup{n}(ptr worker, ptr key)`.
pub(super) fn lookup(n: usize, map: &MapCodegenInfo) -> String {
    let name = format!("lookup{n}");
    let template = |name: &str| match map.inline {
        Some(InlineLookup::Array { base, stride, entries }) => Some(array(name, base, stride, entries)),
        Some(InlineLookup::Hash(layout)) if map.key_size > 0 => {
            Some(hash::lookup(name, map.key_size, &layout))
        }
        // In a trie that is being changed, a walk may go beyond the key; a list has an end.
        Some(InlineLookup::Lpm(layout)) if !map.guarded || layout.list.is_some() => {
            Some(lpm::lookup(name, map, &layout))
        }
        _ => None,
    };
    match (map.guarded, map.own) {
        (false, 0) => template(&name).unwrap_or_else(|| called(&name, map)),
        _ => match template(&format!("bare{n}")) {
            Some(bare) => bare + &shared(n, map),
            None => called(&name, map),
        },
    }
}

/// `ptr @lookup{n}` by `ptr @bare{n}`, for several workers.
fn shared(n: usize, map: &MapCodegenInfo) -> String {
    let mut out = String::new();
    if map.guarded {
        out.push_str(&called(&format!("called{n}"), map));
    }
    let _ = writeln!(out, "define internal ptr @lookup{n}(ptr %w, ptr %key) alwaysinline {{");
    if map.guarded {
        let _ = write!(
            out,
            "  %sp = inttoptr i64 {} to ptr
  %before = load atomic i64, ptr %sp acquire, align 8
",
            map.address
        );
    }
    let _ = writeln!(out, "  %found = call ptr @bare{n}(ptr %w, ptr %key)");
    let mut result = "%found";
    if map.own > 0 {
        out.push_str(&own_copy(map.own, "%found", "%own"));
        out.push_str("  %none = icmp eq ptr %found, null\n  %mine = select i1 %none, ptr null, ptr %own\n");
        result = "%mine";
    }
    if map.guarded {
        let _ = write!(
            out,
            "  fence acquire
  %after = load atomic i64, ptr %sp monotonic, align 8
  %same = icmp eq i64 %before, %after
  %odd = trunc i64 %before to i1
  %still = xor i1 %odd, true
  %whole = and i1 %same, %still
  br i1 %whole, label %done, label %again
again:
  %asked = call ptr @called{n}(ptr %w, ptr %key)
  br label %done
done:
  %r = phi ptr [ {result}, %0 ], [ %asked, %again ]
"
        );
        result = "%r";
    }
    let _ = write!(out, "  ret ptr {result}\n}}\n");
    out
}

/// Converts an address in the first worker's copy of a value, `from`, to one in that of the current worker,
/// `to`.
pub(super) fn own_copy(own: u64, from: &str, to: &str) -> String {
    let name = to.trim_start_matches('%');
    format!(
        "  %np{name} = getelementptr i8, ptr %w, i64 {number}
  %n{name} = load i32, ptr %np{name}, align 4, !invariant.load !7
  %z{name} = zext i32 %n{name} to i64
  %d{name} = mul nuw i64 %z{name}, {own}
  {to} = getelementptr i8, ptr {from}, i64 %d{name}
",
        number = worker::NUMBER
    )
}

/// The functions that fetch the lines of look-ups in map number `n`, stage by stage: `void
/// @ahead{n}x{stage}(ptr worker, ptr note, ptr key)`. A stage notes its result for the next one.
pub(super) fn ahead(n: usize, map: &MapCodegenInfo, stages: u32) -> String {
    let stage = |stage| match map.inline {
        Some(InlineLookup::Hash(layout)) => hash::ahead(n, map.key_size, &layout, stage),
        Some(InlineLookup::Lpm(layout)) => lpm::ahead(n, &layout, stage),
        Some(InlineLookup::Array { base, stride, entries }) => {
            array_ahead(n, map.own, (base, stride, entries), stage)
        }
        None => String::new(),
    };
    (1..=stages).map(stage).collect()
}

/// Number of dependent lines that a look-up reads.
pub(super) fn stages(map: &MapCodegenInfo) -> u32 {
    match map.inline {
        Some(InlineLookup::Lpm(layout)) => lpm::stages(&layout),
        Some(InlineLookup::Array { .. }) => 1,
        _ => 2,
    }
}

/// The function for redirects by map number `n`, which stores the target at that offset of the descriptor:
/// `i64 @redirect{n}(ptr worker, i64 key, i64 flags)`.
pub(super) fn redirect(n: usize, targets: &RedirectTargets, target: usize) -> String {
    let RedirectTargets { base, stride, entries, present } = *targets;
    let current = worker::CURRENT;
    format!(
        "define internal i64 @redirect{n}(ptr %w, i64 %key, i64 %flags) alwaysinline {{
  %unknown = and i64 %flags, -4
  %known = icmp eq i64 %unknown, 0
  %low = and i64 %flags, 3
  %k = and i64 %key, 4294967295
  %in = icmp ult i64 %k, {entries}
  br i1 %known, label %bounds, label %refused
bounds:
  br i1 %in, label %look, label %none
look:
  %fa = add nuw i64 %k, {present}
  %fp = inttoptr i64 %fa to ptr
  %f = load i8, ptr %fp, align 1
  %there = icmp ne i8 %f, 0
  br i1 %there, label %go, label %none
go:
  %o = mul nuw i64 %k, {stride}
  %va = add nuw i64 %o, {base}
  %vp = inttoptr i64 %va to ptr
  %to = load i32, ptr %vp, align 4
  %cp = getelementptr i8, ptr %w, i64 {current}
  %c = load ptr, ptr %cp, align 8
  %tp = getelementptr i8, ptr %c, i64 {target}
  store i32 %to, ptr %tp, align 4
  ret i64 4
none:
  ret i64 %low
refused:
  ret i64 0
}}
"
    )
}

fn array(name: &str, base: u64, stride: u64, entries: u32) -> String {
    // The sum cannot wrap, which tells LLVM that the address is not null.
    format!(
        "define internal ptr @{name}(ptr %w, ptr %key) alwaysinline {{
  %i = load i32, ptr %key, align 1
  %in = icmp ult i32 %i, {entries}
  br i1 %in, label %yes, label %no
yes:
  %z = zext i32 %i to i64
  %o = mul nuw i64 %z, {stride}
  %a = add nuw i64 %o, {base}
  %p = inttoptr i64 %a to ptr
  ret ptr %p
no:
  ret ptr null
}}
"
    )
}

/// Fetches the value's first line, in the only stage; the last value's if the index is out of range.
fn array_ahead(n: usize, own: u64, (base, stride, entries): (u64, u64, u32), stage: u32) -> String {
    let mut out =
        format!("define internal void @ahead{n}x{stage}(ptr %w, ptr %note, ptr %key) alwaysinline {{\n");
    if stage == 1 {
        let _ = write!(
            out,
            "  %i = load i32, ptr %key, align 1
  %z = zext i32 %i to i64
  %in = call i64 @llvm.umin.i64(i64 %z, i64 {last})
  %o = mul nuw i64 %in, {stride}
  %a = add nuw i64 %o, {base}
  %p = inttoptr i64 %a to ptr
",
            last = entries.saturating_sub(1)
        );
        let mut at = "%p";
        if own > 0 {
            out.push_str(&own_copy(own, "%p", "%mine"));
            at = "%mine";
        }
        let _ = writeln!(out, "  call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 3, i32 1)");
    }
    out.push_str("  ret void\n}\n");
    out
}

fn called(name: &str, map: &MapCodegenInfo) -> String {
    let reads = if map.only_reads { " memory(read) willreturn" } else { "" };
    let (size, address) = (map.key_size.max(1), map.address);
    format!(
        "define internal ptr @{name}(ptr %w, ptr %key) alwaysinline {{
  %copy = alloca [{size} x i8], align 8
  call void @llvm.memcpy.p0.p0.i64(ptr %copy, ptr %key, i64 {size}, i1 false)
  %k = ptrtoint ptr %copy to i64
  %r = call i64 @ms_map_lookup(ptr %w, i64 {address}, i64 %k, i64 0, i64 0, i64 0) nounwind{reads}
  %p = inttoptr i64 %r to ptr
  ret ptr %p
}}
"
    )
}
