//! `millstream inspect`: disassembly, IR, control-flow graph and maps of an object.

mod cfg;
pub(crate) mod disasm;
mod layout;
mod maps;
mod svg;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};
use millstream_bpf::module::{self, LiftedModule, lift_supported};
use millstream_ir::text::{PrintOptions, print_function};
use millstream_ir::{Func, Module};
use millstream_isa::ByteOrder;
use millstream_object::{FuncId, Object};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};
use serde::Serialize;

use crate::input::SectionArgs;

/// Passes that turn stack slots into values, and leave calls as they are.
const PROMOTION: &[&str] = &["split-stack", "promote-spills", "mem2reg", "params"];

/// Flags of `millstream inspect`.
#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// The object file, a raw program (`X.insns`), or a built-in data plane (`builtin:NAME`)
    object: PathBuf,
    /// Show this program or subprogram only; may be repeated
    #[arg(long, value_name = "NAME")]
    prog: Vec<String>,
    /// Show instructions in the kernel's notation
    #[arg(long)]
    disasm: bool,
    /// Show the IR
    #[arg(long)]
    ir: bool,
    /// Show control-flow graphs
    #[arg(long, value_name = "FORM", num_args = 0..=1, default_missing_value = "text")]
    cfg: Option<GraphFormat>,
    /// Show maps and the accesses of each program to them
    #[arg(long)]
    maps: bool,
    /// Show IR, graphs and maps after the passes of `millstream opt`
    #[arg(long)]
    optimized: bool,
    #[command(flatten)]
    section: SectionArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Output format of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum GraphFormat {
    /// Blocks with predecessors and successors
    Text,
    /// For Graphviz
    Dot,
    /// A picture
    Svg,
}

/// A function of the object, as JSON shows it.
#[derive(Debug, Serialize)]
struct FunctionRow {
    name: String,
    section: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    program_type: Option<String>,
    slots: usize,
    blocks: usize,
    ir_instructions: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    disasm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cfg: Option<String>,
}

#[derive(Debug, Serialize)]
struct InspectReport {
    schema: u32,
    object: String,
    license: String,
    functions: Vec<FunctionRow>,
    maps: Vec<maps::MapRow>,
    notes: Vec<String>,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<ExitCode> {
    let name = args.object.display().to_string();
    let object = args.section.read(&args.object)?;
    let mut lifted = lift_supported(&object);
    if args.optimized {
        let mut session = PassSession::new(target(&object));
        PassPipeline::default_o2().run(&mut lifted.module, &mut session).into_diagnostic()?;
    }
    let chosen = choose(args, &object)?;
    if args.cfg == Some(GraphFormat::Svg) && chosen.len() > 1 && !args.json {
        let names: Vec<&str> = chosen.iter().map(|f| object.functions[f.index()].name.as_str()).collect();
        return Err(miette!(
            help = format!("choose one with --prog: {}", names.join(", ")),
            "a picture shows one function, {name} has {}",
            chosen.len()
        ));
    }
    let maps = maps::rows(&object, &promoted(&lifted, target(&object))?);
    let functions: Vec<FunctionRow> = chosen.iter().map(|&f| row(args, &object, &lifted, f)).collect();
    let foreign = (object.byte_order() != ByteOrder::HOST)
        .then(|| format!("it is for {} machines", object.byte_order()));
    let opaque = not_understood(&object, &lifted);
    let report = InspectReport {
        schema: 1,
        object: name,
        license: object.license.clone(),
        functions,
        maps,
        notes: foreign.into_iter().chain(object.notes.iter().cloned()).chain(opaque).collect(),
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).into_diagnostic()? + "\n",
        false => text(args, &report),
    };
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Messages about functions that are shown without IR.
fn not_understood(object: &Object, lifted: &LiftedModule) -> Vec<String> {
    let functions = lifted.left.values().filter(|_| object.frozen.is_none());
    let functions = functions.map(|why| format!("function {} is not understood: {}", why.function, why.what));
    let whole = object.frozen.iter().map(|why| format!("it is not understood: {why}"));
    whole.chain(functions).collect()
}

/// The module with pointers that were spilled to the stack as values, so that map accesses through them are
/// seen.
fn promoted(lifted: &LiftedModule, target: TargetInfo) -> Result<Module> {
    let mut module = lifted.module.clone();
    let pipeline = PassPipeline::of(PROMOTION.iter().copied()).into_diagnostic()?;
    pipeline.run(&mut module, &mut PassSession::new(target)).into_diagnostic()?;
    Ok(module)
}

fn target(object: &Object) -> TargetInfo {
    TargetInfo { byte_order: object.byte_order(), ..TargetInfo::bpf(4) }
}

/// The functions that `--prog` names, or all.
fn choose(args: &InspectArgs, object: &Object) -> Result<Vec<FuncId>> {
    let all = || (0..object.functions.len() as u32).map(FuncId);
    if args.prog.is_empty() {
        return Ok(all().collect());
    }
    let mut chosen = Vec::new();
    for name in &args.prog {
        let found = all().find(|f| object.functions[f.index()].name == *name);
        chosen.push(found.ok_or_else(|| {
            let names: Vec<&str> = object.functions.iter().map(|f| f.name.as_str()).collect();
            miette!(help = format!("there are: {}", names.join(", ")), "there is no function `{name}`")
        })?);
    }
    Ok(chosen)
}

fn row(args: &InspectArgs, object: &Object, lifted: &LiftedModule, id: FuncId) -> FunctionRow {
    let function = &object.functions[id.index()];
    let program = object.programs.iter().find(|p| p.func == id);
    let ir_id: Func = module::func(id);
    let ir = &lifted.module.funcs[ir_id];
    FunctionRow {
        name: function.name.clone(),
        section: function.section.clone(),
        program_type: program.map(|p| type_name(p.kind.program_type)),
        slots: function.insns.len(),
        blocks: ir.layout.len(),
        ir_instructions: ir.insts_in_order().count(),
        disasm: args.disasm.then(|| disasm::text(object, function)),
        ir: args.ir.then(|| print_function(ir_id, ir, PrintOptions::default())),
        cfg: args.cfg.filter(|_| !ir.layout.is_empty()).map(|form| match form {
            GraphFormat::Text => cfg::text(ir),
            GraphFormat::Dot => cfg::dot(ir),
            GraphFormat::Svg => svg::draw(ir),
        }),
    }
}

fn type_name(program_type: millstream_object::ProgramType) -> String {
    program_type.name().unwrap_or_else(|| format!("type {}", program_type.0))
}

/// A number with its noun.
fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// All requested parts; an overview if none was requested.
fn text(args: &InspectArgs, report: &InspectReport) -> String {
    let mut out = String::new();
    let bare = args.cfg.is_some_and(|form| form != GraphFormat::Text);
    let overview = !(args.disasm || args.ir || args.cfg.is_some() || args.maps);
    for row in report.functions.iter().filter(|_| overview || args.disasm || args.ir || args.cfg.is_some()) {
        if !bare {
            let kind = row.program_type.as_deref().unwrap_or("subprogram");
            let _ = writeln!(
                out,
                "{} ({kind}, section {}): {}, {}, {}",
                row.name,
                row.section,
                counted(row.slots as u64, "slot", "slots"),
                counted(row.blocks as u64, "block", "blocks"),
                counted(row.ir_instructions as u64, "IR instruction", "IR instructions")
            );
        }
        for part in [&row.disasm, &row.ir, &row.cfg].into_iter().flatten() {
            out.push_str(part);
            out.push('\n');
        }
    }
    if overview || args.maps {
        out.push_str(&maps::text(&report.maps));
    }
    if overview && report.functions.is_empty() {
        out.push_str("there are no programs in it\n");
    }
    if overview {
        report.notes.iter().for_each(|note| {
            let _ = writeln!(out, "note: {note}");
        });
    }
    out
}
