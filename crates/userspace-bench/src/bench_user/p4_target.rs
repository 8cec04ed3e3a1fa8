//! A P4 program to measure: its code of batches, generated entries, and packets that hit them.

use std::path::Path;
use std::sync::Arc;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_native::{NativeOptions, ProgramFacts, VariantSupport};
use millstream_p4_lower::{LoweredProgram, lower};
use millstream_p4_native::{BatchProgram, EntrySource, P4Workload, parse_prefix};
use millstream_plan::fingerprint;

use super::traffic::TrafficPattern;
use crate::bounded_read;
use crate::workload_args::TrafficArgs;

/// Most generated entries of a table, if nobody says how many.
const USUAL_ENTRIES: u64 = 1 << 16;

/// Returns true if this names a P4 program.
pub(super) fn is_p4(what: &str) -> bool {
    Path::new(what).extension().is_some_and(|ending| ending == "p4")
}

/// A program with its entries and packets.
pub(crate) struct P4Target {
    pub(super) program: BatchProgram,
    pub(super) workload: P4Workload,
    traffic: TrafficPattern,
}

impl P4Target {
    /// Reads the program; variables are macros.
    ///
    /// # Errors
    /// If the program is wrong or cannot run in batches, or entries or packets cannot be made.
    pub(super) fn read(
        what: &str,
        macros: &[String],
        (entries, feed): (&[String], &TrafficArgs),
    ) -> Result<P4Target> {
        let checked = millstream_p4_commands::read_program(Path::new(what), macros)?;
        let lowered = lower(&checked).map_err(|error| miette!("{}", error.render(&checked.sources)))?;
        let lowered = Arc::new(lowered);
        let program = BatchProgram::new(&lowered).map_err(|refusal| {
            miette!(
                help = "`millstream p4 run` has a switch for such programs",
                "{what}: this program cannot run in batches: {refusal}"
            )
        })?;
        let recorded = feed.recorded()?;
        let packet = recorded.as_ref().and_then(|(frames, _)| frames.first().cloned());
        let sources = sources(&lowered, entries)?;
        let workload = P4Workload::new(&lowered, sources, packet).into_diagnostic().wrap_err_with(|| {
            format!("{what}: --entries and --packet say what tables hold and packets are")
        })?;
        let (frames, packets) = match recorded {
            Some((frames, from)) if frames.len() > 1 => (frames, from.to_owned()),
            _ => {
                let count = feed.flows as usize;
                (workload.frames(count), format!("{count} packets with keys of random entries"))
            }
        };
        let order = (0..frames.len() as u32).collect();
        let description = match workload.description() {
            none if none.is_empty() => packets,
            entries => format!("{packets}; {entries}"),
        };
        let traffic = TrafficPattern { frames, order, description };
        Ok(P4Target { program, workload, traffic })
    }

    /// Options, with what is known of the tables.
    pub(super) fn options(&self, options: NativeOptions) -> NativeOptions {
        let variants = VariantSupport::Exchanged;
        NativeOptions {
            facts: ProgramFacts { prefixes: self.workload.prefixes(), ..ProgramFacts::default() },
            variants,
            ..options
        }
    }

    /// Packets.
    pub(super) fn traffic(&self) -> TrafficPattern {
        let TrafficPattern { frames, order, description } = &self.traffic;
        TrafficPattern { frames: frames.clone(), order: order.clone(), description: description.clone() }
    }
}

/// Hash of a program, for plans.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn program_hash(what: &str, macros: &[String]) -> Result<u64> {
    let bytes = bounded_read::bytes(Path::new(what)).into_diagnostic().wrap_err_with(|| what.to_owned())?;
    let macros = macros.iter().map(String::as_bytes);
    Ok(fingerprint(std::iter::once(bytes.as_slice()).chain(macros)))
}

/// Entries of tables: those that are said, and generated ones for all others.
fn sources(program: &LoweredProgram, said: &[String]) -> Result<Vec<(String, EntrySource)>> {
    let (mut named, mut usual) = (Vec::new(), USUAL_ENTRIES);
    for text in said {
        match text.split_once('=') {
            Some((table, source)) => named.push((table.to_owned(), entry_source(source)?)),
            None => usual = count(text).ok_or_else(|| miette!("--entries {text}: no number of entries"))?,
        }
    }
    for (table, size) in P4Workload::fillable(program) {
        let is_said =
            |(name, _): &(String, EntrySource)| *name == table || table.ends_with(&format!(".{name}"));
        if !named.iter().any(is_said) {
            named.push((table, EntrySource::Generated(usual.min(size))));
        }
    }
    Ok(named)
}

/// A number, optionally in units of 1,024 or 1,048,576.
fn count(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|number| *number > 0)
}

/// So many generated entries, or the prefixes of a file.
fn entry_source(text: &str) -> Result<EntrySource> {
    if let Some(count) = count(text) {
        return Ok(EntrySource::Generated(count));
    }
    let lines = bounded_read::text(Path::new(text)).into_diagnostic().wrap_err_with(|| text.to_owned())?;
    let prefixes: Vec<_> = lines.lines().filter_map(parse_prefix).collect();
    match prefixes.is_empty() {
        true => Err(miette!("{text}: no line begins with a prefix")),
        false => Ok(EntrySource::Prefixes(prefixes)),
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn numbers_of_entries_have_units() {
        assert_eq!((count("16M"), count("2K"), count("300")), (Some(16 << 20), Some(2048), Some(300)));
        assert_eq!((count(""), count("M"), count("0"), count("x")), (None, None, None, None));
    }
}
