//! Places of the program as lines of debug information, so that an address in the code can be attributed to
//! its source.
//!
//! Line numbers are those of places ([`Place`]); generated functions, such as look-ups, are inlined as parts
//! of their callers. No other debug information is generated: LLVM writes a line table and nothing else, and
//! the code is the same as without.

use std::fmt::Write;

use millstream_ir::{Func, InstData};

/// Meaning of a line number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Number of the place: functions of the module first, then the places that its instructions name.
    pub(crate) number: u32,
    /// True if it is a copy that fetches for packets ahead.
    pub(crate) ahead: bool,
}

/// Lines from here on belong to code that fetches ahead.
const AHEAD: u32 = 1 << 24;

impl Place {
    /// The line number of the place. There is no line 0.
    fn line(self) -> u32 {
        self.number.min(AHEAD - 2) + 1 + if self.ahead { AHEAD } else { 0 }
    }

    /// The place of a line number.
    pub(crate) fn of_line(line: u32) -> Option<Place> {
        Some(Place { number: (line % AHEAD).checked_sub(1)?, ahead: line >= AHEAD })
    }

    /// The place of an instruction in a function of a module with this many functions.
    pub(super) fn of(func: Func, data: &InstData, functions: usize, ahead: bool) -> Place {
        let number = match data.loc {
            u32::MAX => func.as_u32(),
            loc => loc.saturating_add(functions as u32),
        };
        Place { number, ahead }
    }
}

/// Scopes by the number of their metadata: those of loops, of slices by stage, of programs, and of functions by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Loop,
    LoopAhead,
    Slice(u32),
    Function(Func),
    /// Wrapper of a function with the form that others call.
    Caller(Func),
}

/// Numbers below are used for the metadata that all scopes refer to.
const FIRST: u32 = 16;

impl Scope {
    fn number(self) -> u32 {
        match self {
            Scope::Loop => FIRST,
            Scope::LoopAhead => FIRST + 1,
            Scope::Slice(stage) => FIRST + 2 + stage,
            Scope::Function(func) => 2 * FIRST + 2 * func.as_u32(),
            Scope::Caller(func) => 2 * FIRST + 2 * func.as_u32() + 1,
        }
    }

    /// Attachment behind the parameters of a function's definition.
    pub(super) fn attached(self) -> String {
        format!(" !dbg !{}", self.number())
    }

    /// Attachment behind an instruction.
    pub(super) fn at(self, place: Option<Place>) -> String {
        format!(", !dbg !DILocation(line: {}, scope: !{})", place.map_or(0, Place::line), self.number())
    }

    /// Its definition.
    fn define(self, out: &mut String) {
        let _ = writeln!(
            out,
            "!{number} = distinct !DISubprogram(name: \"f{number}\", scope: !11, file: !11, \
             line: 0, type: !12, unit: !8, spFlags: DISPFlagDefinition)",
            number = self.number()
        );
    }
}

/// Metadata that all scopes refer to, behind that of [`super::func::METADATA`].
const COMMON: &str = "!llvm.dbg.cu = !{!8}
!llvm.module.flags = !{!9, !10}
!8 = distinct !DICompileUnit(language: DW_LANG_C99, file: !11, emissionKind: DebugDirectivesOnly)
!9 = !{i32 2, !\"Debug Info Version\", i32 3}
!10 = !{i32 7, !\"Dwarf Version\", i32 4}
!11 = !DIFile(filename: \"program\", directory: \"\")
!12 = !DISubroutineType(types: !7)
";

/// Defines scopes.
pub(super) fn scopes(out: &mut String, scopes: impl Iterator<Item = Scope>) {
    out.push_str(COMMON);
    scopes.for_each(|scope| scope.define(out));
}

/// Appends an attachment to each line with an instruction; these are indented.
pub(super) fn mark(text: &mut String, from: usize, behind: &str) {
    let added = text.split_off(from);
    for line in added.lines() {
        text.push_str(line);
        if line.starts_with(' ') {
            text.push_str(behind);
        }
        text.push('\n');
    }
}

/// Attaches a scope to a complete function: at its definition, and at its calls.
pub(super) fn in_scope(text: &str, scope: Scope) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        match line.strip_suffix(" {").filter(|line| line.starts_with("define ")) {
            Some(line) => {
                let _ = write!(out, "{line}{} {{", scope.attached());
            }
            None => out.push_str(line),
        }
        if line.starts_with(' ') && line.contains(" call ") {
            out.push_str(&scope.at(None));
        }
        out.push('\n');
    }
    out
}
