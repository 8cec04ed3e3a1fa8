//! Instructions per packet: runs the same command under valgrind's callgrind, which counts the instructions
//! of the program's batches.

use std::ffi::OsString;
use std::process::Command;

use miette::{IntoDiagnostic, Result, WrapErr};

use crate::progress::Progress;

/// Packets to count: few, since valgrind is slow.
const PACKETS: u64 = 4096;
/// The function that runs a batch; only its instructions are counted.
const COUNTED: &str = "*engine::run_packets*";

/// Counts instructions, or returns the reason why not.
pub(super) fn count(batch: u32) -> Result<Result<f64, String>> {
    let _bar = Progress::open("counting instructions");
    let own = std::env::current_exe().into_diagnostic()?;
    // Whole batches.
    let packets = PACKETS.div_ceil(u64::from(batch)) * u64::from(batch);
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(own)
        .args(arguments)
        .args(["--counted", &packets.to_string()])
        .output();
    let done = match done {
        Ok(done) => done,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Err("there is no valgrind".into())),
        Err(e) => return Err(e).into_diagnostic().wrap_err("valgrind"),
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let received = String::from_utf8_lossy(&done.stdout).trim().parse().unwrap_or(0);
    let why = |what: &str| format!("{what}: {}", said.lines().last().unwrap_or_default());
    Ok(match (collected(&said), received) {
        _ if !done.status.success() => Err(why("under valgrind it failed")),
        (Some(instructions), 1u64..) if instructions > 0 => Ok(instructions as f64 / received as f64),
        _ => Err(why("callgrind has counted nothing (does this binary have its symbols?)")),
    })
}

/// Instruction count in callgrind's output.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::collected;

    #[test]
    fn the_count_is_found_in_what_callgrind_says() {
        let said = "==12== Events    : Ir\n==12== Collected : 123456\n==12==\n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==12== Collected : many"), None);
        assert_eq!(collected(""), None);
    }
}
