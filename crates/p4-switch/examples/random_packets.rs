//! Lowers every program of a folder, and compares what random packets become before and after the static passes.
//!
//! `random_packets FOLDER... [-I PATH] [--packets N]`. `millstream p4 test` runs the STF files of a folder.

use std::path::Path;
use std::sync::Arc;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4_lower::{LoweredProgram, lower};
use millstream_p4_switch::{InterpreterExecutor, Switch, SwitchError};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};
use millstream_rng::Rng;

/// Files of the machine.
struct FolderLoader;

impl SourceLoader for FolderLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn main() {
    let (mut options, mut packets, mut folders) = (CompileOptions::default(), 100, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-I" => options.search_paths.extend(arguments.next()),
            "--packets" => packets = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(packets),
            _ => folders.push(argument),
        }
    }
    let (mut same, mut refused, mut different) = (0, 0, 0);
    let files = folders.iter().flat_map(|folder| walkdir::WalkDir::new(folder).sort_by_file_name());
    let programs = files.filter_map(Result::ok).map(|file| file.into_path());
    for path in programs.filter(|path| path.extension().is_some_and(|e| e == "p4")) {
        match lowered(&path, &options) {
            Ok(program) => match send(&program, packets) {
                Ok(()) => same += 1,
                Err(difference) => {
                    different += 1;
                    println!("{}: {difference}", path.display());
                }
            },
            Err(reason) => {
                refused += 1;
                println!("{}: refused: {reason}", path.display());
            }
        }
    }
    println!("same: {same}, different: {different}, refused: {refused}");
}

fn lowered(path: &Path, options: &CompileOptions) -> Result<LoweredProgram, String> {
    let program = compile(&path.to_string_lossy(), &mut FolderLoader, options);
    match program.diagnostics.iter().find(|diagnostic| diagnostic.is_error()) {
        Some(error) => Err(error.render(&program.sources).to_string()),
        None => lower(&program).map_err(|error| error.render(&program.sources)),
    }
}

/// Sends packets of all lengths up to 200 bytes; an endless loop of the program is no failure.
fn send(plain: &LoweredProgram, packets: usize) -> Result<(), String> {
    let mut optimized = plain.clone();
    let mut session = PassSession::new(TargetInfo::native());
    session.verify = true;
    let ran = PassPipeline::default_o2().run(&mut optimized.module, &mut session);
    ran.map_err(|error| format!("a pass fails: {error}"))?;
    let switch = |program: LoweredProgram| {
        let program = Arc::new(program);
        let executor = InterpreterExecutor::new(Arc::clone(&program));
        Switch::new(program, executor).map_err(|error| error.to_string())
    };
    let (mut switch, mut other) = (switch(optimized)?, switch(plain.clone())?);
    let mut random = Rng::new(1);
    for round in 0..packets {
        let packet: Vec<u8> = (0..round % 200).map(|_| random.next_u64() as u8).collect();
        let port = random.below(8);
        let (sent, expected) = (switch.receive(port, &packet), other.receive(port, &packet));
        match sent {
            Ok(sent) if expected.as_ref() != Ok(&sent) => {
                return Err(format!("{packet:02x?} gives {sent:02x?}, before the passes {expected:02x?}"));
            }
            Ok(_) | Err(SwitchError::Endless) => {}
            Err(error) if error.to_string().contains("instructions executed") => {}
            Err(error) => return Err(format!("{error} on {packet:02x?}")),
        }
    }
    Ok(())
}
