//! `millstream p4 cli`: commands to a running switch, from a terminal, a pipe or a file.

use std::io::{BufRead, BufReader, IsTerminal as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};

use super::run::CommandAnswer;
use crate::exit::Exit;

/// Prompt of a terminal.
const PROMPT: &str = "p4> ";

/// Flags of `millstream p4 cli`.
#[derive(Debug, clap::Args)]
pub(crate) struct P4CliArgs {
    /// File of commands; by default they come from standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Address of the switch: that of `millstream p4 run --cli`
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9090")]
    address: String,
    /// Run this command, in place of those of a file; may be repeated
    #[arg(short, long = "command", value_name = "COMMAND", conflicts_with = "file")]
    command: Vec<String>,
    /// Print each answer as JSON
    #[arg(long)]
    json: bool,
}

/// A connection to a switch.
struct CommandClient {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    json: bool,
    failed: usize,
}

impl CommandClient {
    fn connect(args: &P4CliArgs) -> Result<CommandClient> {
        let writer = TcpStream::connect(&args.address).map_err(|error| {
            miette!(
                help = "`millstream p4 run PROGRAM --cli ADDR:PORT` listens for commands",
                "cannot connect to {}: {error}",
                args.address
            )
        })?;
        writer.set_nodelay(true).into_diagnostic()?;
        let reader = BufReader::new(writer.try_clone().into_diagnostic()?);
        Ok(CommandClient { reader, writer, json: args.json, failed: 0 })
    }

    /// Runs a command, and prints its answer.
    fn run(&mut self, line: &str) -> Result<()> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        self.writer.write_all(format!("{line}\n").as_bytes()).into_diagnostic()?;
        let mut text = String::new();
        self.reader.read_line(&mut text).into_diagnostic()?;
        let answer: CommandAnswer =
            serde_json::from_str(&text).into_diagnostic().wrap_err("the switch's answer is broken")?;
        self.failed += usize::from(answer.failed);
        match (self.json, answer.failed) {
            (true, _) => outln!("{}", text.trim_end()),
            (false, true) => errln!("{}", answer.text),
            (false, false) if answer.text.is_empty() => {}
            (false, false) => outln!("{}", answer.text),
        }
        Ok(())
    }
}

pub(super) fn run(args: &P4CliArgs) -> Result<ExitCode> {
    let mut client = CommandClient::connect(args)?;
    if !args.command.is_empty() {
        args.command.iter().try_for_each(|line| client.run(line))?;
    } else if let Some(path) = &args.file {
        let text = crate::bounded_read::text(path)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot read {}", path.display()))?;
        text.lines().try_for_each(|line| client.run(line))?;
    } else {
        let is_terminal = std::io::stdin().is_terminal();
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if is_terminal {
                out!("{PROMPT}");
            }
            let Some(line) = lines.next() else { break };
            let line = line.into_diagnostic()?;
            if ["exit", "quit", "EOF"].contains(&line.trim()) {
                break;
            }
            client.run(&line)?;
        }
    }
    Ok(if client.failed == 0 { Exit::Done } else { Exit::Negative }.into())
}
