//! The walk through a trie, as code: unrolled for addresses of up to 32 bits, else a loop over the key's bytes.

use std::fmt::Write;

use super::MapInfo;
use crate::runtime::lpm::LpmLayout;

/// `ptr @lookup{n}(ptr worker, ptr key)`. A look-up for fewer bits than an address has goes to the runtime.
pub(super) fn lookup(n: usize, map: &MapInfo, layout: &LpmLayout) -> String {
    let LpmLayout { bits, values, stride, .. } = *layout;
    let (address, size, values) = (map.address, map.key_size, values.wrapping_sub(stride));
    let mut out = format!(
        "define internal ptr @lookup{n}(ptr %w, ptr %key) alwaysinline {{
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
        "  %none = icmp eq i64 %best, 0
  br i1 %none, label %no, label %yes
yes:
  %vo = mul nuw i64 %best, {stride}
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

/// One level after the other, `%best` at the end.
fn unrolled(out: &mut String, layout: &LpmLayout) {
    let LpmLayout { nodes, bits, root, .. } = *layout;
    let whole = address(out, bits);
    let _ = writeln!(out, "  %i0 = lshr i64 {whole}, {}", bits - root);
    let levels = (bits - root) / 8;
    for level in 0..=levels {
        let best = if level == 0 { "0".to_owned() } else { format!("%best{}", level - 1) };
        let _ = write!(
            out,
            "  %o{level} = shl nuw i64 %i{level}, 3
  %pa{level} = add nuw i64 %o{level}, {nodes}
  %pp{level} = inttoptr i64 %pa{level} to ptr
  %e{level} = load i64, ptr %pp{level}, align 8
  %s{level} = and i64 %e{level}, 4294967295
  %z{level} = icmp eq i64 %s{level}, 0
  %best{level} = select i1 %z{level}, i64 {best}, i64 %s{level}
"
        );
        if level == levels {
            let _ = writeln!(out, "  br label %done");
            break;
        }
        let next = level + 1;
        let shift = bits - root - 8 * next;
        let _ = write!(
            out,
            "  %n{level} = lshr i64 %e{level}, 32
  %leaf{level} = icmp eq i64 %n{level}, 0
  br i1 %leaf{level}, label %done, label %level{next}
level{next}:
  %sh{next} = lshr i64 {whole}, {shift}
  %by{next} = and i64 %sh{next}, 255
  %i{next} = add nuw i64 %n{level}, %by{next}
"
        );
    }
    let arms: Vec<String> = (0..=levels)
        .map(|l| format!("[ %best{l}, %{} ]", if l == 0 { "walk".into() } else { format!("level{l}") }))
        .collect();
    let _ = writeln!(out, "done:\n  %best = phi i64 {}", arms.join(", "));
}

/// All levels below the root in a loop, `%best` at the end.
fn looped(out: &mut String, layout: &LpmLayout) {
    let nodes = layout.nodes;
    let _ = write!(
        out,
        "  %r0 = load i16, ptr %data, align 1
  %r1 = call i16 @llvm.bswap.i16(i16 %r0)
  %first = zext i16 %r1 to i64
  br label %level
level:
  %i = phi i64 [ %first, %walk ], [ %in, %down ]
  %at = phi i64 [ 2, %walk ], [ %at1, %down ]
  %best0 = phi i64 [ 0, %walk ], [ %best, %down ]
  %o = shl nuw i64 %i, 3
  %pa = add nuw i64 %o, {nodes}
  %pp = inttoptr i64 %pa to ptr
  %e = load i64, ptr %pp, align 8
  %s = and i64 %e, 4294967295
  %z = icmp eq i64 %s, 0
  %best = select i1 %z, i64 %best0, i64 %s
  %n = lshr i64 %e, 32
  %leaf = icmp eq i64 %n, 0
  br i1 %leaf, label %done, label %down
down:
  %bp = getelementptr i8, ptr %data, i64 %at
  %b = load i8, ptr %bp, align 1
  %bz = zext i8 %b to i64
  %in = add nuw i64 %n, %bz
  %at1 = add nuw i64 %at, 1
  br label %level
done:
"
    );
}
