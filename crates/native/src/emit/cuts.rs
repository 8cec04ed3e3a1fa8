//! The search in a match table's trees of cuts (`classifier::cuts`), as a function of its own: `i64
//! @table{n}(i64 word, ...)`.
//!
//! All trees are searched without a branch: a step counts how many of a node's bounds are below the part of
//! the key, and reads that child; a leaf that is reached before the last step is kept. So searches of several
//! trees overlap, and so do those of packets.

use std::fmt::Write;

use crate::classifier::cuts::{CutClassifier, LANES, LeafComparison, SearchTree, WAYS};

/// Declarations of the intrinsics that these functions call.
pub(super) const DECLARATIONS: &str = "declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.umin.i32(i32, i32)
declare i32 @llvm.cttz.i32(i32, i1)
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.fshr.i32(i32, i32, i32)
";

/// The sign bit of 32 bits; flipping it makes unsigned numbers ordered as signed ones.
const SIGN: i32 = i32::MIN;

/// Text of the function for table number `n`, whose data lies at `base`.
pub(super) fn function(n: usize, cuts: &CutClassifier, base: u64) -> String {
    let params: Vec<String> = (0..cuts.widths.len()).map(|at| format!("i64 %a{at}")).collect();
    let mut out = format!(
        "define internal i64 @table{n}({}) noinline nounwind willreturn memory(read) {{\n",
        params.join(", ")
    );
    for (at, width) in cuts.widths.iter().enumerate() {
        let _ = writeln!(out, "  %w{at} = and i64 %a{at}, {width}");
    }
    let _ = writeln!(out, "  %key = alloca [{} x i32], align 4", cuts.parts.len().max(1));
    for (at, part) in cuts.parts.iter().enumerate() {
        let _ = write!(
            out,
            "  %h{at} = lshr i64 %w{word}, {shift}
  %t{at} = trunc i64 %h{at} to i32
  %k{at} = xor i32 %t{at}, {bias}
  %p{at} = getelementptr i32, ptr %key, i64 {at}
  store i32 %k{at}, ptr %p{at}, align 4
",
            word = part.word,
            shift = part.shift,
            bias = if cuts.rotated { 0 } else { SIGN }
        );
    }
    for &LeafComparison { word, bits, .. } in &cuts.compared {
        if bits < 64 {
            let _ = writeln!(out, "  %c{word} = trunc i64 %w{word} to i{bits}");
        } else {
            let _ = writeln!(out, "  %c{word} = add i64 %w{word}, 0");
        }
        splat(&mut out, &format!("v{word}"), &format!("%c{word}"), bits, LANES);
    }
    for (at, tree) in cuts.trees.iter().enumerate() {
        descend(&mut out, at, tree, cuts, base);
    }
    let mut best = String::new();
    for (at, tree) in cuts.trees.iter().enumerate() {
        compare(&mut out, at, tree, cuts, base);
        best = match at {
            0 => format!("%r{at}"),
            _ => {
                let _ = writeln!(out, "  %b{at} = call i32 @llvm.umin.i32(i32 {best}, i32 %r{at})");
                format!("%b{at}")
            }
        };
    }
    if best.is_empty() {
        out.push_str("  ret i64 -1\n}\n");
        return out;
    }
    let _ = write!(
        out,
        "  %rank = zext i32 {best} to i64
  %ro = shl nuw nsw i64 %rank, 2
  %ra = add nuw i64 %ro, {results}
  %rp = inttoptr i64 %ra to ptr
  %found = load i32, ptr %rp, align 4
  %result = sext i32 %found to i64
  ret i64 %result
}}
",
        results = base + cuts.results as u64
    );
    out
}

/// A vector `%{name}` of a number in all lanes.
fn splat(out: &mut String, name: &str, number: &str, bits: usize, lanes: usize) {
    let _ = write!(
        out,
        "  %{name}.one = insertelement <{lanes} x i{bits}> poison, i{bits} {number}, i64 0
  %{name} = shufflevector <{lanes} x i{bits}> %{name}.one, <{lanes} x i{bits}> poison, <{lanes} x i32> zeroinitializer
"
    );
}

/// From tree number `t`'s root to the complement of the offset of a leaf: `%t{t}.{height}`.
fn descend(out: &mut String, t: usize, tree: &SearchTree, cuts: &CutClassifier, base: u64) {
    let _ = writeln!(out, "  %n{t}.0 = add i32 0, {}", tree.root);
    for level in 0..tree.height {
        let x = format!("{t}.{level}");
        let _ = write!(
            out,
            "  %m{x} = call i32 @llvm.smax.i32(i32 %n{x}, i32 0)
  %z{x} = zext nneg i32 %m{x} to i64
  %a{x} = add nuw i64 %z{x}, {base}
  %p{x} = inttoptr i64 %a{x} to ptr
  %s{x} = load i8, ptr %p{x}, align 4
  %o{x} = zext i8 %s{x} to i64
  %kp{x} = getelementptr i8, ptr %key, i64 %o{x}
  %q{x} = load i32, ptr %kp{x}, align 4
"
        );
        let mut key = format!("%q{x}");
        if cuts.rotated {
            let _ = write!(
                out,
                "  %yp{x} = getelementptr i8, ptr %p{x}, i64 1
  %y{x} = load i8, ptr %yp{x}, align 1
  %by{x} = zext i8 %y{x} to i32
  %f{x} = call i32 @llvm.fshr.i32(i32 {key}, i32 {key}, i32 %by{x})
  %u{x} = xor i32 %f{x}, {SIGN}
"
            );
            key = format!("%u{x}");
        }
        splat(out, &format!("v{x}"), &key, 32, WAYS);
        let _ = write!(
            out,
            "  %l{x} = load <{WAYS} x i32>, ptr %p{x}, align {line}
  %g{x} = icmp sgt <{WAYS} x i32> %v{x}, %l{x}
  %i{x} = bitcast <{WAYS} x i1> %g{x} to i{WAYS}
  %iz{x} = zext i{WAYS} %i{x} to i32
  %j{x} = and i32 %iz{x}, {above}
  %c{x} = call i32 @llvm.ctpop.i32(i32 %j{x})
  %cz{x} = zext nneg i32 %c{x} to i64
  %e{x} = getelementptr i32, ptr %p{x}, i64 %cz{x}
  %d{x} = getelementptr i8, ptr %e{x}, i64 {line}
  %x{x} = load i32, ptr %d{x}, align 4
  %leaf{x} = icmp slt i32 %n{x}, 0
  %n{t}.{next} = select i1 %leaf{x}, i32 %n{x}, i32 %x{x}
",
            line = 4 * WAYS,
            above = (1u64 << WAYS) - 2,
            next = level + 1
        );
    }
}

/// The first matching rule of tree number `t`'s leaf, `%r{t}`, or of the leaves that follow it.
fn compare(out: &mut String, t: usize, tree: &SearchTree, cuts: &CutClassifier, base: u64) {
    let reached = format!("%n{t}.{}", tree.height);
    let mut leaf = reached.clone();
    if tree.chained {
        let _ = write!(
            out,
            "  br label %from{t}
from{t}:
  br label %leaf{t}
leaf{t}:
  %at{t} = phi i32 [ {reached}, %from{t} ], [ %r{t}, %leaf{t} ]
"
        );
        leaf = format!("%at{t}");
    }
    let _ = write!(
        out,
        "  %li{t} = xor i32 {leaf}, -1
  %lz{t} = zext nneg i32 %li{t} to i64
  %la{t} = add nuw i64 %lz{t}, {base}
  %lp{t} = inttoptr i64 %la{t} to ptr
"
    );
    let mut met = String::new();
    for &LeafComparison { word, bits, offset, masked } in &cuts.compared {
        let x = format!("{t}.{word}");
        let vector = format!("<{LANES} x i{bits}>");
        let bytes = LANES * bits / 8;
        let mut load = |name: &str, at: usize| {
            let _ = write!(
                out,
                "  %{name}p{x} = getelementptr i8, ptr %lp{t}, i64 {offset}
  %{name}{x} = load {vector}, ptr %{name}p{x}, align {align}
",
                offset = offset + at * bytes,
                align = 1 << ((offset + at * bytes) | 64).trailing_zeros()
            );
        };
        load("least", 0);
        load("span", 1);
        let mut number = format!("%v{word}");
        if masked {
            load("mask", 2);
            let _ = writeln!(out, "  %under{x} = and {vector} {number}, %mask{x}");
            number = format!("%under{x}");
        }
        let _ = write!(
            out,
            "  %above{x} = sub {vector} {number}, %least{x}
  %in{x} = icmp ule {vector} %above{x}, %span{x}
"
        );
        met = if met.is_empty() {
            format!("%in{x}")
        } else {
            let _ = writeln!(out, "  %all{x} = and <{LANES} x i1> {met}, %in{x}");
            format!("%all{x}")
        };
    }
    if met.is_empty() {
        let _ = writeln!(out, "  %lanes{t} = add i32 0, {}", (1 << LANES) - 1);
    } else {
        let _ = write!(
            out,
            "  %bits{t} = bitcast <{LANES} x i1> {met} to i{LANES}
  %lanes{t} = zext i{LANES} %bits{t} to i32
"
        );
    }
    let _ = write!(
        out,
        "  %or{t} = or i32 %lanes{t}, {none}
  %lane{t} = call i32 @llvm.cttz.i32(i32 %or{t}, i1 true)
  %ez{t} = zext nneg i32 %lane{t} to i64
  %rp{t} = getelementptr i32, ptr %lp{t}, i64 %ez{t}
  %rq{t} = getelementptr i8, ptr %rp{t}, i64 {ranks}
  %r{t} = load i32, ptr %rq{t}, align 4
",
        none = 1 << LANES,
        ranks = cuts.ranks
    );
    if tree.chained {
        let _ = write!(
            out,
            "  %more{t} = icmp slt i32 %r{t}, 0
  br i1 %more{t}, label %leaf{t}, label %done{t}
done{t}:
"
        );
    }
}
