//! Two small programs, one an optimized form of the other: rows, causes, text and page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use millstream_object::{Object, RawInput};
use millstream_opt::{InsnOrigin, OptimizeOptions, SearchEngine, WindowReplacement, trace};

use super::diff::{self, DiffKind, FunctionDiff, SourceLine};
use super::text::DiffStyle;
use super::{ExplainReport, ProgramProof, html, text, windows};

const BEFORE: &str =
    concat!(include_str!("../../../cli/tests/count.s"), "r4 = 1\nr4 <<= 1\nout:\nr0 = 2\nexit");

const AFTER: &str = "
    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    r1 = 0 ll
    call bpf_map_lookup_elem#1
    if r0 == 0 goto out
    r1 = 1
    lock *(u64 *)(r0 + 0) += r1
out:
    r0 = 2
    exit";

/// Compares a result with the file of this name. With MILLSTREAM_BLESS it writes the result there, to be read
/// before it is kept.
fn expect(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/explain/snapshots").join(file);
    if std::env::var_os("MILLSTREAM_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == found, "{} should be:\n{found}", path.display());
}

/// A raw program that looks a key up in the map `counts`.
fn program(source: &str) -> Object {
    let mut slots = encode_all(&assemble(source).unwrap());
    slots.iter_mut().filter(|i| i.code == 0x18).for_each(|i| i.src = 1);
    let insns: Vec<u8> = slots.into_iter().flat_map(RawInsn::to_bytes).collect();
    let maps = b"counts { type = 6, key_size = 4, value_size = 8, max_entries = 4, fd = 0 }";
    let files = RawInput { insns: &insns, maps: Some(maps), desc: None };
    Object::parse_raw("count_xdp.insns", files, None).unwrap()
}

fn both() -> FunctionDiff {
    let (a, b) = (program(BEFORE), program(AFTER));
    diff::compare((&a, 0), (&b, &b.functions[0]), None).unwrap()
}

/// A report with lines and causes as an object with BTF has them.
fn report() -> ExplainReport {
    let mut both = both();
    let line = |number, text: &str| SourceLine { file: "count.bpf.c".into(), number, text: text.into() };
    both.lines =
        vec![line(7, "__u32 key = 0;"), line(9, "if (count && *count < 9)"), line(12, "return XDP_PASS;")];
    for row in &mut both.rows {
        for (insn, ends) in [(&mut row.before, [7, 14]), (&mut row.after, [6, 9])] {
            if let Some(insn) = insn {
                insn.line = Some(ends.iter().filter(|end| insn.slot >= **end).count());
            }
        }
    }
    let found = WindowReplacement {
        engine: SearchEngine::Chain,
        slot: 8,
        before: vec!["r3 += 1".into()],
        after: vec!["lock *(u64 *)(r0 +0) += r1".into()],
        solver: true,
        rule: None,
    };
    let lost = WindowReplacement { after: vec!["r9 = 9".into()], ..found.clone() };
    let mut functions = vec![both];
    let windows = windows::place([&found, &lost].into_iter(), &mut functions);
    let proof = ProgramProof {
        program: "count_xdp".into(),
        verdict: "equivalent",
        reason: None,
        same: 9,
        queries: 2,
    };
    ExplainReport {
        schema: 2,
        a: "dir/<count>.o".into(),
        b: None,
        causes_known: true,
        proofs: vec![proof],
        functions,
        removed: vec!["helper".into()],
        windows,
    }
}

#[test]
fn the_text_shows_both_forms_lines_and_causes() {
    expect("text.txt", &text::text(&report(), &DiffStyle { width: 100, ..DiffStyle::default() }));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = html::page(&report());
    for outside in ["src=", "href=\"http", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("What millstream opt made of &lt;count&gt;.o") && !page.contains("<count>"));
    expect("page.html", &page);
}

#[test]
fn colours_are_there_only_if_wanted() {
    let colour = |colour| text::text(&report(), &DiffStyle { colour, width: 100, ..DiffStyle::default() });
    assert!(colour(true).contains("\x1b[31m") && !colour(false).contains('\x1b'));
}

#[test]
fn every_instruction_is_in_one_row() {
    let both = both();
    let slots =
        |side: fn(&diff::DiffRow) -> Option<usize>| both.rows.iter().filter_map(side).collect::<Vec<_>>();
    let before = slots(|r| r.before.as_ref().map(|i| i.slot));
    assert_eq!(before, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    let after = slots(|r| r.after.as_ref().map(|i| i.slot));
    assert_eq!(after, [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]);
    assert_eq!(
        both.changes.iter().map(|c| c.slots.0).sum::<usize>() - 5,
        both.changes.iter().map(|c| c.slots.1).sum::<usize>()
    );
}

#[test]
fn the_same_program_has_no_changes() {
    let a = program(BEFORE);
    let both = diff::compare((&a, 0), (&a, &a.functions[0]), None).unwrap();
    assert!(both.changes.is_empty() && both.rows.iter().all(|r| r.kind == DiffKind::Same));
}

#[test]
fn what_the_compiler_did_is_said_with_the_passes_that_did_it() {
    let a = program(BEFORE);
    let traced = trace(&a, &OptimizeOptions::default()).unwrap();
    let origins: Vec<Option<InsnOrigin>> = traced.origins.unwrap().remove(0);
    let touched: BTreeMap<InsnOrigin, BTreeSet<&'static str>> = traced.touched;
    let known = diff::CodeProvenance { origins: &origins, touched: &touched };
    let b = traced.optimized.object;
    let both = diff::compare((&a, 0), (&b, &b.functions[0]), Some(&known)).unwrap();
    let dead = both.changes.iter().find(|c| {
        both.rows[c.rows.0..c.rows.1].iter().any(|r| r.before.as_ref().is_some_and(|i| i.text == "r4 <<= 1"))
    });
    let causes: Vec<&str> = dead.unwrap().causes.iter().map(|c| c.name.as_str()).collect();
    assert!(!causes.is_empty() && !causes.contains(&"lower"), "{causes:?}");
}
