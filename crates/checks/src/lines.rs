//! Lines over 120 columns. A column is a character.
//!
//! Exempt are:
//!
//! - rows of Markdown tables, in pages and in comments (lines of a comment that begin with `|`);
//! - lines of one word without white space that holds a link (`://` or `](`), behind nothing but marks of
//!   comments, lists, quotes and link definitions, since there is no place at which they can be broken;
//! - pages that a program writes: [`GENERATED_PAGES`];
//! - inline snapshots of insta: lines of a string literal behind `@` in a macro (its files are neither Rust
//!   nor Markdown);
//! - lines with a string literal of more than 80 columns that is one path: without white space, and with a
//!   `/` or `::`.
//!
//! Code blocks of pages are not exempt.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use pulldown_cmark::{Event, Options, Parser, Tag};

use crate::figure::{FigurePlace, MeasuredFigure};
use crate::files::{MarkdownPage, RustFile};
use crate::repository::SourceRepository;
use crate::tokens::{each_sequence, is_punct, string_text};

const MAX_COLUMNS: usize = 120;

/// Length of a string literal from which breaking its line does not help.
const LONG_LITERAL: usize = 80;

/// Pages that a program writes, each of which says so at its head.
const GENERATED_PAGES: [&str; 2] = ["docs/click-classes.md", "docs/kernels.md"];

pub(crate) fn measure(repository: &SourceRepository) -> Vec<MeasuredFigure> {
    let (mut sources, mut tests) = (Vec::new(), Vec::new());
    for file in &repository.files {
        let exempt = exempt_in_rust(file);
        for found in long_lines(&file.path, &file.text, &exempt) {
            if file.is_test_line(found.line) { tests.push(found) } else { sources.push(found) }
        }
    }
    let pages = repository.pages.iter().filter(|page| !GENERATED_PAGES.contains(&page.path.as_str()));
    let pages = pages.flat_map(|page| long_lines(&page.path, &page.text, &table_lines(page))).collect();
    vec![
        MeasuredFigure::count("long_lines_of_sources", sources),
        MeasuredFigure::count("long_lines_of_tests", tests),
        MeasuredFigure::count("long_lines_of_pages", pages),
    ]
}

fn long_lines(path: &str, text: &str, exempt: &BTreeSet<usize>) -> Vec<FigurePlace> {
    let lines = (1..).zip(text.lines()).map(|(line, text)| (line, text, text.chars().count()));
    let long = lines.filter(|(line, text, columns)| {
        *columns > MAX_COLUMNS && !exempt.contains(line) && !is_comment_table(text) && !is_link_alone(text)
    });
    long.map(|(line, _, columns)| FigurePlace {
        path: path.to_owned(),
        line,
        weight: columns as f64,
        text: format!("{columns} columns"),
    })
    .collect()
}

/// Reports whether a line is a table's row in a comment.
fn is_comment_table(line: &str) -> bool {
    line.trim_start()
        .strip_prefix("//")
        .is_some_and(|rest| rest.trim_start_matches(['/', '!', ' ']).starts_with('|'))
}

/// Reports whether a line is one unbreakable word with a link, behind marks.
fn is_link_alone(line: &str) -> bool {
    let is_mark = |word: &str| {
        let number = word.trim_end_matches(['.', ')']);
        ["//", "///", "//!", "-", "*", "+", ">"].contains(&word)
            || number != word && number.chars().all(|c| c.is_ascii_digit())
            || word.starts_with('[') && word.ends_with("]:")
    };
    let mut words = line.split_whitespace().skip_while(|word| is_mark(word));
    let link = words.next().unwrap_or_default();
    (link.contains("://") || link.contains("](")) && words.next().is_none()
}

/// Finds lines of literals that cannot be broken, or must not be.
fn exempt_in_rust(file: &RustFile) -> BTreeSet<usize> {
    let mut exempt = BTreeSet::new();
    if file.text.lines().all(|line| line.len() <= MAX_COLUMNS) {
        return exempt;
    }
    // The file was parsed before, so it has tokens.
    let tokens: TokenStream = file.text.parse().unwrap_or_default();
    each_sequence(tokens, &mut |sequence| {
        for (at, token) in sequence.iter().enumerate() {
            let TokenTree::Literal(literal) = token else { continue };
            let written = literal.to_string();
            let Some(text) = string_text(&written) else { continue };
            let is_snapshot = at > 0 && is_punct(sequence.get(at - 1), '@');
            let is_path = (text.contains('/') || text.contains("::"))
                && !text.contains(char::is_whitespace)
                && text.chars().count() > LONG_LITERAL;
            if is_snapshot || is_path {
                let span = literal.span();
                exempt.extend(span.start().line..=span.end().line);
            }
        }
    });
    exempt
}

/// Finds the lines of tables.
fn table_lines(page: &MarkdownPage) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    for (event, range) in Parser::new_ext(&page.text, Options::ENABLE_TABLES).into_offset_iter() {
        if let Event::Start(Tag::Table(_)) = event {
            let line = |at: usize| 1 + page.text[..at].matches('\n').count();
            lines.extend(line(range.start)..line(range.end));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::sample;

    /// Returns the long lines of a file, as `sources 1 2`.
    fn found(path: &str, text: &str) -> String {
        let figures = measure(&sample(&[(path, text)]));
        let mut found = String::new();
        for figure in figures.iter().filter(|figure| !figure.findings.is_empty()) {
            found += figure.kind.name.trim_start_matches("long_lines_of_");
            let mut lines: Vec<usize> = figure.findings.iter().map(|finding| finding.line).collect();
            lines.sort_unstable();
            lines.iter().for_each(|line| found += &format!(" {line}"));
        }
        found
    }

    const SOURCE: &str = "crates/a/src/lib.rs";

    #[test]
    fn columns_are_characters() {
        let line = |columns: usize| format!("// {}\n", "ä".repeat(columns - 3));
        assert_eq!(found(SOURCE, &line(120)), "");
        assert_eq!(found(SOURCE, &line(121)), "sources 1");
        assert_eq!(found("crates/a/tests/t.rs", &line(121)), "tests 1");
    }

    #[test]
    fn lines_of_unit_tests_are_apart() {
        let text = format!("#[cfg(test)]\nmod tests {{\n    // {}\n}}\n", "x".repeat(120));
        assert_eq!(found(SOURCE, &text), "tests 3");
    }

    #[test]
    fn tables_are_exempt() {
        let long = "word ".repeat(30);
        let text = format!("//! | {long} |\n// {long}\n/// text | {long}\nfn f() {{}}\n");
        assert_eq!(found(SOURCE, &text), "sources 2 3");
        let page = format!("| a | b |\n|---|---|\n| {long} | x |\n\n{long}\n\n```text\n| {long} |\n```\n");
        assert_eq!(found("a.md", &page), "pages 5 8");
        assert_eq!(found("docs/kernels.md", &page), "");
    }

    #[test]
    fn links_that_cannot_be_broken_are_exempt() {
        let url = format!("https://example.org/{}", "x".repeat(110));
        for exempt in ["URL", "- URL", "  1. [a](URL).", "> [a]: URL", "[a b]: URL"] {
            let is_one_word = exempt != "[a b]: URL";
            let lines = if is_one_word { "" } else { "pages 1" };
            assert_eq!(found("a.md", &exempt.replace("URL", &url)), lines, "{exempt}");
        }
        assert_eq!(found("a.md", &format!("See {url}")), "pages 1");
        assert_eq!(found(SOURCE, &format!("/// <{url}>\nfn f() {{}}\n")), "");
        assert_eq!(found(SOURCE, &format!("/// {}\nfn f() {{}}\n", "x".repeat(120))), "sources 1");
    }

    #[test]
    fn literals_of_one_path_are_exempt() {
        let path = format!("const A: &str = \"a/{}\";\n", "x".repeat(120));
        assert_eq!(found(SOURCE, &path), "");
        let text = format!("const A: &str = \"a/ {}\";\n", "x".repeat(120));
        assert_eq!(found(SOURCE, &text), "sources 1");
        let short = format!("const A: &str = \"a/b\"; // {}\n", "x".repeat(120));
        assert_eq!(found(SOURCE, &short), "sources 1");
    }

    #[test]
    fn inline_snapshots_are_exempt() {
        let text =
            |mark: &str| format!("fn f() {{\n    check!(x, {mark}r\"\n{}\n\");\n}}\n", "x ".repeat(70));
        assert_eq!(found(SOURCE, &text("@")), "");
        assert_eq!(found(SOURCE, &text("")), "sources 3");
    }
}
