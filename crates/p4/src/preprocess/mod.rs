//! The preprocessor: files to one sequence of tokens.
//!
//! Invariant: memory and time are linear in the text. Includes are limited in depth and number, and the
//! tokens that macros produce are limited by a budget that grows with the text.

mod condition;
mod definition;
mod macros;

use rustc_hash::FxHashMap;

use crate::diagnostic::{DiagnosticSink, SourceDiagnostic};
use crate::lex::{SourceToken, SymbolTable, TokenKind, tokenize};
use crate::source::{FileId, SourceMap, SourceSpan, Symbol};
use definition::MacroDefinition;

/// Access to source files. The front end itself reads none.
pub trait SourceLoader {
    /// Reads the file of a path, if there is one.
    fn load(&mut self, path: &str) -> Option<String>;
}

/// Includes that may be open at a time, and files of a program.
const DEEPEST_INCLUDE: usize = 64;
const MOST_FILES: usize = 4096;

/// Tokens that macros may always produce, and how many more for each byte of text.
const MACRO_BUDGET: usize = 65_536;
const MACRO_BUDGET_PER_BYTE: usize = 16;

/// State of a conditional group.
struct ConditionalGroup {
    /// The lines of this branch count.
    is_active: bool,
    /// A branch was taken already, or the group is in an inactive one.
    is_decided: bool,
    /// `#else` was read.
    has_else: bool,
    span: SourceSpan,
}

pub(crate) struct Preprocessor<'p> {
    loader: &'p mut dyn SourceLoader,
    search_paths: &'p [String],
    sources: &'p mut SourceMap,
    sink: &'p mut DiagnosticSink,
    symbols: SymbolTable,
    macros: FxHashMap<Symbol, MacroDefinition>,
    conditions: Vec<ConditionalGroup>,
    output: Vec<SourceToken>,
    budget: usize,
    depth: usize,
}

/// Reads a file and everything that it includes.
pub(crate) fn preprocess(
    path: &str,
    loader: &mut dyn SourceLoader,
    (search_paths, definitions): (&[String], &[(String, String)]),
    sources: &mut SourceMap,
    sink: &mut DiagnosticSink,
) -> Vec<SourceToken> {
    let mut preprocessor = Preprocessor {
        loader,
        search_paths,
        sources,
        sink,
        symbols: SymbolTable::default(),
        macros: FxHashMap::default(),
        conditions: Vec::new(),
        output: Vec::new(),
        budget: MACRO_BUDGET,
        depth: 0,
    };
    for (name, value) in definitions {
        preprocessor.predefine(name, value);
    }
    let text = preprocessor.loader.load(path);
    let end = match text {
        Some(text) => preprocessor.file(path.to_owned(), text),
        None => {
            let file = preprocessor.sources.add(path.to_owned(), String::new());
            let span = SourceSpan { file, start: 0, end: 0 };
            preprocessor.sink.error(span, format!("cannot read `{path}`"));
            span
        }
    };
    let mut output = preprocessor.output;
    output.push(SourceToken { kind: TokenKind::End, span: end, begins_line: true, is_spaced: true });
    output
}

impl Preprocessor<'_> {
    fn predefine(&mut self, name: &str, value: &str) {
        let file = self.sources.add("<command line>".into(), value.to_owned());
        let body = tokenize(file, value, &mut self.symbols);
        let name = self.symbols.intern(name);
        self.macros.insert(name, MacroDefinition { parameters: None, body });
    }

    /// Processes a file, and gives the place of its end.
    fn file(&mut self, path: String, text: String) -> SourceSpan {
        let file = self.sources.add(path, text);
        let text = self.sources.file(file).text.as_str();
        let end = text.len() as u32;
        self.budget = self.budget.saturating_add(MACRO_BUDGET_PER_BYTE * text.len());
        let tokens = tokenize(file, text, &mut self.symbols);
        let open = self.conditions.len();
        self.lines(&tokens);
        while self.conditions.len() > open {
            let span = self.conditions.pop().map(|group| group.span).unwrap_or_default();
            self.sink.error(span, "this conditional has no `#endif`");
        }
        SourceSpan { file, start: end, end }
    }

    fn lines(&mut self, tokens: &[SourceToken]) {
        let mut at = 0;
        let mut text_from = 0;
        while at < tokens.len() {
            let line_end = next_line(tokens, at);
            if tokens[at].kind == TokenKind::Mark("#") && tokens[at].begins_line {
                self.text_lines(&tokens[text_from..at]);
                self.directive(&tokens[at..line_end]);
                text_from = line_end;
            } else if !self.is_active() {
                text_from = line_end;
            }
            at = line_end;
        }
        self.text_lines(&tokens[text_from..]);
    }

    fn is_active(&self) -> bool {
        self.conditions.last().is_none_or(|group| group.is_active)
    }

    fn text_lines(&mut self, tokens: &[SourceToken]) {
        if tokens.is_empty() {
            return;
        }
        let expanded = self.expand(tokens);
        self.output.extend(expanded);
    }

    fn directive(&mut self, line: &[SourceToken]) {
        let Some(name) = line.get(1) else { return };
        let rest = &line[2..];
        let is_active = self.is_active();
        match name.word_or_mark() {
            "if" => self.open_group(name.span, |p| p.condition(name.span, rest)),
            "ifdef" => self.open_group(name.span, |p| p.is_defined(name.span, rest)),
            "ifndef" => self.open_group(name.span, |p| !p.is_defined(name.span, rest)),
            "elif" => self.else_group(name.span, Some(rest)),
            "else" => self.else_group(name.span, None),
            "endif" => {
                if self.conditions.pop().is_none() {
                    self.sink.error(name.span, "`#endif` without `#if`");
                }
            }
            _ if !is_active => {}
            "define" => self.define(name.span, rest),
            "undef" => {
                if let Some(name) = self.macro_name(name.span, rest) {
                    self.macros.remove(&name);
                }
            }
            "include" => self.include(name.span, rest),
            "error" => {
                let text = self.rest_of_line(name.span);
                self.sink.error(name.span, format!("#error {text}"));
            }
            "warning" => {
                let text = self.rest_of_line(name.span);
                self.sink.push(SourceDiagnostic::warning(name.span, format!("#warning {text}")));
            }
            "line" => self.line_number(name.span, rest),
            "pragma" => {}
            _ if matches!(name.kind, TokenKind::Number(_)) => self.line_number(name.span, &line[1..]),
            other => self.unknown_directive(name.span, other),
        }
    }

    fn unknown_directive(&mut self, span: SourceSpan, name: &str) {
        let known =
            ["if", "ifdef", "ifndef", "elif", "else", "endif", "define", "undef", "include", "error", "line"];
        self.sink
            .push(SourceDiagnostic::error(span, format!("unknown directive `#{name}`")).nearest(name, known));
    }

    fn open_group(&mut self, span: SourceSpan, condition: impl FnOnce(&mut Self) -> bool) {
        let is_active = self.is_active();
        let holds = is_active && condition(self);
        let group =
            ConditionalGroup { is_active: holds, is_decided: holds || !is_active, has_else: false, span };
        self.conditions.push(group);
    }

    fn else_group(&mut self, span: SourceSpan, condition: Option<&[SourceToken]>) {
        let Some(group) = self.conditions.last_mut() else {
            self.sink.error(span, "this branch has no `#if`");
            return;
        };
        if group.has_else {
            self.sink.error(span, "a branch behind `#else`");
        }
        group.has_else |= condition.is_none();
        let is_decided = group.is_decided;
        group.is_active = false;
        let holds = !is_decided && condition.is_none_or(|tokens| self.condition(span, tokens));
        if let Some(group) = self.conditions.last_mut() {
            group.is_active = holds;
            group.is_decided |= holds;
        }
    }

    fn macro_name(&mut self, span: SourceSpan, rest: &[SourceToken]) -> Option<Symbol> {
        match rest.first().map(|token| &token.kind) {
            Some(TokenKind::Word(name)) => Some(name.clone()),
            _ => {
                self.sink.error(span, "the name of a macro is missing");
                None
            }
        }
    }

    fn is_defined(&mut self, span: SourceSpan, rest: &[SourceToken]) -> bool {
        self.macro_name(span, rest).is_some_and(|name| self.macros.contains_key(&name))
    }

    /// Text of the line behind a place.
    fn rest_of_line(&self, span: SourceSpan) -> String {
        let text = &self.sources.file(span.file).text[span.end as usize..];
        text.lines().next().unwrap_or_default().trim().to_owned()
    }

    fn line_number(&mut self, span: SourceSpan, rest: &[SourceToken]) {
        let number = match rest.first().map(|token| &token.kind) {
            Some(TokenKind::Number(text)) => text.parse().ok(),
            _ => None,
        };
        let Some(number) = number else {
            self.sink.error(span, "the number of the line is missing");
            return;
        };
        let name = match rest.get(1).map(|token| &token.kind) {
            Some(TokenKind::Text(text)) => Some(text.to_string()),
            _ => None,
        };
        self.sources.renumber(span.file, span.start, number, name);
    }

    fn include(&mut self, span: SourceSpan, rest: &[SourceToken]) {
        let written = self.rest_of_line(span);
        let expanded: String = match written.starts_with(['"', '<']) {
            true => written,
            false => self.expand(rest).iter().map(spelling).collect(),
        };
        let close = if expanded.starts_with('<') { '>' } else { '"' };
        let path = expanded.get(1..).and_then(|text| text.split_once(close)).map(|(path, _)| path);
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            self.sink.error(span, "a file name in quotes or angle brackets is missing");
            return;
        };
        if self.depth >= DEEPEST_INCLUDE || self.sources.len() >= MOST_FILES {
            self.sink.error(span, "files are included too deeply, or too often");
            return;
        }
        match self.find(path, (close == '"').then_some(span.file)) {
            Some((path, text)) => {
                self.depth += 1;
                self.file(path, text);
                self.depth -= 1;
            }
            None => self.sink.error(span, format!("cannot find `{path}`")),
        }
    }

    /// Finds an included file: beside the including one if it is in quotes, on the search paths, or among the
    /// architecture files.
    fn find(&mut self, path: &str, beside: Option<FileId>) -> Option<(String, String)> {
        let mut candidates = Vec::new();
        if let Some(file) = beside {
            let folder = self.sources.file(file).path.rsplit_once('/').map_or("", |(folder, _)| folder);
            candidates.push(join(folder, path));
        }
        candidates.extend(self.search_paths.iter().map(|folder| join(folder, path)));
        for candidate in candidates {
            if let Some(text) = self.loader.load(&candidate) {
                return Some((candidate, text));
            }
        }
        let text = crate::architecture::architecture_file(path)?;
        Some((format!("<{path}>"), text.to_owned()))
    }
}

fn join(folder: &str, path: &str) -> String {
    if folder.is_empty() || path.starts_with('/') { path.to_owned() } else { format!("{folder}/{path}") }
}

/// Spelling of a token, quotes included.
fn spelling(token: &SourceToken) -> String {
    match &token.kind {
        TokenKind::Word(text) | TokenKind::Number(text) => text.to_string(),
        TokenKind::Text(text) => format!("\"{text}\""),
        TokenKind::Mark(mark) => (*mark).to_owned(),
        TokenKind::Stray(_) | TokenKind::End => String::new(),
    }
}

/// Index of the first token of the next line.
fn next_line(tokens: &[SourceToken], at: usize) -> usize {
    tokens[at + 1..].iter().position(|token| token.begins_line).map_or(tokens.len(), |n| at + 1 + n)
}
