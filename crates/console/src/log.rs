//! Logs of commands: records on standard error, each one line with its time, as text or JSON.
//!
//! The level is that of `-v`, or else of `MILLSTREAM_LOG`, or else of `RUST_LOG`, or else the command's own.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::output::{self, StderrWriter};

/// Variables that choose the records to log; the first one that is set counts.
const VARIABLES: [&str; 2] = ["MILLSTREAM_LOG", "RUST_LOG"];

/// Logging flags of all commands.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LogFlags {
    /// Log more to standard error: -v actions, -vv their details, -vvv everything; MILLSTREAM_LOG and
    /// RUST_LOG choose by module
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = "Logging")]
    verbose: u8,
    /// Format of log records
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        default_value = "text",
        global = true,
        help_heading = "Logging"
    )]
    log_format: LogFormat,
}

/// Format of log records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum LogFormat {
    /// Time, level, module and message; in colours on a terminal, unless NO_COLOR is set
    Text,
    /// One JSON object a line: `timestamp`, `level`, `target`, `message` and other fields
    Json,
}

/// Sends records to standard error from now on: those of this level and above, unless flags or variables
/// choose others. Only the first call of a process counts.
pub fn start(flags: LogFlags, level: &'static str) {
    let chosen = VARIABLES.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let filter = match (flags.verbose, chosen) {
        (0, None) => EnvFilter::new(level),
        (0, Some((name, text))) => EnvFilter::try_new(&text).unwrap_or_else(|error| {
            errln!("{name}={text:?}: {error}; logging what is {level:?} or worse");
            EnvFilter::new(level)
        }),
        (1, _) => EnvFilter::new("info"),
        (2, _) => EnvFilter::new("debug"),
        (_, _) => EnvFilter::new("trace"),
    };
    // A failure to write has nowhere to be reported.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    let has_colours = output::are_errors_coloured();
    // A second call of one process, by a fuzzer, changes nothing.
    let _ = match flags.log_format {
        LogFormat::Text => {
            builder.with_ansi(has_colours).with_writer(move || LogLineWriter { has_colours }).try_init()
        }
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_ansi(false)
            .with_writer(|| LogLineWriter { has_colours: false })
            .try_init(),
    };
}

/// Writes one record on one line: control characters in messages are escaped, except those for colours.
struct LogLineWriter {
    has_colours: bool,
}

impl io::Write for LogLineWriter {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        StderrWriter.write_all(one_line(record, self.has_colours).as_bytes())?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        StderrWriter.flush()
    }
}

fn one_line(record: &[u8], has_colours: bool) -> String {
    let text = String::from_utf8_lossy(record);
    let mut line = String::with_capacity(text.len() + 1);
    for c in text.strip_suffix('\n').unwrap_or(&text).chars() {
        if c.is_control() && !(has_colours && c == '\u{1b}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn a_record_is_one_line_without_control_characters() {
        assert_eq!(one_line(b"a\nb\tc\x1b[1m\n", false), "a\\nb\\tc\\u{1b}[1m\n");
        assert_eq!(one_line(b"\x1b[1ma\x1b[0m\n", true), "\x1b[1ma\x1b[0m\n");
        assert_eq!(one_line(b"no end", false), "no end\n");
    }
}
