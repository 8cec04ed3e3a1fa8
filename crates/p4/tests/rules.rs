//! Rules of the language, with programs that keep them and programs that break them.
//!
//! Each file of `tests/rules` has sections: `//// accepted RULE` has no errors, `//// rejected RULE` has
//! some, and `//// warned RULE` has warnings alone. The snapshots hold the diagnostics.

mod common;

use std::fmt::Write;
use std::path::Path;

use millstream_p4::SourceDiagnostic;

/// A program of a rule.
struct RuleSection<'t> {
    verdict: &'t str,
    rule: &'t str,
    text: &'t str,
}

fn sections(text: &str) -> Vec<RuleSection<'_>> {
    let parts = text.split("//// ").skip(1);
    parts
        .map(|part| {
            let (title, text) = part.split_once('\n').unwrap_or((part, ""));
            let (verdict, rule) = title.split_once(' ').unwrap_or((title, ""));
            RuleSection { verdict, rule, text }
        })
        .collect()
}

/// Checks the sections of a file, and gives their diagnostics.
fn check(topic: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules").join(topic).with_extension("p4");
    let text = std::fs::read_to_string(path).expect("a file of rules");
    let mut report = String::new();
    for section in sections(&text) {
        let program = common::through(section.text, None);
        let errors = program.diagnostics.iter().filter(|d| d.is_error()).count();
        let warnings = program.diagnostics.len() - errors;
        let found: Vec<String> = program
            .diagnostics
            .iter()
            .map(|d: &SourceDiagnostic| d.render(&program.sources).to_string())
            .collect();
        let is_right = match section.verdict {
            "accepted" => errors == 0,
            "rejected" => errors > 0,
            "warned" => errors == 0 && warnings > 0,
            _ => false,
        };
        assert!(is_right, "{topic}: {} {}\n{}", section.verdict, section.rule, found.join("\n"));
        if section.verdict != "accepted" {
            writeln!(report, "# {}\n{}", section.rule, found.join("\n")).expect("text");
        }
    }
    report
}

macro_rules! topics {
    ($($topic:ident)*) => {
        $(#[test]
        fn $topic() {
            insta::assert_snapshot!(check(stringify!($topic)));
        })*
    };
}

topics! { preprocessor syntax types expressions calls parsers tables statements externs annotations warnings }
