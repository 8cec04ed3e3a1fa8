//! Match tables.

use millstream_ir::Function;
use millstream_match_tables::{TableForm, expand_tables};

use crate::manager::{FuncPass, Pass, PassContext};

const NAME: &str = "lower-tables";

/// The passes of this module.
pub(crate) const PASSES: &[Pass] = &[Pass::Func(&LowerTables)];

/// Expands matches of tables where the target has none. Lowering would do the same, but then no pass would
/// see, say, that a field of the key is known.
struct LowerTables;

impl FuncPass for LowerTables {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "replace matches of tables by trees of comparisons"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        // Native code has templates for tables and chooses one before the passes.
        if !cx.target().keep_verifier_facts {
            return false;
        }
        let tables = cx.info.tables;
        let jmp32 = cx.target().has_jmp32();
        expand_tables(func, tables, jmp32, |_| cx.fuel(NAME).then_some(TableForm::Tree))
    }
}
