//! `millstream p4 info`.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_p4runtime::{MessageFormat, describe_program, encode_message};
use millstream_p4runtime_server::encode_config;

use super::PreprocessorArgs;
use crate::exit::Exit;

/// Flags of `millstream p4 info`.
#[derive(Debug, clap::Args)]
pub(crate) struct P4InfoArgs {
    /// The program
    #[arg(value_name = "FILE")]
    program: PathBuf,
    #[command(flatten)]
    preprocessor: PreprocessorArgs,
    /// Form of the messages; by default that of the name of the output file, or text
    #[arg(long, value_name = "FORMAT")]
    format: Option<InfoFormat>,
    /// Write the P4Info to this file, in place of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write the program's initial table entries to this file, as a P4Runtime `WriteRequest`
    #[arg(long, value_name = "FILE")]
    entries: Option<PathBuf>,
    /// Also write the program with all files that it includes to this file, as controllers send it to a switch
    /// (the device config of P4Runtime)
    #[arg(long, value_name = "FILE")]
    config_out: Option<PathBuf>,
}

impl P4InfoArgs {
    /// Returns true if no file is written.
    pub(super) fn only_prints(&self) -> bool {
        self.output.is_none() && self.entries.is_none() && self.config_out.is_none()
    }

    fn format(&self, output: Option<&PathBuf>) -> MessageFormat {
        match (self.format, output) {
            (Some(InfoFormat::Text), _) | (None, None) => MessageFormat::Text,
            (Some(InfoFormat::Binary), _) => MessageFormat::Binary,
            (Some(InfoFormat::Json), _) => MessageFormat::Json,
            (None, Some(path)) => MessageFormat::of_path(&path.to_string_lossy()),
        }
    }
}

/// Forms of messages.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum InfoFormat {
    /// The text format of Protocol Buffers (`.txtpb`)
    Text,
    /// The binary format (`.bin`, `.binpb`, `.pb`)
    Binary,
    /// JSON (`.json`)
    Json,
}

pub(super) fn run(args: &P4InfoArgs) -> Result<ExitCode> {
    let program = super::read_accepted(&args.program, &args.preprocessor.options())?;
    let description = describe_program(&program).into_diagnostic()?;
    let info = encode_message(&description.info, args.format(args.output.as_ref())).into_diagnostic()?;
    if let Some(path) = &args.entries {
        let entries = encode_message(&description.entries, args.format(Some(path))).into_diagnostic()?;
        std::fs::write(path, entries)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.config_out {
        std::fs::write(path, encode_config(&program, &args.preprocessor.options()))
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot write {}", path.display()))?;
    }
    match &args.output {
        Some(path) => std::fs::write(path, info)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot write {}", path.display()))?,
        None => {
            let _ = std::io::Write::write_all(&mut crate::output::StdoutWriter, &info);
        }
    }
    Ok(Exit::Done.into())
}
