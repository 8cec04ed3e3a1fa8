//! The walk through a trie, as code: unrolled for addresses of up to 32 bits, else a loop over the key's bytes.

use std::fmt::Write;

use super::MapInfo;
use crate::runtime::lpm::{LpmLayout, NODE};

/// What a place says beside [`NODE`].
const INDEX: u32 = !NODE;

/// `ptr @{name}(ptr worker, ptr key)`. A look-up for fewer bits than an address has goes to the runtime.
pub(super) fn lookup(name: &str, map: &MapInfo, layout: &LpmLayout) -> String {
    let LpmLayout { bits, values, stride, .. } = *layout;
    let (address, size, values) = (map.address, map.key_size, values.wrapping_sub(stride));
    let mut out = format!(
        "define internal ptr @{name}(ptr %w, ptr %key) alwaysinline {{
  %copy = alloca [{size} x i8], align 8
  %length = load i32, ptr %key, align 1
  %whole = icmp eq i32 %length, {bits}
  %data = getelementptr i8, ptr %key, i64 4
  br i1 %whole, label %walk, label %call
call:
  call void @llvm.memcpy.p0.p0.i64(ptr %copy, ptr %key, i64 {size}, i1 false)
  %k = ptrtoint ptr %copy to i64
  %cr = call i64 @ms_map_lookup(ptr %w, i64 {address}, i64 %k, i64 0, i64 0, i64 0) nounwind
  %cp = inttoptr i64 %cr to ptr
  ret ptr %cp
walk:
"
    );
    match bits {
        0..=32 => unrolled(&mut out, layout),
        _ => looped(&mut out, layout),
    }
    let _ = write!(
        out,
        "  %none = icmp eq i32 %best, 0
  br i1 %none, label %no, label %yes
yes:
  %slot = zext i32 %best to i64
  %vo = mul nuw i64 %slot, {stride}
  %va = add nuw i64 %vo, {values}
  %vp = inttoptr i64 %va to ptr
  ret ptr %vp
no:
  ret ptr null
}}
"
    );
    out
}

/// The whole address as a number, its first byte on top; gives its name.
fn address(out: &mut String, bits: u32) -> String {
    let bytes = bits / 8;
    for i in 0..bytes {
        let shift = 8 * (bytes - 1 - i);
        let _ = write!(
            out,
            "  %bp{i} = getelementptr i8, ptr %data, i64 {i}
  %bl{i} = load i8, ptr %bp{i}, align 1
  %bz{i} = zext i8 %bl{i} to i64
  %bs{i} = shl i64 %bz{i}, {shift}
"
        );
        let before = if i == 0 { "0".to_owned() } else { format!("%a{}", i - 1) };
        let _ = writeln!(out, "  %a{i} = or i64 {before}, %bs{i}");
    }
    format!("%a{}", bytes - 1)
}

/// The place in the root, `%i0`: of the first bits of an address.
fn root(out: &mut String, layout: &LpmLayout) {
    let first = address(out, layout.root);
    let _ = writeln!(out, "  %i0 = add nuw i64 {first}, 0");
}

/// The place `%i{level}` in the node that `%e{above}` names, by the address's byte at `%dp{level}`.
fn below(out: &mut String, level: &str, above: &str) {
    let _ = write!(
        out,
        "  %db{level} = load i8, ptr %dp{level}, align 1
  %dz{level} = zext i8 %db{level} to i64
  %n{level} = and i32 %e{above}, {INDEX}
  %nz{level} = zext i32 %n{level} to i64
  %ns{level} = shl nuw i64 %nz{level}, 8
  %i{level} = or i64 %ns{level}, %dz{level}
"
    );
}

/// The address of the place `%i{level}`, as `%pp{level}`.
fn pointer(out: &mut String, level: &str, nodes: u64) {
    let _ = write!(
        out,
        "  %o{level} = shl nuw i64 %i{level}, 2
  %pa{level} = add nuw i64 %o{level}, {nodes}
  %pp{level} = inttoptr i64 %pa{level} to ptr
"
    );
}

/// Fetches the line of the place `%i{level}`, and ends.
fn fetch(out: &mut String, level: &str, nodes: u64) {
    pointer(out, level, nodes);
    let _ = write!(
        out,
        "  call void @llvm.prefetch.p0(ptr %pp{level}, i32 0, i32 3, i32 1)
  ret void
"
    );
}

/// Loads the place `%i{level}` as `%e{level}`.
fn place(out: &mut String, level: &str, nodes: u64) {
    pointer(out, level, nodes);
    let _ = write!(
        out,
        "  %e{level} = load i32, ptr %pp{level}, align 4
  %node{level} = icmp slt i32 %e{level}, 0
"
    );
}

/// One level after the other, `%best` at the end.
fn unrolled(out: &mut String, layout: &LpmLayout) {
    root(out, layout);
    place(out, "0", layout.nodes);
    let levels = (layout.bits - layout.root) / 8;
    let mut arms = "[ %e0, %walk ]".to_owned();
    for level in 1..=levels {
        let (above, byte) = (level - 1, (layout.root / 8) + level - 1);
        let _ = write!(
            out,
            "  br i1 %node{above}, label %level{level}, label %done
level{level}:
  %dp{level} = getelementptr i8, ptr %data, i64 {byte}
"
        );
        below(out, &level.to_string(), &above.to_string());
        place(out, &level.to_string(), layout.nodes);
        let _ = write!(arms, ", [ %e{level}, %level{level} ]");
    }
    let _ = writeln!(out, "  br label %done\ndone:\n  %best = phi i32 {arms}");
}

/// All levels below the root in a loop, `%best` at the end.
fn looped(out: &mut String, layout: &LpmLayout) {
    root(out, layout);
    let first = layout.root / 8;
    let _ = write!(
        out,
        "  br label %level
level:
  %i = phi i64 [ %i0, %walk ], [ %idown, %down ]
  %at = phi i64 [ {first}, %walk ], [ %at1, %down ]
"
    );
    place(out, "", layout.nodes);
    let _ = write!(
        out,
        "  br i1 %node, label %down, label %done
down:
  %dpdown = getelementptr i8, ptr %data, i64 %at
"
    );
    below(out, "down", "");
    out.push_str(
        "  %at1 = add nuw i64 %at, 1
  br label %level
done:
  %best = add i32 %e, 0
",
    );
}

/// Levels of nodes.
pub(super) fn stages(layout: &LpmLayout) -> u32 {
    1 + (layout.bits - layout.root) / 8
}

/// Fetches what a look-up of the key will read: `void @ahead{n}x{stage}(ptr worker, ptr key)`. Each stage goes down the levels that those before
/// it have fetched, and fetches the place below.
pub(super) fn ahead(n: usize, layout: &LpmLayout, stage: u32) -> String {
    let mut out = format!(
        "define internal void @ahead{n}x{stage}(ptr %w, ptr %key) alwaysinline {{
  %data = getelementptr i8, ptr %key, i64 4
"
    );
    if stage > stages(layout) {
        out.push_str("  ret void\n}\n");
        return out;
    }
    root(&mut out, layout);
    for level in 1..stage {
        let above = (level - 1).to_string();
        place(&mut out, &above, layout.nodes);
        let _ = writeln!(
            out,
            "  %dpdown{level} = getelementptr i8, ptr %data, i64 {byte}",
            byte = layout.root / 8 + level - 1
        );
        below(&mut out, &format!("down{level}"), &above);
        // Where the walk has ended it stays: a branch would be guessed wrong about as often as lengths differ.
        let _ = writeln!(out, "  %i{level} = select i1 %node{above}, i64 %idown{level}, i64 %i{above}");
    }
    fetch(&mut out, &(stage - 1).to_string(), layout.nodes);
    out.push_str("}\n");
    out
}
