//! A match table's tree of comparisons, as a function of its own: `i64 @table{n}(i64 word, ...)`.
//!
//! LLVM's time for a large function grows faster than the function (450 rules: a second), and the tree would
//! be in every loop and slice that matches. So it is a separate function that LLVM's passes skip: there is
//! nothing in it to optimize. It takes a tenth of the time to compile, and runs as fast.

use std::fmt::Write;

use millstream_match_tables::{TableComparison, TablePlan, TableStep};

/// Text of the function for table number `n`, of words of these widths.
pub(super) fn function(n: usize, plan: &TablePlan, widths: &[u64]) -> String {
    let params: Vec<String> = (0..widths.len()).map(|at| format!("i64 %a{at}")).collect();
    let mut out = format!(
        "define internal i64 @table{n}({}) noinline optnone nounwind willreturn memory(none) {{\n",
        params.join(", ")
    );
    for (at, width) in widths.iter().enumerate() {
        let _ = writeln!(out, "  %w{at} = and i64 %a{at}, {width}");
    }
    let _ = writeln!(out, "  br label %s{}", plan.first);
    for (at, step) in plan.steps.iter().enumerate() {
        let _ = writeln!(out, "s{at}:");
        match *step {
            TableStep::Result(result) => {
                let _ = writeln!(out, "  ret i64 {result}");
            }
            TableStep::Compare { word, with, yes, no } => {
                let holds = comparison(&mut out, at, word, with);
                let _ = writeln!(out, "  %c{at} = icmp {holds}\n  br i1 %c{at}, label %s{yes}, label %s{no}");
            }
        }
    }
    out.push_str("}\n");
    out
}

/// A comparison, as operands of `icmp`.
fn comparison(out: &mut String, at: usize, word: usize, with: TableComparison) -> String {
    let mut changed = |op: &str, by: u64| {
        let _ = writeln!(out, "  %v{at} = {op} i64 %w{word}, {by}");
        format!("i64 %v{at}")
    };
    match with {
        TableComparison::Below(bound) => format!("ult i64 %w{word}, {bound}"),
        TableComparison::AtMost(most) => format!("ule i64 %w{word}, {most}"),
        TableComparison::AtLeast(least) => format!("uge i64 %w{word}, {least}"),
        TableComparison::Equal(value) => format!("eq i64 %w{word}, {value}"),
        TableComparison::Bit(bit) => format!("ne {}, 0", changed("and", bit)),
        // Below the interval the difference wraps around to more than any within it.
        TableComparison::Within(least, most) => format!("ule {}, {}", changed("sub", least), most - least),
        TableComparison::Masked(value, mask) => format!("eq {}, {value}", changed("and", mask)),
    }
}
