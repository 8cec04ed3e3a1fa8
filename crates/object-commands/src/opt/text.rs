//! The report of `millstream opt` as text.

use millstream_opt::{
    CostSummary, KernelMetrics, KernelVerdict, OptimizationResult, PassReport, ProgramCosts, ProgramReport,
    ProofReport, StepReport, ValidationResult,
};

/// Lines of cells; all columns but the first and the last are aligned to the right.
#[derive(Default)]
struct TextTable(Vec<Vec<String>>);

impl TextTable {
    fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        self.0.push(cells.into_iter().map(|cell| cell.to_string()).collect());
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.0.iter().filter_map(|row| row.get(c)).map(|t| t.chars().count()).max();
        let widths: Vec<usize> = (0..columns).filter_map(width).collect();
        for row in &self.0 {
            let cell = |(c, text): (usize, &String)| match c {
                0 => format!("{text:w$}", w = widths[c]),
                _ if c + 1 == columns => text.clone(),
                _ => format!("{text:>w$}", w = widths[c]),
            };
            let line: Vec<String> = row.iter().enumerate().map(cell).collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

pub(super) fn text(
    optimized: &OptimizationResult,
    programs: &[ProgramReport],
    costs: &[ProgramCosts],
    stats: bool,
) -> String {
    if optimized.functions.is_empty() {
        return "there are no programs in it\n".into();
    }
    let mut functions = TextTable::default();
    functions.row(["function", "slots before", "after", "outcome"]);
    for f in &optimized.functions {
        functions.row([&f.name, &f.before.to_string(), &f.after.to_string(), &f.outcome.to_string()]);
    }
    if !stats {
        return format!("{functions}\n{}", cost_table(costs));
    }
    let parts = [functions, program_table(programs), cost_table(costs), pass_table(&optimized.passes)];
    parts.map(|table| table.to_string()).join("\n")
}

fn program_table(programs: &[ProgramReport]) -> TextTable {
    let mut table = TextTable::default();
    table.row(["program", "slots", "jited bytes", "verified instructions", "kernel"]);
    for p in programs {
        let pair = |get: fn(&KernelMetrics) -> usize| {
            let text = |m: Option<KernelMetrics>| m.as_ref().map_or("-".to_string(), |m| get(m).to_string());
            format!("{} -> {}", text(p.before), text(p.after))
        };
        let (jited, verified) = (pair(|m| m.jited as usize), pair(|m| m.verified as usize));
        table.row([&p.name, &pair(|m| m.slots), &jited, &verified, &verdict(&p.verdict)]);
    }
    table
}

fn cost_table(costs: &[ProgramCosts]) -> TextTable {
    let mut table = TextTable::default();
    table.row(["predicted", "slots", "jited bytes", "cycles", ""]);
    for p in costs {
        let pair = |get: fn(&CostSummary) -> String| format!("{} -> {}", get(&p.before), get(&p.after));
        let (slots, jited) = (pair(|c| c.slots.to_string()), pair(|c| c.jited.to_string()));
        let cycles = pair(|c| format!("{}.{}", c.cycles / 1000, c.cycles % 1000 / 100));
        table.row([&p.name, &slots, &jited, &cycles, ""]);
    }
    table
}

fn pass_table(passes: &[PassReport]) -> TextTable {
    let mut table = TextTable::default();
    table.row(["pass", "runs", "rewrites", "ms", ""]);
    for p in passes {
        let ms = format!("{:.2}", p.micros as f64 / 1000.0);
        table.row([p.name, &p.runs.to_string(), &p.rewrites.to_string(), &ms, ""]);
    }
    table
}

pub(super) fn step_table(steps: &[StepReport]) -> String {
    let mut table = TextTable::default();
    table.row(["pass", "steps", "proven", "unknown", "refuted", "ms", ""]);
    let mut passes: Vec<&str> = steps.iter().map(|s| s.pass).collect();
    passes.sort_unstable();
    passes.dedup();
    for pass in passes {
        let of = || steps.iter().filter(|s| s.pass == pass);
        let count = |is: fn(&ValidationResult) -> bool| of().filter(|s| is(&s.verdict)).count().to_string();
        let ms: f64 = of().map(|s| s.milliseconds).sum();
        let proven = count(|v| matches!(v, ValidationResult::Equivalent));
        let unknown = count(|v| matches!(v, ValidationResult::Unknown(_)));
        let refuted = count(|v| matches!(v, ValidationResult::Refuted { .. }));
        table.row([pass, &of().count().to_string(), &proven, &unknown, &refuted, &format!("{ms:.1}"), ""]);
    }
    let trusted = steps.iter().map(|s| s.trusted as u64).sum();
    let words = crate::prove::rests_on(trusted).map_or(String::new(), |words| format!("this {words}\n"));
    format!("{table}{words}")
}

pub(super) fn proof_table(proofs: &[ProofReport]) -> String {
    let mut table = TextTable::default();
    table.row(["program", "ms", "proof"]);
    let mut unknown = 0;
    for p in proofs {
        let text = match &p.verdict {
            ValidationResult::Unchanged => "unchanged".into(),
            ValidationResult::Equivalent => match crate::prove::rests_on(p.trusted as u64) {
                Some(words) => format!("equivalent, {words}"),
                None => "equivalent".into(),
            },
            ValidationResult::Unknown(why) => {
                unknown += 1;
                format!("not known: {why}")
            }
            ValidationResult::Refuted { counterexample, blame } => {
                let pass = blame.as_ref().map_or("lowering".to_owned(), |(pass, n)| format!("{pass}#{n}"));
                format!("REFUTED, {pass} is to blame: {counterexample}")
            }
        };
        table.row([&p.name, &format!("{:.1}", p.milliseconds), &text]);
    }
    format!("{table}programs: {}, unknown: {unknown}\n", proofs.len())
}

fn verdict(verdict: &KernelVerdict) -> String {
    match verdict {
        KernelVerdict::Accepted => "accepted".into(),
        KernelVerdict::NotSupported(why) => format!("not supported here: {}", first_line(why)),
        KernelVerdict::NotLoadable(why) => format!("original not accepted: {}", first_line(why)),
        KernelVerdict::Bisected(blamed) => {
            let names: Vec<String> = blamed.iter().map(|(pass, n)| format!("{pass}#{n}")).collect();
            format!("accepted without {}", names.join(", "))
        }
        KernelVerdict::Remade(why) => format!("accepted, made otherwise: {}", first_line(why)),
        KernelVerdict::Original(why) => format!("original kept: {}", first_line(why)),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
