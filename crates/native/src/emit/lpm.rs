//! The walk through a trie, as code: unrolled for addresses of up to 32 bits, otherwise a loop over the key's
//! bytes; or the search by lengths, or among all prefixes.

use std::fmt::Write;

use super::{MapCodegenInfo, hash};
use millstream_native_runtime::lpm::lengths::{ByLengthLayout, LIST};
use millstream_native_runtime::lpm::list::{LANES, ListLayout};
use millstream_native_runtime::lpm::packed::{COUNTS_AT, RUNS_AT};
use millstream_native_runtime::lpm::{LpmLayout, NODE};

/// Index bits of a place, all but [`NODE`].
const INDEX: u32 = !NODE;

/// `ptr @{name}(ptr worker, ptr key)`. A look-up for fewer bits than an address has goes to the runtime.
pub(super) fn lookup(name: &str, map: &MapCodegenInfo, layout: &LpmLayout) -> String {
    let LpmLayout { bits, values, stride, .. } = *layout;
    let (address, size, values) = (map.address, map.key_size, values.wrapping_sub(stride));
    let mut out = String::new();
    if let Some(by_length) = &layout.by_length {
        out.push_str(&hash::lookup(&format!("exact.{name}"), size, &by_length.table));
    }
    let _ = write!(
        out,
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
    match (&layout.by_length, &layout.list, bits) {
        (Some(by_length), ..) => lengths(&mut out, name, bits, by_length),
        (_, Some(list), _) => in_order(&mut out, size, list),
        (None, None, 0..=32) => unrolled(&mut out, layout),
        (None, None, _) => looped(&mut out, layout),
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

/// The whole address as a number, most significant byte first; returns its name.
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

/// The index in the root, `%i0`, from the first bits of an address.
fn root(out: &mut String, layout: &LpmLayout) {
    let first = address(out, layout.root);
    let _ = writeln!(out, "  %i0 = add nuw i64 {first}, 0");
}

/// The byte of the address that selects a place of the node `%e{above}`, as the number `%dz{level}`.
fn byte(out: &mut String, level: &str) {
    let _ = write!(
        out,
        "  %db{level} = load i8, ptr %dp{level}, align 1
  %dz{level} = zext i8 %db{level} to i64
"
    );
}

/// The place `%i{level}` in the node that `%e{above}` names, by the address's byte at `%dp{level}`.
fn below(out: &mut String, level: &str, above: &str) {
    byte(out, level);
    let _ = write!(
        out,
        "  %n{level} = and i32 %e{above}, {INDEX}
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

/// Fetches the line at an address, and ends.
fn fetch(out: &mut String, at: &str) {
    let _ = write!(
        out,
        "  call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 3, i32 1)
  ret void
"
    );
}

/// Computes `%node{level}`: true if `%e{level}` names a node.
fn is_node(out: &mut String, level: &str) {
    let _ = writeln!(out, "  %node{level} = icmp slt i32 %e{level}, 0");
}

/// Loads the place `%i{level}` as `%e{level}`.
fn place(out: &mut String, level: &str, nodes: u64) {
    pointer(out, level, nodes);
    let _ = writeln!(out, "  %e{level} = load i32, ptr %pp{level}, align 4");
    is_node(out, level);
}

/// The number of the packed node that stands for none: the last of the numbers that the root takes.
fn none(layout: &LpmLayout) -> u32 {
    (1 << layout.root >> 8) - 1
}

/// The address of the packed node with the number in `%n{level}`, as `%na{level}`.
fn node(out: &mut String, level: &str, layout: &LpmLayout, packed: u64) {
    let _ = write!(
        out,
        "  %nz{level} = zext i32 %n{level} to i64
  %no{level} = shl nuw i64 %nz{level}, 6
  %na{level} = add i64 %no{level}, {nodes}
",
        nodes = packed.wrapping_sub(u64::from(none(layout)) << 6)
    );
}

/// Loads the word of the address's byte at `%dp{level}` in the packed node at `%na{level}`, as `%e{level}`.
fn word(out: &mut String, level: &str, packed: u64) {
    byte(out, level);
    let _ = write!(
        out,
        "  %part{level} = lshr i64 %dz{level}, 6
  %ko{level} = shl nuw i64 %part{level}, 3
  %ka{level} = add nuw i64 %na{level}, %ko{level}
  %kp{level} = inttoptr i64 %ka{level} to ptr
  %bits{level} = load i64, ptr %kp{level}, align 8
  %not{level} = xor i64 %dz{level}, -1
  %by{level} = and i64 %not{level}, 63
  %begun{level} = shl i64 %bits{level}, %by{level}
  %runs{level} = call i64 @llvm.ctpop.i64(i64 %begun{level})
  %cs{level} = add nuw i64 %na{level}, {COUNTS_AT}
  %ca{level} = add nuw i64 %cs{level}, %part{level}
  %cp{level} = inttoptr i64 %ca{level} to ptr
  %cb{level} = load i8, ptr %cp{level}, align 1
  %cz{level} = zext i8 %cb{level} to i64
  %ra{level} = add nuw i64 %na{level}, {RUNS_AT}
  %rp{level} = inttoptr i64 %ra{level} to ptr
  %rl{level} = load i32, ptr %rp{level}, align 4
  %rz{level} = zext i32 %rl{level} to i64
  %r1{level} = add nuw i64 %rz{level}, %cz{level}
  %r2{level} = add nuw i64 %r1{level}, %runs{level}
  %wo{level} = shl nuw i64 %r2{level}, 2
  %wa{level} = add nuw i64 %wo{level}, {words}
  %wp{level} = inttoptr i64 %wa{level} to ptr
  %e{level} = load i32, ptr %wp{level}, align 4
",
        words = packed
    );
    is_node(out, level);
}

/// Goes down from the node that `%e{above}` names, by the address's byte at `%dp{level}`, to `%e{level}`.
fn down(out: &mut String, level: &str, above: &str, layout: &LpmLayout) {
    match layout.packed {
        None => {
            below(out, level, above);
            place(out, level, layout.nodes);
        }
        Some(packed) => {
            let _ = writeln!(out, "  %n{level} = and i32 %e{above}, {INDEX}");
            node(out, level, layout, packed);
            word(out, level, packed);
        }
    }
}

/// One level after the other; the result is `%best`.
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
        down(out, &level.to_string(), &above.to_string(), layout);
        let _ = write!(arms, ", [ %e{level}, %level{level} ]");
    }
    let _ = writeln!(out, "  br label %done\ndone:\n  %best = phi i32 {arms}");
}

/// All levels below the root in a loop; the result is `%best`.
fn looped(out: &mut String, layout: &LpmLayout) {
    root(out, layout);
    place(out, "0", layout.nodes);
    let _ = write!(
        out,
        "  br i1 %node0, label %level, label %done
level:
  %e = phi i32 [ %e0, %walk ], [ %edown, %level ]
  %at = phi i64 [ {first}, %walk ], [ %at1, %level ]
  %dpdown = getelementptr i8, ptr %data, i64 %at
",
        first = layout.root / 8
    );
    down(out, "down", "", layout);
    out.push_str(
        "  %at1 = add nuw i64 %at, 1
  br i1 %nodedown, label %level, label %done
done:
  %best = phi i32 [ %e0, %walk ], [ %edown, %level ]
",
    );
}

/// All prefixes, several at once; the result is `%best`. A match is found before the end of the list, unless
/// somebody is changing it.
fn in_order(out: &mut String, key_size: u32, layout: &ListLayout) {
    let ListLayout { chunks, count, bytes } = *layout;
    let words = hash::key_words(out, key_size);
    for (at, word) in words.iter().enumerate() {
        let _ = write!(
            out,
            "  %one{at} = insertelement <{LANES} x i64> poison, i64 {word}, i64 0
  %all{at} = shufflevector <{LANES} x i64> %one{at}, <{LANES} x i64> poison, <{LANES} x i32> zeroinitializer
"
        );
    }
    let _ = write!(
        out,
        "  br label %chunk
chunk:
  %ca = phi i64 [ {chunks}, %walk ], [ %next, %more ]
  %chp = inttoptr i64 %ca to ptr
"
    );
    let mut met = String::new();
    for at in 0..words.len() {
        let row = 8 * LANES;
        let _ = write!(
            out,
            "  %wp{at} = getelementptr i8, ptr %chp, i64 {value}
  %value{at} = load <{LANES} x i64>, ptr %wp{at}, align 32
  %mp{at} = getelementptr i8, ptr %chp, i64 {mask}
  %mask{at} = load <{LANES} x i64>, ptr %mp{at}, align 32
  %under{at} = and <{LANES} x i64> %all{at}, %mask{at}
  %same{at} = icmp eq <{LANES} x i64> %under{at}, %value{at}
",
            value = 2 * at * row,
            mask = (2 * at + 1) * row
        );
        met = if at == 0 {
            "%same0".to_owned()
        } else {
            let _ = writeln!(out, "  %met{at} = and <{LANES} x i1> {met}, %same{at}");
            format!("%met{at}")
        };
    }
    let _ = write!(
        out,
        "  %lanes = bitcast <{LANES} x i1> {met} to i8
  %some = icmp ne i8 %lanes, 0
  br i1 %some, label %found, label %more
more:
  %next = add nuw i64 %ca, {bytes}
  %in = icmp ult i64 %next, {end}
  br i1 %in, label %chunk, label %no
found:
  %lane = call i8 @llvm.cttz.i8(i8 %lanes, i1 true)
  %lz = zext i8 %lane to i64
  %slots = getelementptr i8, ptr %chp, i64 {slots}
  %sp = getelementptr i32, ptr %slots, i64 %lz
  %best = load i32, ptr %sp, align 4
",
        end = chunks + count * bytes,
        slots = 2 * words.len() * 8 * LANES
    );
}

/// One length after the other; the result is `%best`.
fn lengths(out: &mut String, name: &str, bits: u32, layout: &ByLengthLayout) {
    let ByLengthLayout { list, stride, .. } = *layout;
    let first = list + LIST;
    let _ = write!(
        out,
        "  %address = load i{bits}, ptr %data, align 1
  %to = getelementptr i8, ptr %copy, i64 4
  %lp = inttoptr i64 {list} to ptr
  %count = load i64, ptr %lp, align 8
  %size = mul nuw i64 %count, {stride}
  %end = add nuw i64 %size, {first}
  %any = icmp ne i64 %count, 0
  br i1 %any, label %try, label %done
try:
  %at = phi i64 [ {first}, %walk ], [ %at1, %next ]
  %ep = inttoptr i64 %at to ptr
  %bits = load i32, ptr %ep, align 8
  %mp = getelementptr i8, ptr %ep, i64 4
  %mask = load i{bits}, ptr %mp, align 1
  %cut = and i{bits} %address, %mask
  store i32 %bits, ptr %copy, align 8
  store i{bits} %cut, ptr %to, align 1
  %found = call ptr @exact.{name}(ptr %w, ptr %copy)
  %absent = icmp eq ptr %found, null
  br i1 %absent, label %next, label %there
next:
  %at1 = add nuw i64 %at, {stride}
  %over = icmp eq i64 %at1, %end
  br i1 %over, label %done, label %try
there:
  %slot1 = load i32, ptr %found, align 8
  br label %done
done:
  %best = phi i32 [ 0, %walk ], [ 0, %next ], [ %slot1, %there ]
"
    );
}

/// Levels of nodes.
pub(super) fn stages(layout: &LpmLayout) -> u32 {
    1 + (layout.bits - layout.root) / 8
}

/// Fetches the lines that a look-up of the key will read: `void @ahead{n}x{stage}(ptr worker, ptr note, ptr
/// key)`. The first stage fetches the place in the root; each other stage reads the line that the previous
/// one has fetched, and fetches the line below. The place is noted, or the number of the packed node.
pub(super) fn ahead(n: usize, layout: &LpmLayout, stage: u32) -> String {
    let mut out = format!(
        "define internal void @ahead{n}x{stage}(ptr %w, ptr %note, ptr %key) alwaysinline {{
  %data = getelementptr i8, ptr %key, i64 4
"
    );
    if stage > stages(layout) {
        out.push_str("  ret void\n}\n");
        return out;
    }
    if stage == 1 {
        root(&mut out, layout);
        note(&mut out, "%i0");
        pointer(&mut out, "0", layout.nodes);
        fetch(&mut out, "%pp0");
    } else {
        let before = layout.root / 8 + stage - 2;
        match layout.packed {
            None => next_place(&mut out, before, layout),
            Some(packed) => next_node(&mut out, before, stage == 2, layout, packed),
        }
    }
    out.push_str("}\n");
    out
}

fn note(out: &mut String, what: &str) {
    let _ = writeln!(out, "  %noted = trunc i64 {what} to i32\n  store i32 %noted, ptr %note, align 4");
}

/// Loads the note, as the number `%{name}`: at most `most`, whoever wrote it.
fn noted(out: &mut String, name: &str, most: u64) {
    let _ = write!(
        out,
        "  %was = load i32, ptr %note, align 4
  %wz = zext i32 %was to i64
  %{name} = call i64 @llvm.umin.i64(i64 %wz, i64 {most})
"
    );
}

/// Goes from the noted place to the one below it by the address's byte `at`, if there is a node, and fetches.
/// A branch would be mispredicted about as often as lengths differ.
fn next_place(out: &mut String, at: u32, layout: &LpmLayout) {
    noted(out, "i", layout.places - 1);
    place(out, "", layout.nodes);
    let _ = writeln!(out, "  %dpdown = getelementptr i8, ptr %data, i64 {at}");
    below(out, "down", "");
    out.push_str("  %inext = select i1 %node, i64 %idown, i64 %i\n");
    note(out, "%inext");
    pointer(out, "next", layout.nodes);
    fetch(out, "%ppnext");
}

/// Goes from the noted place in the root to the packed node below it, or from a packed node by the address's
/// byte before byte `at` to the next one, and fetches it. If the walk has ended, that is the node that stands
/// for none.
fn next_node(out: &mut String, at: u32, from_root: bool, layout: &LpmLayout, packed: u64) {
    if from_root {
        noted(out, "i", layout.places - 1);
        place(out, "", layout.nodes);
    } else {
        noted(out, "m", layout.packed_nodes);
        let _ = write!(
            out,
            "  %no = shl nuw i64 %m, 6
  %na = add nuw i64 %no, {packed}
  %dp = getelementptr i8, ptr %data, i64 {byte}
",
            byte = at - 1
        );
        word(out, "", packed);
    }
    let _ = write!(
        out,
        "  %below = and i32 %e, {INDEX}
  %own = sub i32 %below, {none}
  %mnext = select i1 %node, i32 %own, i32 0
  %mz = zext i32 %mnext to i64
  store i32 %mnext, ptr %note, align 4
  %to = shl nuw i64 %mz, 6
  %ta = add nuw i64 %to, {packed}
  %tp = inttoptr i64 %ta to ptr
",
        none = none(layout)
    );
    fetch(out, "%tp");
}
