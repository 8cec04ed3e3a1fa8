//! The parser: declarations of a module.

use cranelift_entity::EntityRef;

use super::ParseError;
use super::line_reader::{LineReader, pair};
use super::parse_func::FuncParser;
use super::print::{EXTERN_KINDS, GLOBALS, MATCH_KINDS};
use super::scan::LineScanner;
use crate::entities::*;
use crate::func::{Function, Linkage};
use crate::module::*;

/// Reads a module.
///
/// # Errors
/// The first place where the text is not as the grammar says, with what was expected.
pub fn parse_module(text: &str) -> Result<Module, ParseError> {
    let mut module = Module::default();
    let mut lines = LineReader::new(text);
    while let Some(line) = lines.next_line() {
        parse_item(&mut module, &mut lines, line)?;
    }
    Ok(module)
}

/// Reads a text that holds one function and nothing else.
///
/// # Errors
/// As [`parse_module`]; also if there is not exactly one function.
pub fn parse_function(text: &str) -> Result<Function, ParseError> {
    let module = parse_module(text)?;
    let count = module.funcs.len();
    let mut funcs = module.funcs.into_iter();
    match (count, funcs.next()) {
        (1, Some((_, func))) => Ok(func),
        _ => Err(ParseError { line: 1, column: 1, message: format!("expected one function, found {count}") }),
    }
}

fn parse_item(
    module: &mut Module,
    lines: &mut LineReader<'_>,
    mut line: LineScanner<'_>,
) -> Result<(), ParseError> {
    if line.at_entity("fn") {
        in_order(&mut line, "fn", module.funcs.len())?;
        return parse_func(module, lines, line);
    }
    let place = line.place();
    match line.word("a declaration")? {
        "module" => module.name = line.quoted()?,
        "map" => parse_map(module, &mut line)?,
        "extern" => parse_extern(module, &mut line)?,
        "core" => {
            in_order(&mut line, "core", module.cores.len())?;
            module.cores.push(CoreDecl { index: line.number("an index")? });
        }
        "table" => return parse_table(module, lines, line),
        "fn" => return parse_func(module, lines, line),
        word => {
            let message = format!("expected module, map, extern, core, table or fn, found `{word}`");
            return Err(place.error(message));
        }
    }
    line.expect_end()
}

/// Takes the number of a declaration, which must be the next one.
fn in_order(line: &mut LineScanner<'_>, prefix: &str, next: usize) -> Result<(), ParseError> {
    let place = line.place();
    let number = line.entity(prefix)?;
    if number as usize != next {
        return Err(place.error(format!("expected {prefix}{next}, found {prefix}{number}")));
    }
    Ok(())
}

pub(super) fn keyword<T: Copy>(
    line: &mut LineScanner<'_>,
    table: &[(&'static str, T)],
) -> Result<T, ParseError> {
    let place = line.place();
    let word = line.word("a keyword")?;
    table.iter().find(|(w, _)| *w == word).map(|(_, t)| *t).ok_or_else(|| {
        let words: Vec<&str> = table.iter().map(|(w, _)| *w).collect();
        place.error(format!("expected one of {}, found `{word}`", words.join(", ")))
    })
}

fn parse_map(module: &mut Module, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
    in_order(line, "map", module.maps.len())?;
    let mut map = MapDecl {
        name: line.quoted()?,
        kind: pair(line, "kind")?,
        key_size: pair(line, "key")?,
        value_size: pair(line, "value")?,
        max_entries: pair(line, "entries")?,
        flags: pair(line, "flags")?,
        global: None,
        inner: None,
    };
    if line.eat("global=") {
        map.global = Some(keyword(line, &GLOBALS)?);
    }
    if line.eat("inner=") {
        map.inner = Some(Map::new(line.entity("map")? as usize));
    }
    module.maps.push(map);
    Ok(())
}

fn parse_extern(module: &mut Module, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
    in_order(line, "extern", module.externs.len())?;
    let name = line.quoted()?;
    let kind = keyword(line, &EXTERN_KINDS)?;
    module.externs.push(ExternDecl { name, kind, weak: line.eat("weak") });
    Ok(())
}

fn parse_table(
    module: &mut Module,
    lines: &mut LineReader<'_>,
    mut line: LineScanner<'_>,
) -> Result<(), ParseError> {
    in_order(&mut line, "table", module.tables.len())?;
    let mut table =
        TableDecl { name: line.quoted()?, fields: Vec::new(), entries: Vec::new(), results: Vec::new() };
    line.expect("{")?;
    line.expect_end()?;
    loop {
        let mut line = lines.next_line().ok_or_else(|| lines.ended("the table's closing brace"))?;
        if line.eat("}") {
            line.expect_end()?;
            module.tables.push(table);
            return Ok(());
        }
        let place = line.place();
        match line.word("field, entry or a closing brace")? {
            "field" => table.fields.push(FieldDecl {
                name: line.quoted()?,
                bits: line.number("a width in bits")?,
                kind: keyword(&mut line, &MATCH_KINDS)?,
            }),
            "entry" => {
                table.entries.push(parse_entry(&table.fields, &mut line)?);
                if line.eat("gives") {
                    table.results.push(line.number("a result")?);
                }
            }
            word => return Err(place.error(format!("expected field or entry, found `{word}`"))),
        }
        line.expect_end()?;
    }
}

fn parse_entry(fields: &[FieldDecl], line: &mut LineScanner<'_>) -> Result<Vec<FieldMatch>, ParseError> {
    let mut entry = Vec::with_capacity(fields.len());
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            line.expect(",")?;
        }
        let value = parse_words(line)?;
        entry.push(match field.kind {
            MatchKind::Exact => FieldMatch::Exact(value),
            MatchKind::Prefix => {
                line.expect("/")?;
                FieldMatch::Prefix(value, line.number("a prefix length")?)
            }
            MatchKind::Range => {
                line.expect("..")?;
                FieldMatch::Range(value, parse_words(line)?)
            }
            MatchKind::Ternary => {
                line.expect("&")?;
                FieldMatch::Ternary(value, parse_words(line)?)
            }
        });
    }
    Ok(entry)
}

/// Words most significant first, joined by underscores; decimal, or hexadecimal after `0x`.
fn parse_words(line: &mut LineScanner<'_>) -> Result<Vec<u64>, ParseError> {
    let place = line.place();
    let token = line.word("a value")?;
    let parsed: Option<Vec<u64>> = token
        .split('_')
        .map(|word| match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => word.parse().ok(),
        })
        .collect();
    parsed.ok_or_else(|| place.error(format!("expected words of 64 bits joined by `_`, found `{token}`")))
}

fn parse_func(
    module: &mut Module,
    lines: &mut LineReader<'_>,
    mut line: LineScanner<'_>,
) -> Result<(), ParseError> {
    let name = line.quoted()?;
    let place = line.place();
    let linkage = match line.word("program(N), global, static or hidden")? {
        "program" => {
            line.expect("(")?;
            let prog_type = line.number("a program type")?;
            line.expect(")")?;
            Linkage::Program { prog_type }
        }
        "global" => Linkage::Global,
        "static" => Linkage::Static,
        "hidden" => Linkage::Hidden,
        word => {
            let what = format!("expected program(N), global, static or hidden, found `{word}`");
            return Err(place.error(what));
        }
    };
    let mut func = Function::new(name, linkage);
    func.returns = line.eat("returns");
    line.expect("{")?;
    line.expect_end()?;
    module.funcs.push(FuncParser::new(func).parse(lines)?);
    Ok(())
}
