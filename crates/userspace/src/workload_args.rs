//! Traffic, tables and objects of a run, as flags that several commands share.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, WrapErr};
use millstream_isa::ByteOrder;
use millstream_lab::workload::{BuiltinWorkload, Workload, locality, plain};
use millstream_lab::{os, pcap};
use millstream_object::Object;

use crate::exit::{Exit, ExitError};
use crate::{bounded_read, capture, input};

/// Frames of a capture file that are replayed, at most.
pub const MOST_FRAMES: usize = 1 << 20;

/// Traffic and tables for programs.
#[derive(Clone, Debug, clap::Args)]
pub struct TrafficArgs {
    /// Fill the maps with generated tables, and draw the packets from them: `builtin:NAME[:SIZE]` with a NAME
    /// of router, switch, firewall, nat, balancer. This is the default for built-in data planes
    #[arg(long, value_name = "TABLES")]
    tables: Option<String>,
    /// Flows to draw from the tables
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=MOST_FRAMES as i64)
    )]
    pub flows: u32,
    /// Distribution of packets over flows: `high`, `low`, `none` (ClassBench's Pareto rule) or
    /// `zipf:EXPONENT`
    #[arg(long, value_name = "RULE", default_value = "high")]
    locality: String,
    /// Replay this capture (pcap or pcapng, plain or gzip) in place of packets drawn from the tables
    #[arg(long, visible_alias = "traffic", value_name = "FILE", group = "recorded")]
    pcap: Option<PathBuf>,
    /// Send this frame, a file with its bytes, in place of packets drawn from the tables
    #[arg(long, value_name = "FILE", group = "recorded")]
    packet: Option<PathBuf>,
}

impl Default for TrafficArgs {
    fn default() -> TrafficArgs {
        TrafficArgs { tables: None, flows: 10_000, locality: "high".to_owned(), pcap: None, packet: None }
    }
}

/// Recorded frames, and a description of their source.
pub type RecordedFrames = (Vec<Vec<u8>>, &'static str);

impl TrafficArgs {
    /// The workload for a program with these two ports, and the order of its frames.
    pub fn workload(&self, object: &str, ports: [u32; 2]) -> Result<(Workload, Vec<u32>), miette::Report> {
        self.workload_at(object, ports, os::monotonic_ns())
    }

    /// The same, whose connections had their last packet at this time (`CLOCK_MONOTONIC`, nanoseconds).
    pub fn workload_at(
        &self,
        object: &str,
        ports: [u32; 2],
        now: u64,
    ) -> Result<(Workload, Vec<u32>), miette::Report> {
        const DRAWS: usize = 1 << 16;
        const SEED: u64 = 44;
        let own = object.starts_with("builtin:").then(|| object.to_owned());
        let tables: Option<BuiltinWorkload> =
            self.tables.clone().or(own).map(|t| t.parse()).transpose().into_diagnostic()?;
        let rule = locality(&self.locality).into_diagnostic()?;
        let mut load = match &tables {
            Some(tables) => tables.workload_at(ports, self.flows as usize, rule, now).into_diagnostic()?,
            None => plain(Vec::new(), ""),
        };
        if let Some((frames, from)) = self.recorded()? {
            let order = (0..frames.len() as u32).collect();
            let recorded = plain(frames, from);
            load.flows = recorded.flows;
            let tables =
                if tables.is_some() { format!("; tables of {}", load.description) } else { String::new() };
            load.description = recorded.description + &tables;
            return Ok((load, order));
        }
        if tables.is_none() {
            return Ok((load, vec![0]));
        }
        load.description += &format!(", locality {}, order seed {SEED}", self.locality);
        let order = load.flows.sequence(SEED, DRAWS);
        Ok((load, order))
    }

    /// The same with this capture in place of packets drawn from the tables.
    #[must_use]
    pub fn with_capture(&self, path: &Path) -> TrafficArgs {
        TrafficArgs { pcap: Some(path.to_owned()), packet: None, ..self.clone() }
    }

    /// Frames from a file, and a description of their source.
    pub fn recorded(&self) -> Result<Option<RecordedFrames>, miette::Report> {
        if let Some(path) = &self.packet {
            let frame =
                bounded_read::bytes(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
            return Ok(Some((vec![frame], "one frame from a file")));
        }
        let Some(path) = &self.pcap else { return Ok(None) };
        let capture = pcap::read(path, MOST_FRAMES).into_diagnostic()?;
        capture::warn(&capture);
        if capture.left_out > 0 {
            errln!("{}: frames that cannot be sent: {}", path.display(), capture.left_out);
        }
        Ok(Some((capture.frames, "a capture in its order")))
    }
}

/// An object file, or one of our own; and the program that is named behind the colon.
///
/// # Errors
/// If it cannot be read, or is for machines of the other byte order.
pub fn open(spec: &str) -> Result<(Object, Option<String>), miette::Report> {
    if spec.starts_with("builtin:") {
        let builtin: BuiltinWorkload = spec.parse().into_diagnostic()?;
        return Ok((input::read(Path::new(spec))?, Some(builtin.program.function.to_owned())));
    }
    let (path, program) = match spec.rsplit_once(':') {
        Some((path, program)) if !program.contains('/') => (path, Some(program.to_owned())),
        _ => (spec, None),
    };
    let object = input::read(Path::new(path))?;
    let order = object.byte_order();
    if order != ByteOrder::HOST {
        let message = format!("{path}: it is for {order} machines, and this machine is {}", ByteOrder::HOST);
        return Err(ExitError::plain(message, Exit::NotPermitted).into());
    }
    Ok((object, program))
}

/// Returns true for an acceptable measurement time, in seconds.
pub fn is_length(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= 86_400.0
}

/// Exit code after an interruption by the user, when everything was cleaned up.
pub fn interrupted() -> Exit {
    errln!("interrupted: no answer");
    Exit::Unknown
}

#[cfg(test)]
mod tests {
    use super::open;

    #[test]
    fn an_object_is_a_file_or_a_built_in_one_with_the_program_behind_the_colon() {
        let (object, program) = open("builtin:router:10").unwrap();
        assert_eq!((object.programs.len(), program.as_deref()), (1, Some("router")));
        assert!(open("builtin:none").is_err());
        assert!(open("/does/not/exist.o:x").unwrap_err().to_string().contains("/does/not/exist.o"));
    }
}
