//! The printer.

use std::fmt::{self, Write};

use crate::entities::*;
use crate::func::{BlockCall, Function, Linkage};
use crate::module::*;
use crate::op::Attr;

/// Information that is printed beside the code itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrintOptions {
    /// Source line records of functions and instructions.
    pub locs: bool,
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_module(f, self, PrintOptions::default())
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_function(f, "fn", self, PrintOptions::default())
    }
}

/// Prints a module.
pub fn print_module(module: &Module, options: PrintOptions) -> String {
    let mut out = String::new();
    write_module(&mut out, module, options).expect("a String takes all text");
    out
}

/// Prints a function under its number in its module.
pub fn print_function(id: Func, func: &Function, options: PrintOptions) -> String {
    let mut out = String::new();
    write_function(&mut out, &id.to_string(), func, options).expect("a String takes all text");
    out
}

/// Prints an instruction as it stands in its block, without indentation.
pub fn print_inst(func: &Function, inst: Inst) -> String {
    let mut out = String::new();
    write_inst(&mut out, func, inst).expect("a String takes all text");
    out
}

fn write_module(out: &mut impl Write, module: &Module, options: PrintOptions) -> fmt::Result {
    if !module.name.is_empty() {
        writeln!(out, "module {}", QuotedName(&module.name))?;
    }
    for (id, map) in &module.maps {
        write_map(out, id, map)?;
    }
    for (id, ext) in &module.externs {
        let kind = extern_kind_word(ext.kind);
        writeln!(out, "extern {id} {} {kind}{}", QuotedName(&ext.name), if ext.weak { " weak" } else { "" })?;
    }
    for (id, core) in &module.cores {
        writeln!(out, "core {id} {}", core.index)?;
    }
    for (id, table) in &module.tables {
        write_table(out, id, table)?;
    }
    for (id, func) in &module.funcs {
        write_function(out, &id.to_string(), func, options)?;
    }
    Ok(())
}

fn write_map(out: &mut impl Write, id: Map, map: &MapDecl) -> fmt::Result {
    write!(out, "map {id} {} kind={} key={}", QuotedName(&map.name), map.kind, map.key_size)?;
    write!(out, " value={} entries={} flags={}", map.value_size, map.max_entries, map.flags)?;
    if let Some(global) = map.global {
        write!(out, " global={}", global_word(global))?;
    }
    if let Some(inner) = map.inner {
        write!(out, " inner={inner}")?;
    }
    writeln!(out)
}

fn write_table(out: &mut impl Write, id: Table, table: &TableDecl) -> fmt::Result {
    writeln!(out, "table {id} {} {{", QuotedName(&table.name))?;
    for field in &table.fields {
        writeln!(out, "  field {} {} {}", QuotedName(&field.name), field.bits, match_word(field.kind))?;
    }
    for (at, entry) in table.entries.iter().enumerate() {
        let fields: Vec<String> = entry.iter().map(field_match_text).collect();
        write!(out, "  entry {}", fields.join(", "))?;
        if let Some(result) = table.results.get(at) {
            write!(out, " gives {result}")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "}}")
}

fn field_match_text(field: &FieldMatch) -> String {
    match field {
        FieldMatch::Exact(value) => words_text(value),
        FieldMatch::Prefix(value, bits) => format!("{}/{bits}", words_text(value)),
        FieldMatch::Range(from, to) => format!("{}..{}", words_text(from), words_text(to)),
        FieldMatch::Ternary(value, mask) => format!("{}&{}", words_text(value), words_text(mask)),
    }
}

/// Words most significant first, joined by underscores; each in hexadecimal.
fn words_text(words: &[u64]) -> String {
    let words: Vec<String> = words.iter().map(|w| format!("{w:#x}")).collect();
    words.join("_")
}

fn write_function(out: &mut impl Write, label: &str, func: &Function, options: PrintOptions) -> fmt::Result {
    write!(out, "{label} {} ", QuotedName(&func.name))?;
    match func.linkage {
        Linkage::Program { prog_type } => write!(out, "program({prog_type})")?,
        Linkage::Global => out.write_str("global")?,
        Linkage::Static => out.write_str("static")?,
        Linkage::Hidden => out.write_str("hidden")?,
    }
    writeln!(out, "{} {{", if func.returns { " returns" } else { "" })?;
    for (slot, data) in &func.slots {
        write!(out, "  {slot} size={} align={}", data.size, data.align)?;
        match data.fixed {
            Some(offset) => writeln!(out, " fixed={offset}")?,
            None => writeln!(out)?,
        }
    }
    if options.locs && !func.locs.is_empty() {
        let locs: Vec<String> = func.locs.iter().map(u32::to_string).collect();
        writeln!(out, "  locs {}", locs.join(" "))?;
    }
    for &block in &func.layout {
        write_block(out, func, block, options)?;
    }
    writeln!(out, "}}")
}

fn write_block(out: &mut impl Write, func: &Function, block: Block, options: PrintOptions) -> fmt::Result {
    write!(out, "{block}")?;
    let params: Vec<String> =
        func.blocks[block].params.iter().map(|&p| format!("{p}: {}", func.types[p].print())).collect();
    if !params.is_empty() {
        write!(out, "({})", params.join(", "))?;
    }
    writeln!(out, ":")?;
    for &inst in &func.blocks[block].insts {
        out.write_str("  ")?;
        write_inst(out, func, inst)?;
        let loc = func.insts[inst].loc;
        if options.locs && loc != u32::MAX {
            write!(out, " !{loc}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_inst(out: &mut impl Write, func: &Function, inst: Inst) -> fmt::Result {
    let data = &func.insts[inst];
    if let Some(result) = data.result.expand() {
        write!(out, "{result}: {} = ", func.types[result].print())?;
    }
    out.write_str(data.op.mnemonic())?;
    let mut attrs = Vec::new();
    data.op.print_attrs(&mut attrs);
    for attr in attrs {
        write!(out, ".{attr}")?;
    }
    let args = data.args.iter().map(Value::to_string);
    let operands: Vec<String> = args.chain(data.targets.iter().map(target_text)).collect();
    if !operands.is_empty() {
        write!(out, " {}", operands.join(", "))?;
    }
    Ok(())
}

fn target_text(target: &BlockCall) -> String {
    if target.args.is_empty() {
        return target.block.to_string();
    }
    let args: Vec<String> = target.args.iter().map(Value::to_string).collect();
    format!("{}({})", target.block, args.join(", "))
}

/// The words of the text form for declarations, which the parser reads too.
pub(super) const GLOBALS: [(&str, GlobalData); 4] = [
    ("data", GlobalData::Data),
    ("rodata", GlobalData::Rodata),
    ("bss", GlobalData::Bss),
    ("kconfig", GlobalData::Kconfig),
];
pub(super) const EXTERN_KINDS: [(&str, ExternKind); 3] =
    [("ksym", ExternKind::Ksym), ("kfunc", ExternKind::Kfunc), ("kconfig", ExternKind::Kconfig)];
pub(super) const MATCH_KINDS: [(&str, MatchKind); 4] = [
    ("exact", MatchKind::Exact),
    ("prefix", MatchKind::Prefix),
    ("range", MatchKind::Range),
    ("ternary", MatchKind::Ternary),
];

fn word_of<T: PartialEq>(table: &[(&'static str, T)], item: &T) -> &'static str {
    table.iter().find(|(_, x)| x == item).expect("every variant has a word").0
}

fn global_word(global: GlobalData) -> &'static str {
    word_of(&GLOBALS, &global)
}

fn extern_kind_word(kind: ExternKind) -> &'static str {
    word_of(&EXTERN_KINDS, &kind)
}

fn match_word(kind: MatchKind) -> &'static str {
    word_of(&MATCH_KINDS, &kind)
}

/// A name in double quotes; quotes, backslashes and control characters are escaped.
struct QuotedName<'a>(&'a str);

impl fmt::Display for QuotedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
