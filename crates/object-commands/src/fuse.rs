//! `millstream fuse`: a dispatcher and the programs behind it as one program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_object::{ChainComponent, EntryProgram, FuncId, Object, ProgramType, fuse};
use millstream_opt::{
    ChainMember, OptError, OptimizeOptions, ProgramCosts, configure_dispatcher, costs, dispatcher_slot,
    optimize_chain, run_settings,
};
use serde::Serialize;

use crate::exit::Exit;
use crate::input;

type Result<T, E = miette::Report> = std::result::Result<T, E>;

/// Makes one program of a dispatcher and the programs that it calls, in the order of their priorities.
#[derive(clap::Args, Debug)]
pub struct FuseArgs {
    /// Object of the dispatcher, such as libxdp's `xdp-dispatcher.o`
    dispatcher: PathBuf,
    /// Object of each component, with the name of its program where it has several: `FILE` or `FILE:PROGRAM`;
    /// of equal priorities, the one given first runs first
    #[arg(required = true)]
    components: Vec<PathBuf>,
    /// Write the program to this file; by default, only report
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FuseReport {
    schema: u32,
    program: String,
    components: Vec<ComponentReport>,
    /// The chain as its loader links it, and the fused program.
    costs: ProgramCosts,
}

#[derive(Serialize)]
struct ComponentReport {
    object: String,
    program: String,
    priority: u32,
    /// Verdicts after which the next program runs.
    continue_after: Vec<&'static str>,
    /// Names of its maps in the result.
    maps: Vec<String>,
}

/// A component as it was read.
struct ReadComponent {
    object: Object,
    program: EntryProgram,
    member: ChainMember,
}

/// Runs the command.
pub fn run(args: &FuseArgs) -> Result<ExitCode> {
    let mut host = input::read(&args.dispatcher)?;
    let mut components = args.components.iter().map(|path| component(path)).collect::<Result<Vec<_>>>()?;
    components.sort_by_key(|c| c.member.priority);
    let members: Vec<ChainMember> = components.iter().map(|c| c.member).collect();
    let named = || format!("in {}", args.dispatcher.display());
    configure_dispatcher(&mut host, &members).into_diagnostic().wrap_err_with(named)?;
    let placed = components.iter().enumerate().map(|(n, c)| {
        let target = dispatcher_slot(&host, n).ok_or_else(|| miette!("it has no function prog{n}"))?;
        Ok(ChainComponent { target, object: &c.object, program: c.program.func })
    });
    let placed = placed.collect::<Result<Vec<_>>>().wrap_err_with(named)?;
    let main = caller(&host, placed.first().map(|c| c.target)).wrap_err_with(named)?;
    let linked = match fuse(&host, main, &placed) {
        Ok(fused) => fused.object,
        Err(error) => {
            errln!("not fused: {error}");
            return Ok(Exit::Negative.into());
        }
    };
    let fused = match optimize_chain(&host, main, &placed, &OptimizeOptions::default()) {
        Err(OptError::Fuse(error)) => {
            errln!("not fused: {error}");
            return Ok(Exit::Negative.into());
        }
        fused => fused.into_diagnostic()?,
    };
    if let Some(path) = &args.output {
        input::write(path, &fused.object)?;
    }
    let maps = |n: usize| fused.maps[n].iter().map(|id| fused.object.maps[id.index()].name.clone()).collect();
    let rows = components.iter().enumerate().map(|(n, c)| ComponentReport {
        object: c.object.name.clone(),
        program: c.program.name.clone(),
        priority: c.member.priority,
        continue_after: c.member.verdicts(),
        maps: maps(n),
    });
    let Some(costs) = costs(&linked, &fused.object).pop() else {
        return Err(miette!("the fused object has no program"));
    };
    let report = FuseReport { schema: 1, program: costs.name.clone(), components: rows.collect(), costs };
    if args.json {
        outln!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        out!("{}", text(&report));
    }
    Ok(ExitCode::SUCCESS)
}

/// The program of the dispatcher that calls a stub.
fn caller(host: &Object, stub: Option<FuncId>) -> Result<FuncId> {
    let calls = |p: &&EntryProgram| {
        let mut relocs = host.functions[p.func.index()].relocs.iter();
        relocs.any(|r| matches!(r.kind, millstream_object::RelocKind::Call(to) if Some(to) == stub))
    };
    let found = host.programs.iter().find(calls).map(|p| p.func);
    found.ok_or_else(|| miette!("none of its programs calls prog0"))
}

/// Reads a component, `FILE` or `FILE:PROGRAM`.
fn component(path: &Path) -> Result<ReadComponent> {
    let text = path.to_string_lossy();
    let parts = text.rsplit_once(':').filter(|_| !path.exists() && !text.starts_with("builtin:"));
    let (file, name) = match parts {
        Some((file, name)) => (Path::new(file), Some(name)),
        None => (path, None),
    };
    let object = input::read(file)?;
    let fits = |p: &&EntryProgram| {
        matches!(p.kind.program_type, ProgramType::XDP | ProgramType::EXT)
            && name.is_none_or(|name| p.name == name)
    };
    let found: Vec<&EntryProgram> = object.programs.iter().filter(fits).collect();
    let program = match found.as_slice() {
        [program] => (*program).clone(),
        [] => return Err(miette!("{}: there is no such XDP program", path.display())),
        several => {
            let names: Vec<&str> = several.iter().map(|p| p.name.as_str()).collect();
            let help = format!("name one, as {}:{}", file.display(), names[0]);
            return Err(miette!(help = help, "{}: it has {}", file.display(), names.join(", ")));
        }
    };
    let member = run_settings(&object, &program.name);
    Ok(ReadComponent { object, program, member })
}

/// The report as text.
fn text(report: &FuseReport) -> String {
    let mut text = String::new();
    for (n, c) in report.components.iter().enumerate() {
        let verdicts =
            if c.continue_after.is_empty() { "none".to_owned() } else { c.continue_after.join(", ") };
        text += &format!(
            "{n}  {} {}: priority {}, next after {verdicts}; maps: {}\n",
            c.object,
            c.program,
            c.priority,
            if c.maps.is_empty() { "none".to_owned() } else { c.maps.join(", ") }
        );
    }
    let ProgramCosts { name, before, after, .. } = &report.costs;
    text += &format!(
        "{name}: {} > {} slots, {:.1} > {:.1} predicted cycles\n",
        before.slots,
        after.slots,
        before.cycles as f64 / 1000.0,
        after.cycles as f64 / 1000.0
    );
    text
}
