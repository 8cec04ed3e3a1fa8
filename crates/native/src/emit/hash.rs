//! The search in a hash table, as code.
//!
//! Hash and comparison take the key as 64-bit words, which LLVM makes of the stores that built it. Searching begins in a
//! function of its own, so that LLVM may leave it out of line.

use std::fmt::Write;

use crate::runtime::hash::{HashLayout, MULTIPLIER};

/// Loads the key's 64-bit words, the last one padded with zeros; gives their names.
fn key_words(out: &mut String, key_size: u32) -> Vec<String> {
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

/// Computes the key's hash as `%hash`; gives the names of its words.
fn hashed(out: &mut String, key_size: u32, layout: &HashLayout) -> Vec<String> {
    let words = key_words(out, key_size);
    let mut state = layout.seed.to_string();
    for (i, word) in words.iter().enumerate() {
        let _ = write!(
            out,
            "  %x{i} = xor i64 {state}, {word}
  %w{i} = zext i64 %x{i} to i128
  %m{i} = mul i128 %w{i}, {MULTIPLIER}
  %l{i} = trunc i128 %m{i} to i64
  %s{i} = lshr i128 %m{i}, 64
  %h{i} = trunc i128 %s{i} to i64
  %f{i} = xor i64 %l{i}, %h{i}
"
        );
        state = format!("%f{i}");
    }
    let _ = write!(
        out,
        "  %hs = lshr i64 {state}, 32
  %hx = xor i64 {state}, %hs
  %hash = trunc i64 %hx to i32
"
    );
    words
}

/// `ptr @lookup{n}(ptr worker, ptr key)` and the search.
pub(super) fn lookup(n: usize, key_size: u32, layout: &HashLayout) -> String {
    let mut out = format!("define internal ptr @lookup{n}(ptr %w, ptr %key) alwaysinline {{\n");
    let words = hashed(&mut out, key_size, layout);
    let passed: String = words.iter().map(|word| format!(", i64 {word}")).collect();
    let _ = write!(
        out,
        "  %r = call ptr @search{n}(i32 %hash{passed})
  ret ptr %r
}}
"
    );
    search(&mut out, n, words.len(), layout);
    out
}

/// Fetches what a look-up of the key will read: `void @ahead{n}x{stage}(ptr worker, ptr key)`. The first stage fetches the place in
/// the index, the second reads it and fetches the element.
pub(super) fn ahead(n: usize, key_size: u32, layout: &HashLayout, stage: u32) -> String {
    let HashLayout { index, mask, elements, stride, .. } = *layout;
    let elements = elements.wrapping_sub(stride);
    let mut out = format!("define internal void @ahead{n}x{stage}(ptr %w, ptr %key) alwaysinline {{\n");
    hashed(&mut out, key_size, layout);
    let _ = write!(
        out,
        "  %home = and i32 %hash, {mask}
  %az = zext i32 %home to i64
  %ao = shl nuw i64 %az, 3
  %aa = add nuw i64 %ao, {index}
  %ap = inttoptr i64 %aa to ptr
"
    );
    let _ = match stage {
        1 => write!(
            out,
            "  call void @llvm.prefetch.p0(ptr %ap, i32 0, i32 3, i32 1)
  ret void
}}
"
        ),
        _ => write!(
            out,
            "  %e = load i64, ptr %ap, align 8
  %slot = and i64 %e, 4294967295
  %so = mul nuw i64 %slot, {stride}
  %element = add nuw i64 %so, {elements}
  %ep = inttoptr i64 %element to ptr
  call void @llvm.prefetch.p0(ptr %ep, i32 0, i32 3, i32 1)
  ret void
}}
"
        ),
    };
    out
}

/// The search from the hash on.
fn search(out: &mut String, n: usize, words: usize, layout: &HashLayout) {
    let HashLayout { index, mask, elements, stride, key, value, marks, .. } = *layout;
    let params: String = (0..words).map(|i| format!(", i64 %k{i}")).collect();
    // Slots are stored plus one.
    let elements = elements.wrapping_sub(stride);
    let _ = write!(
        out,
        "define internal ptr @search{n}(i32 %hash{params}) {{
  %home = and i32 %hash, {mask}
  br label %try
try:
  %at = phi i32 [ %home, %0 ], [ %next, %miss ]
  %az = zext i32 %at to i64
  %ao = shl nuw i64 %az, 3
  %aa = add nuw i64 %ao, {index}
  %ap = inttoptr i64 %aa to ptr
  %e = load i64, ptr %ap, align 8
  %empty = icmp eq i64 %e, 0
  br i1 %empty, label %no, label %there
there:
  %eh = lshr i64 %e, 32
  %eht = trunc i64 %eh to i32
  %same = icmp eq i32 %eht, %hash
  br i1 %same, label %compare, label %miss
compare:
  %slot = and i64 %e, 4294967295
  %so = mul nuw i64 %slot, {stride}
  %element = add nuw i64 %so, {elements}
  %ka = add nuw i64 %element, {key}
  %kp = inttoptr i64 %ka to ptr
"
    );
    compare(out, words);
    let _ = write!(
        out,
        "  br i1 %equal, label %yes, label %miss
miss:
  %n1 = add i32 %at, 1
  %next = and i32 %n1, {mask}
  br label %try
yes:
"
    );
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

/// Whether all words of the element's key are those that are searched for.
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
