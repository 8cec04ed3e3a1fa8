//! The search in a hash table, as code.
//!
//! There is one for each template of the index (`runtime::index`). Hash and comparison take the key as 64-bit
//! words, which LLVM forwards from the stores that built it. The search begins in a function of its own, so
//! that LLVM may leave it out of line.

use std::fmt::Write;

use millstream_native_runtime::hash::HashLayout;
use millstream_native_runtime::hash_function::MULTIPLIER;
use millstream_native_runtime::index::{OTHER, ProbingScheme, WAYS};

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Loads the key's 64-bit words, the last one padded with zeros; returns their names.
pub(super) fn key_words(out: &mut String, key_size: u32) -> Vec<String> {
    let mut words = Vec::new();
    for start in (0..key_size).step_by(8) {
        let mut left = (key_size - start).min(8);
        let (mut at, mut word) = (start, None::<String>);
        while left > 0 {
            let size = [8, 4, 2, 1].into_iter().find(|s| *s <= left).unwrap_or(1);
            let bits = 8 * size;
            let _ = writeln!(out, "  %kp{at} = getelementptr i8, ptr %key, i64 {at}");
            let _ = writeln!(out, "  %kl{at} = load i{bits}, ptr %kp{at}, align 1");
            let mut part = format!("%kl{at}");
            if bits < 64 {
                let _ = writeln!(out, "  %kz{at} = zext i{bits} {part} to i64");
                let _ = writeln!(out, "  %ks{at} = shl i64 %kz{at}, {}", 8 * (at - start));
                part = format!("%ks{at}");
            }
            word = Some(match word {
                None => part,
                Some(before) => {
                    let _ = writeln!(out, "  %ko{at} = or i64 {before}, {part}");
                    format!("%ko{at}")
                }
            });
            (at, left) = (at + size, left - size);
        }
        words.extend(word);
    }
    words
}

/// Computes the hash of a key of these words, as `%{name}`.
fn hashed(out: &mut String, words: &[String], layout: &HashLayout, name: &str) {
    let (n, mut state) = (name, layout.seed.to_string());
    for (i, word) in words.iter().enumerate() {
        let _ = write!(
            out,
            "  %x{n}{i} = xor i64 {state}, {word}
  %w{n}{i} = zext i64 %x{n}{i} to i128
  %m{n}{i} = mul i128 %w{n}{i}, {MULTIPLIER}
  %l{n}{i} = trunc i128 %m{n}{i} to i64
  %s{n}{i} = lshr i128 %m{n}{i}, 64
  %h{n}{i} = trunc i128 %s{n}{i} to i64
  %f{n}{i} = xor i64 %l{n}{i}, %h{n}{i}
"
        );
        state = format!("%f{n}{i}");
    }
    let _ = write!(
        out,
        "  %hs{n} = lshr i64 {state}, 32
  %hx{n} = xor i64 {state}, %hs{n}
  %{n} = trunc i64 %hx{n} to i32
"
    );
}

/// Computes the tag that places have beside the slot, for the key of these words: its hash, `%hash`, or the
/// key itself, as `%tag`. Returns the name; that of the hash also if places have neither.
fn tag(out: &mut String, words: &[String], layout: &HashLayout) -> &'static str {
    match (layout.template.has_keys(), words) {
        (true, [word, ..]) => {
            let _ = writeln!(out, "  %tag = trunc i64 {word} to i32");
            "%tag"
        }
        _ => "%hash",
    }
}

/// `ptr @{name}(ptr worker, ptr key)` and the search.
pub(super) fn lookup(name: &str, key_size: u32, layout: &HashLayout) -> String {
    let mut out = format!("define internal ptr @{name}(ptr %w, ptr %key) alwaysinline {{\n");
    let words = key_words(&mut out, key_size);
    hashed(&mut out, &words, layout, "hash");
    let passed: String = words.iter().map(|word| format!(", i64 {word}")).collect();
    let _ = write!(
        out,
        "  %r = call ptr @search.{name}(i32 %hash{passed})
  ret ptr %r
}}
"
    );
    search(&mut out, name, words.len(), layout);
    out
}

/// Fetches the lines that a look-up of the key will read: `void @ahead{n}x{stage}(ptr worker, ptr note, ptr
/// key)`; the key's tag is noted for the second stage. The first stage fetches the place in the index, or the
/// first bucket, which contains most entries; the second reads these and fetches the element, or the other
/// bucket. The number of lines in flight limits this loop, so lines that are rarely read are not fetched.
pub(super) fn ahead(n: usize, key_size: u32, layout: &HashLayout, stage: u32) -> String {
    let mut out =
        format!("define internal void @ahead{n}x{stage}(ptr %w, ptr %note, ptr %key) alwaysinline {{\n");
    let tag = match (stage, layout.template.has_keys()) {
        (1, _) => {
            let words = key_words(&mut out, key_size);
            hashed(&mut out, &words, layout, "hash");
            let tag = tag(&mut out, &words, layout);
            let _ = writeln!(out, "  store i32 {tag}, ptr %note, align 4");
            tag
        }
        (2, false) => {
            out.push_str("  %hash = load i32, ptr %note, align 4\n");
            "%hash"
        }
        (2, true) => {
            out.push_str("  %tag = load i32, ptr %note, align 4\n  %noted = zext i32 %tag to i64\n");
            hashed(&mut out, &["%noted".to_owned()], layout, "hash");
            "%tag"
        }
        _ => {
            out.push_str("  ret void\n}\n");
            return out;
        }
    };
    let HashLayout { elements, stride, .. } = *layout;
    let (place, bucket) = (layout.template.place(), layout.template.place() * WAYS);
    match layout.template.search() {
        ProbingScheme::Open | ProbingScheme::RobinHood => {
            let _ = writeln!(out, "  %home = and i32 %hash, {}", layout.mask);
            address(&mut out, "%home", "ap", layout.index, place.trailing_zeros());
        }
        ProbingScheme::Cuckoo => {
            buckets(&mut out, layout);
            address(&mut out, "%one", "ap", layout.index, bucket.trailing_zeros());
        }
    }
    if stage == 1 {
        fetch(&mut out, "%ap");
        out.push_str("  ret void\n}\n");
        return out;
    }
    let mut from = "%ap";
    if layout.template.search() == ProbingScheme::Cuckoo {
        let found = matching(&mut out, "ap", tag, layout);
        let _ = write!(
            out,
            "  %bit = call i8 @llvm.cttz.i8(i8 {found}, i1 false)
  %way = and i8 %bit, {last}
  %wz = zext i8 %way to i64
  %wp = getelementptr i{bits}, ptr %ap, i64 %wz
",
            last = WAYS - 1,
            bits = 8 * place
        );
        from = "%wp";
    }
    entry(&mut out, from, layout);
    let _ = write!(
        out,
        "  %slot = and i64 %e, 4294967295
  %so = mul nuw i64 %slot, {stride}
  %element = add nuw i64 %so, {elements}
  %there = inttoptr i64 %element to ptr
",
        elements = elements.wrapping_sub(stride)
    );
    let mut at = "%there";
    if layout.template.search() == ProbingScheme::Cuckoo {
        // A branch would be mispredicted.
        address(&mut out, "%two", "bp", layout.index, bucket.trailing_zeros());
        let _ = writeln!(out, "  %none = icmp eq i8 %map, 0\n  %ep = select i1 %none, ptr %bp, ptr %there");
        at = "%ep";
    }
    fetch(&mut out, at);
    if !LINE.is_multiple_of(stride) {
        // The element may span two lines; if it is longer the key is in the first two.
        let _ = writeln!(out, "  %second = getelementptr i8, ptr {at}, i64 {}", (stride - 1).min(LINE));
        fetch(&mut out, "%second");
    }
    out.push_str("  ret void\n}\n");
    out
}

/// Loads the word of the place at `{at}`, as `%e`.
fn entry(out: &mut String, at: &str, layout: &HashLayout) {
    let _ = match layout.template.is_bare() {
        true => writeln!(out, "  %es = load i32, ptr {at}, align 4\n  %e = zext i32 %es to i64"),
        false => writeln!(out, "  %e = load i64, ptr {at}, align 8"),
    };
}

fn fetch(out: &mut String, at: &str) {
    let _ = writeln!(out, "  call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 3, i32 1)");
}

/// The address of place or bucket number `at`, as `%{name}`; each has `1 << shift` bytes.
fn address(out: &mut String, at: &str, name: &str, index: u64, shift: u32) {
    let _ = write!(
        out,
        "  %z{name} = zext i32 {at} to i64
  %o{name} = shl nuw i64 %z{name}, {shift}
  %a{name} = add nuw i64 %o{name}, {index}
  %{name} = inttoptr i64 %a{name} to ptr
"
    );
}

/// The two buckets of `%hash`, as `%one` and `%two`.
fn buckets(out: &mut String, layout: &HashLayout) {
    let _ = write!(
        out,
        "  %one = and i32 %hash, {mask}
  %mixed = mul i32 %hash, {OTHER}
  %high = lshr i32 %mixed, {shift}
  %odd = or i32 %high, 1
  %two = xor i32 %one, %odd
",
        mask = layout.mask,
        shift = layout.mask.leading_zeros()
    );
}

/// The ways of the bucket at `%{at}` that have this tag or, without tags, all that are not empty, one bit
/// each; returns the name.
fn matching(out: &mut String, at: &str, tag: &str, layout: &HashLayout) -> String {
    if layout.template.is_bare() {
        let _ = write!(
            out,
            "  %w{at} = load <{WAYS} x i32>, ptr %{at}, align {align}
  %b{at} = icmp ne <{WAYS} x i32> %w{at}, zeroinitializer
  %m{at} = bitcast <{WAYS} x i1> %b{at} to i8
",
            align = 4 * WAYS
        );
        return format!("%m{at}");
    }
    let _ = write!(
        out,
        "  %w{at} = load <{WAYS} x i64>, ptr %{at}, align 64
  %h{at} = lshr <{WAYS} x i64> %w{at}, <{shift}>
  %t{at} = trunc <{WAYS} x i64> %h{at} to <{WAYS} x i32>
  %i{at} = insertelement <{WAYS} x i32> poison, i32 {tag}, i64 0
  %s{at} = shufflevector <{WAYS} x i32> %i{at}, <{WAYS} x i32> poison, <{WAYS} x i32> zeroinitializer
  %q{at} = icmp eq <{WAYS} x i32> %t{at}, %s{at}
  %n{at} = icmp ne <{WAYS} x i64> %w{at}, zeroinitializer
  %b{at} = and <{WAYS} x i1> %q{at}, %n{at}
  %m{at} = bitcast <{WAYS} x i1> %b{at} to i8
",
        shift = ["i64 32"; WAYS as usize].join(", ")
    );
    format!("%m{at}")
}

/// The search, from the hash on.
fn search(out: &mut String, name: &str, words: usize, layout: &HashLayout) {
    let HashLayout { elements, stride, key, value, marks, .. } = *layout;
    let params: String = (0..words).map(|i| format!(", i64 %k{i}")).collect();
    let _ = writeln!(out, "define internal ptr @search.{name}(i32 %hash{params}) {{");
    let words: Vec<String> = (0..words).map(|i| format!("%k{i}")).collect();
    let tag = tag(out, &words, layout);
    match layout.template.search() {
        ProbingScheme::Open | ProbingScheme::RobinHood => probes(out, layout, tag, words.len()),
        ProbingScheme::Cuckoo => ways(out, layout, tag),
    }
    let _ = write!(
        out,
        "compare:
  %slot = and i64 %e, 4294967295
  %so = mul nuw i64 %slot, {stride}
  %element = add nuw i64 %so, {elements}
",
        // Slots are stored plus one.
        elements = elements.wrapping_sub(stride)
    );
    match layout.template.has_keys() {
        // The place had the key.
        true => out.push_str("  br label %yes\nyes:\n"),
        false => {
            let _ = writeln!(out, "  %ka = add nuw i64 %element, {key}\n  %kp = inttoptr i64 %ka to ptr");
            compare(out, words.len());
            out.push_str("  br i1 %equal, label %yes, label %miss\nyes:\n");
        }
    }
    if marks {
        out.push_str(MARK);
    }
    let _ = write!(
        out,
        "  %va = add nuw i64 %element, {value}
  %vp = inttoptr i64 %va to ptr
  ret ptr %vp
no:
  ret ptr null
}}
"
    );
}

/// Probes places in order, from the hash's own to an empty one, or to one whose entry is nearer to its own if
/// that ends a search: places with the tag go as `%e` to `compare`, which continues at `miss`.
fn probes(out: &mut String, layout: &HashLayout, tag: &str, words: usize) {
    let mask = layout.mask;
    let _ = write!(
        out,
        "  %home = and i32 %hash, {mask}
  br label %try
try:
  %at = phi i32 [ %home, %0 ], [ %next, %on ]
"
    );
    address(out, "%at", "ap", layout.index, layout.template.place().trailing_zeros());
    entry(out, "%ap", layout);
    out.push_str("  %empty = icmp eq i64 %e, 0\n  br i1 %empty, label %no, label %there\nthere:\n");
    match layout.template.is_bare() {
        true => out.push_str("  br label %compare\nmiss:\n"),
        false => {
            let _ = write!(
                out,
                "  %eh = lshr i64 %e, 32
  %eht = trunc i64 %eh to i32
  %same = icmp eq i32 %eht, {tag}
  br i1 %same, label %compare, label %miss
miss:
"
            );
        }
    }
    if layout.template.search() == ProbingScheme::RobinHood {
        let mut its = "%eht";
        if layout.template.has_keys() {
            hashed(out, &["%eh".to_owned()], layout, "its");
            its = "%its";
        } else if layout.template.is_bare() {
            // On a miss these words have been compared.
            let theirs: Vec<String> = (0..words).map(|i| format!("%v{i}")).collect();
            hashed(out, &theirs, layout, "its");
            its = "%its";
        }
        let _ = write!(
            out,
            "  %fm = sub i32 %at, %hash
  %far = and i32 %fm, {mask}
  %nm = sub i32 %at, {its}
  %near = and i32 %nm, {mask}
  %nearer = icmp ult i32 %near, %far
  br i1 %nearer, label %no, label %on
"
        );
    } else {
        out.push_str("  br label %on\n");
    }
    let _ = write!(
        out,
        "on:
  %n1 = add i32 %at, 1
  %next = and i32 %n1, {mask}
  br label %try
"
    );
}

/// Probes the ways of one bucket, then of the other: those with the tag go as `%e` to `compare`, which
/// continues at `miss`. A way is read again after its bucket: another worker may have moved the entry
/// meanwhile, and an empty place has no element; nor has another entry this key, if no key is compared after
/// this.
fn ways(out: &mut String, layout: &HashLayout, tag: &str) {
    buckets(out, layout);
    out.push_str(
        "  br label %bucket
bucket:
  %at = phi i32 [ %one, %0 ], [ %two, %over ]
  %last = phi i1 [ false, %0 ], [ true, %over ]
",
    );
    let place = layout.template.place();
    address(out, "%at", "ap", layout.index, (place * WAYS).trailing_zeros());
    let first = matching(out, "ap", tag, layout);
    let gone = match layout.template.has_keys() {
        true => format!(
            "  %eh = lshr i64 %e, 32
  %eht = trunc i64 %eh to i32
  %other = icmp ne i32 %eht, {tag}
  %vacant = icmp eq i64 %e, 0
  %gone = or i1 %other, %vacant
"
        ),
        false => "  %gone = icmp eq i64 %e, 0\n".to_owned(),
    };
    let _ = write!(
        out,
        "  br label %any
any:
  %left = phi i8 [ {first}, %bucket ], [ %rest, %miss ]
  %none = icmp eq i8 %left, 0
  br i1 %none, label %over, label %candidate
candidate:
  %bit = call i8 @llvm.cttz.i8(i8 %left, i1 true)
  %wz = zext i8 %bit to i64
  %wp = getelementptr i{bits}, ptr %ap, i64 %wz
",
        bits = 8 * place
    );
    entry(out, "%wp", layout);
    let _ = write!(
        out,
        "{gone}  br i1 %gone, label %miss, label %compare
miss:
  %less = sub i8 %left, 1
  %rest = and i8 %left, %less
  br label %any
over:
  br i1 %last, label %no, label %bucket
"
    );
}

/// Marks an element of an LRU table as used.
const MARK: &str = "  %mp = inttoptr i64 %element to ptr
  %mark = load i8, ptr %mp, align 8
  %marked = icmp ne i8 %mark, 0
  br i1 %marked, label %found, label %mark.it
mark.it:
  store i8 1, ptr %mp, align 8
  br label %found
found:
";

/// Compares all words of the element's key with those of the sought key.
fn compare(out: &mut String, words: usize) {
    let mut differs = String::new();
    for i in 0..words {
        let _ = write!(
            out,
            "  %p{i} = getelementptr i8, ptr %kp, i64 {at}
  %v{i} = load i64, ptr %p{i}, align 8
  %x{i} = xor i64 %v{i}, %k{i}
",
            at = 8 * i
        );
        if i == 0 {
            differs = "%x0".to_owned();
        } else {
            let _ = writeln!(out, "  %d{i} = or i64 {differs}, %x{i}");
            differs = format!("%d{i}");
        }
    }
    let _ = writeln!(out, "  %equal = icmp eq i64 {differs}, 0");
}
