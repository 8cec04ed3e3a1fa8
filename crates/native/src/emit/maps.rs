//! Look-ups as code: one function a map, always inlined where a program looks.
//!
//! Index computation, hashing, bucket load, key comparison and value address are LLVM's to see: a key built on the stack
//! stays in registers, a null check after the look-up merges with the look-up's own. The search in hash tables
//! ([`super::hash`]) is that of `runtime::hash`, the walk through tries ([`super::lpm`]) that of `runtime::lpm`. Where no template fits, the function calls the runtime, with a copy of the key, so
//! that the program's own does not have to be in memory.

use crate::runtime::maps::{Inline, Targets};
use crate::runtime::{packet, worker};

use super::{MapInfo, STAGES, hash, lpm};

/// The function that looks up in map number `n`: `ptr @lookup{n}(ptr worker, ptr key)`.
pub(super) fn lookup(n: usize, map: &MapInfo) -> String {
    match map.inline {
        Some(Inline::Array { base, stride, entries }) => array(n, base, stride, entries),
        Some(Inline::Hash(layout)) if map.key_size > 0 => hash::lookup(n, map.key_size, &layout),
        Some(Inline::Lpm(layout)) => lpm::lookup(n, map, &layout),
        _ => called(n, map),
    }
}

/// The functions that fetch what look-ups in map number `n` will read, stage by stage: `void @ahead{n}x{stage}(ptr worker, ptr key)`.
pub(super) fn ahead(n: usize, map: &MapInfo) -> String {
    let stage = |stage| match map.inline {
        Some(Inline::Hash(layout)) => hash::ahead(n, map.key_size, &layout, stage),
        Some(Inline::Lpm(layout)) => lpm::ahead(n, &layout, stage),
        _ => String::new(),
    };
    (1..=STAGES).map(stage).collect()
}

/// The function that redirects by map number `n`: `i64 @redirect{n}(ptr worker, i64 key, i64 flags)`.
pub(super) fn redirect(n: usize, targets: &Targets) -> String {
    let Targets { base, stride, entries, present } = *targets;
    let (current, target) = (worker::CURRENT, packet::TARGET);
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

fn array(n: usize, base: u64, stride: u64, entries: u32) -> String {
    // The sum cannot wrap, which tells LLVM that the address is not null.
    format!(
        "define internal ptr @lookup{n}(ptr %w, ptr %key) alwaysinline {{
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

fn called(n: usize, map: &MapInfo) -> String {
    let reads = if map.only_reads { " memory(read) willreturn" } else { "" };
    let (size, address) = (map.key_size.max(1), map.address);
    format!(
        "define internal ptr @lookup{n}(ptr %w, ptr %key) alwaysinline {{
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
