//! `millstream build`: a configuration or an XDP object as an executable of its own, or as an object file
//! with a header, compiled ahead of time.
//!
//! The executable is this one with the program behind its end ([`ProgramPayload`]). Its runtime is that of
//! `millstream click` and `millstream native`, so packets, tables and accounts are the same; neither LLVM nor
//! our compiler runs in it. [`run_if_built`] runs the program in such an executable, in place of a command.
//! The object file is for programs in C; its runtime is `millstream_embed`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_built::{PayloadKind, ProgramPayload, fill, header};
use millstream_click::{ClickProgram, HandlerWriters};
use millstream_native::{CodegenCpu, ExportOptions, NativeEngine, NativeImage, NativeOptions, ProgramFacts};
use millstream_object::Object;

use crate::exit::Exit;
use crate::native::{CodegenArgs, is_llvm_missing};
use crate::plan::{self, PlanArgs};
use crate::privileges::{self, RequiredPrivileges};
use crate::workload_args::open;
use crate::{click, command_line, log, native};

/// Flags of `millstream build`.
#[derive(Debug, clap::Args)]
pub struct BuildArgs {
    /// Configuration or object to build: CONF.click, FILE.o, FILE.o:PROGRAM or builtin:NAME
    #[arg(value_name = "CONF|OBJECT")]
    input: String,
    /// Variables that win over the configuration's `define`
    #[arg(value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// The program to build, if the object has several
    #[arg(long, value_name = "NAME")]
    prog: Option<String>,
    /// Output file; an object file FILE.o comes with a header FILE.h
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Kind of output: an executable, or an object file for programs in C, which they link with
    /// libmillstream_embed
    #[arg(long, value_name = "KIND", default_value = "exe")]
    emit: EmitKind,
    /// Target processor: `native`, for this machine's and all with the same features, or a level of x86-64
    #[arg(long, value_name = "CPU", default_value = "native")]
    cpu: TargetCpu,
    /// Keep values that handlers set out of the code, so that they can be written at run time: by
    /// `--control`, or by the program in C
    #[arg(long)]
    writable: bool,
    #[command(flatten)]
    tuning: CodegenArgs,
    #[command(flatten)]
    plan: PlanArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum EmitKind {
    Exe,
    Obj,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum TargetCpu {
    Native,
    #[value(name = "x86-64")]
    Level1,
    #[value(name = "x86-64-v2")]
    Level2,
    #[value(name = "x86-64-v3")]
    Level3,
    #[value(name = "x86-64-v4")]
    Level4,
}

impl From<TargetCpu> for CodegenCpu {
    fn from(processor: TargetCpu) -> CodegenCpu {
        match processor {
            TargetCpu::Native => CodegenCpu::Native,
            TargetCpu::Level1 => CodegenCpu::Level(1),
            TargetCpu::Level2 => CodegenCpu::Level(2),
            TargetCpu::Level3 => CodegenCpu::Level(3),
            TargetCpu::Level4 => CodegenCpu::Level(4),
        }
    }
}

/// Runs the command.
pub fn run(args: &BuildArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let is_object = is_object(&args.input)?;
    let hash = || match is_object {
        true => plan::object_hash(&args.input, args.prog.as_deref()),
        false => click::configuration_hash(Path::new(&args.input), &args.variables),
    };
    let tuning = args.tuning.with_plan(&args.plan, hash)?;
    let workers = tuning.workers()?;
    let options = NativeOptions { cpu: args.cpu.into(), workers, ..tuning.options() };
    let (input, options) = match is_object {
        true => (object(args, &tuning)?, NativeOptions { seed: native::seed(), ..options }),
        false => {
            let input = configuration(args, &tuning)?;
            let facts = input.facts();
            (input, NativeOptions { facts, ..options })
        }
    };
    let wrote = match args.emit {
        EmitKind::Exe => executable(args, &input, &options)?,
        EmitKind::Obj => object_file(args, &input, &options)?,
    };
    let Some(wrote) = wrote else { return Ok(Exit::NotPermitted.into()) };
    outln!("{wrote}, in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(Exit::Done.into())
}

/// Returns true if the input is an object, not a text.
fn is_object(input: &str) -> Result<bool> {
    if input.starts_with("builtin:") || input.ends_with(".insns") {
        return Ok(true);
    }
    let path =
        if Path::new(input).exists() { input } else { input.rsplit_once(':').map_or(input, |(p, _)| p) };
    let mut magic = [0; 4];
    let mut file = std::fs::File::open(path).into_diagnostic().wrap_err_with(|| path.to_owned())?;
    Ok(std::io::Read::read_exact(&mut file, &mut magic).is_ok() && magic == *b"\x7fELF")
}

/// The code of an image, or `None`, with a message to the user, without LLVM.
fn compiled<T>(input: &str, made: Result<T, millstream_native::NativeError>) -> Result<Option<T>> {
    match made {
        Ok(image) => Ok(Some(image)),
        Err(e) if is_llvm_missing(&e) => {
            errln!("{e}");
            Ok(None)
        }
        Err(e) => Err(e).into_diagnostic().wrap_err_with(|| input.to_owned()),
    }
}

/// Configuration or object to build.
enum BuildInput {
    Object { name: String, object: Box<Object>, program: Option<String> },
    Configuration { name: String, program: Box<ClickProgram> },
}

fn object(args: &BuildArgs, tuning: &CodegenArgs) -> Result<BuildInput> {
    tuning.of_objects()?;
    if args.writable {
        return Err(miette!("--writable is for configurations of Click"));
    }
    if let Some(extra) = args.variables.first() {
        return Err(miette!("{extra:?}: variables are for configurations of Click"));
    }
    let (object, program) = open(&args.input)?;
    let program = args.prog.clone().or(program);
    Ok(BuildInput::Object { name: args.input.clone(), object: Box::new(object), program })
}

fn configuration(args: &BuildArgs, tuning: &CodegenArgs) -> Result<BuildInput> {
    if args.prog.is_some() {
        return Err(miette!("--prog is for objects"));
    }
    let writers = if args.writable { HandlerWriters::Anybody } else { HandlerWriters::Scripts };
    let (conf, general) = (Path::new(&args.input), tuning.general());
    // Programs in C supply batches of their own, between which no packet waits.
    let general = if matches!(args.emit, EmitKind::Exe) { click::with_clock(general) } else { general };
    let source = click::ConfigSource::of_file(conf, &args.variables);
    let program = click::compile_to_ir(&source, tuning.workers()?, (writers, general))?;
    Ok(BuildInput::Configuration { name: args.input.clone(), program: Box::new(program) })
}

impl BuildInput {
    /// Facts for the compilation. There are none for objects: the engine knows their lines, and nobody knows the
    /// prefixes.
    fn facts(&self) -> ProgramFacts {
        match self {
            BuildInput::Object { .. } => ProgramFacts::default(),
            BuildInput::Configuration { program, .. } => click::facts(program),
        }
    }

    /// Payload with the code and everything else that is written down.
    fn payload(&self, image: NativeImage) -> ProgramPayload {
        match self {
            BuildInput::Object { name, .. } => ProgramPayload {
                kind: PayloadKind::Native { object: name.clone() },
                image,
                entries: Vec::new(),
            },
            BuildInput::Configuration { name, program } => {
                let kind = PayloadKind::Click { configuration: name.clone(), program: program.clone() };
                ProgramPayload { kind, image, entries: program.code.entries.clone() }
            }
        }
    }
}

/// Writes an executable and reports it; `None`, with a message to the user, without LLVM.
fn executable(args: &BuildArgs, input: &BuildInput, options: &NativeOptions) -> Result<Option<String>> {
    let image = match input {
        BuildInput::Object { object, program, .. } => {
            NativeEngine::build_object(object, program.as_deref(), options)
        }
        BuildInput::Configuration { program, .. } => {
            NativeEngine::build_module(program.code.module.clone(), program.code.entry, options)
        }
    };
    let Some(image) = compiled(&args.input, image)? else { return Ok(None) };
    let code = image.code().len();
    let bytes = write(&args.output, &input.payload(image))?;
    Ok(Some(format!("{}: {code} bytes of machine code, {bytes} in all", args.output.display())))
}

/// Writes an object file and its header and reports it; `None`, with a message to the user, without LLVM.
fn object_file(args: &BuildArgs, input: &BuildInput, options: &NativeOptions) -> Result<Option<String>> {
    if options.workers > 1 {
        return Err(miette!("an object file's program is run by one worker: leave --workers out"));
    }
    let path = args.output.with_extension("h");
    if path == args.output {
        return Err(miette!("{}: an object file has another name than its header", path.display()));
    }
    let symbol = header::symbol(&args.output.file_stem().unwrap_or_default().to_string_lossy());
    let payload = |image: &NativeImage| input.payload(image.clone());
    // A payload that cannot be serialized gets no description; opening it reports that.
    let describe = |image: &NativeImage| payload(image).to_bytes().unwrap_or_default();
    let linkage = ExportOptions { symbol: &symbol, describe: &describe };
    let object = match input {
        BuildInput::Object { object, program, .. } => {
            NativeEngine::link_object(object, program.as_deref(), options, &linkage)
        }
        BuildInput::Configuration { program, .. } => {
            NativeEngine::link_module(program.code.module.clone(), program.code.entry, options, &linkage)
        }
    };
    let Some((object, image)) = compiled(&args.input, object)? else { return Ok(None) };
    for (path, bytes) in
        [(&args.output, object.as_slice()), (&path, header::header(&symbol, &payload(&image)).as_bytes())]
    {
        std::fs::write(path, bytes).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    }
    Ok(Some(format!("{} and {}: {} bytes", args.output.display(), path.display(), object.len())))
}

/// Writes the executable, and returns its size in bytes. An existing file is replaced atomically: it may be
/// running, and it stays as it is if the new one cannot be written whole.
fn write(path: &Path, built: &ProgramPayload) -> Result<u64> {
    let at = || path.display().to_string();
    let own = std::fs::read("/proc/self/exe").into_diagnostic().wrap_err("this executable")?;
    let put = || -> std::io::Result<u64> {
        let beside = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(beside)?;
        new.write_all(&own)?;
        new.write_all(&built.to_bytes()?)?;
        new.as_file().set_permissions(std::fs::Permissions::from_mode(0o755))?;
        Ok(new.persist(path)?.metadata()?.len())
    };
    put().into_diagnostic().wrap_err_with(at)
}

/// Run a program that was built from a configuration
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 80)]
#[command(after_help = crate::exit::help(), disable_help_flag = true)]
struct StandaloneClickCli {
    #[command(flatten)]
    running: click::ClickRunArgs,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    log: log::LogFlags,
}

/// Run a program that was built from an XDP object
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 80, after_help = crate::exit::help())]
struct StandaloneNativeCli {
    #[command(flatten)]
    running: native::NativeRunArgs,
    #[command(flatten)]
    log: log::LogFlags,
}

/// Runs the program that this executable was built from, if any.
pub fn run_if_built() -> Option<ExitCode> {
    let built = match ProgramPayload::of_this_executable() {
        Ok(built) => built?,
        Err(e) => {
            errln!("the program behind this executable cannot be read: {e}");
            return Some(Exit::Input.into());
        }
    };
    Some(execute(built).unwrap_or_else(|report| command_line::report_error(&report)))
}

fn reduce(needs: RequiredPrivileges) {
    privileges::reduce(needs, &std::env::args_os().skip(1).collect::<Vec<_>>());
}

fn execute(built: ProgramPayload) -> Result<ExitCode> {
    match built.kind {
        PayloadKind::Click { configuration, mut program } => {
            let StandaloneClickCli { running, log, .. } = match command_line::parse(std::env::args_os()) {
                Ok(flags) => flags,
                Err(code) => return Ok(code),
            };
            log::start(log, "warn");
            reduce(running.needs());
            if let Some(code) = running.watch.begin()? {
                return Ok(code);
            }
            program.code.entries = built.entries;
            let mut engine = NativeEngine::of_image(&built.image).into_diagnostic()?;
            fill(&mut engine, &program.code.entries).into_diagnostic()?;
            click::execute(&configuration, &running, *program, &mut engine, None)
        }
        PayloadKind::Native { object } => {
            let StandaloneNativeCli { running, log } = match command_line::parse(std::env::args_os()) {
                Ok(flags) => flags,
                Err(code) => return Ok(code),
            };
            log::start(log, "warn");
            reduce(running.needs());
            if let Some(code) = running.watch.begin()? {
                return Ok(code);
            }
            let mut engine = NativeEngine::of_image(&built.image).into_diagnostic()?;
            native::execute(&object, &running, &mut engine, None)
        }
    }
}
