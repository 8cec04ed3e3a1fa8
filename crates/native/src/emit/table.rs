//! A program as an object file for any linker: all of its code is internal except for one public symbol, a
//! table ([`crate::image::table`]) with the addresses of the loops over a batch, the imports, and a
//! description of the program.
//!
//! Calls of the runtime go through slots, next to the names of the imported functions; opening fills them: so
//! objects and runtime need not have symbols in common.

use std::fmt::Write;

use crate::image::table::VERSION;
use millstream_native_runtime::helpers;

/// Export of code that others link.
#[derive(Clone, Debug)]
pub(crate) struct ProgramExport {
    /// The public symbol.
    pub(crate) symbol: String,
    /// Description for whoever opens it.
    pub(crate) description: Vec<u8>,
}

/// Functions of the runtime, by slots.
pub(super) fn imports(out: &mut String) {
    let names: Vec<&str> = helpers::symbols().into_iter().map(|(name, _)| name).collect();
    let mut slots = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let _ = write!(
            out,
            "@name.{name} = private constant [{len} x i8] c\"{name}\\00\"
define internal i64 @{name}(ptr %w, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e) nounwind alwaysinline {{
  %slot = getelementptr {{ ptr, ptr }}, ptr @imports, i64 {at}, i32 1
  %f = load ptr, ptr %slot, align 8
  %r = call i64 %f(ptr %w, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e) nounwind
  ret i64 %r
}}
",
            len = name.len() + 1
        );
        slots.push(format!("{{ ptr, ptr }} {{ ptr @name.{name}, ptr null }}"));
    }
    let count = names.len();
    let _ = writeln!(
        out,
        "@imports = internal global [{count} x {{ ptr, ptr }}] [{}], align 8",
        slots.join(", ")
    );
}

/// The table; the first `loops` of `symbols` are the loops over a batch, the others are programs.
pub(super) fn table(out: &mut String, table: &ProgramExport, symbols: &[String], loops: usize) {
    let (count, length) = (symbols.len(), table.description.len());
    let functions: Vec<String> = symbols.iter().map(|symbol| format!("ptr @{symbol}")).collect();
    let _ = write!(
        out,
        "@functions = internal constant [{count} x ptr] [{}], align 8
@description = internal constant [{length} x i8] c\"",
        functions.join(", ")
    );
    out.reserve(3 * length);
    for byte in &table.description {
        let _ = match byte {
            b' '..=b'~' if !matches!(byte, b'"' | b'\\') => write!(out, "{}", char::from(*byte)),
            _ => write!(out, "\\{byte:02X}"),
        };
    }
    let imports = helpers::symbols().len();
    let _ = write!(
        out,
        "\"
@{symbol} = constant {{ i64, i64, i64, ptr, i64, ptr, i64, ptr }} {{ i64 {VERSION}, i64 {loops}, \
i64 {count}, ptr @functions, i64 {imports}, ptr @imports, i64 {length}, ptr @description }}, align 8
",
        symbol = table.symbol
    );
}
