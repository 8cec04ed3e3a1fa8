//! The environment in which a figure was measured. A figure without it is worthless.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::error::{Error, Result};

/// The machine, the time and the command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Environment {
    /// Seconds since 1970, UTC.
    pub unix_time: u64,
    /// The same, as a date and time of day in UTC.
    pub when: String,
    /// The command line.
    pub command: String,
    /// The kernel's release.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors online.
    pub cpus: usize,
    /// The kernel's mitigations that make calls, returns and indirect jumps slower; empty where none does.
    pub mitigations: String,
    /// The version of this program.
    pub version: String,
}

impl Environment {
    /// As it is now.
    pub fn now() -> Self {
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let field = |key: &str| {
            let line = info.lines().find(|l| l.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let mut arguments = std::env::args();
        let program = arguments.next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default().to_owned();
        Environment {
            unix_time,
            when: utc(unix_time),
            command: std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" "),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: field("model name").unwrap_or_else(|| "unknown".into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            mitigations: mitigations(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// This machine in one line: processor, number of processors online, and sizes of the first one's caches of
/// data, as in `a processor, 8 processors, caches 48K 2048K 36864K`.
pub fn machine_line() -> String {
    let cpu = Environment::now().cpu;
    // All that are online, not only those that this thread may use.
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpus = info.lines().filter(|line| line.starts_with("processor")).count().max(1);
    let sizes = cache_sizes();
    let caches = if sizes.is_empty() { String::new() } else { format!(", caches {}", sizes.join(" ")) };
    format!("{cpu}, {cpus} processors{caches}")
}

/// Sizes of the first processor's caches of data, innermost first, as the kernel writes them.
fn cache_sizes() -> Vec<String> {
    let read = |index: u32, name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let of = |index| Some((read(index, "type")?, read(index, "size")?));
    let all = (0..8).map_while(of);
    all.filter(|(kind, _)| kind != "Instruction").map(|(_, size)| size).collect()
}

/// Mitigations of this machine's kernel that make each call, return or indirect jump slower, by the names
/// that the kernel gives them (Documentation/admin-guide/hw-vuln); empty if there are none.
pub fn mitigations() -> String {
    let path = |name: &str| format!("/sys/devices/system/cpu/vulnerabilities/{name}");
    named(|name| fs::read_to_string(path(name)).unwrap_or_default())
}

/// The same from the kernel's files of these names: the text before the first semicolon.
fn named(read: impl Fn(&str) -> String) -> String {
    let files = ["spectre_v2", "retbleed", "spec_rstack_overflow"];
    let kept = files.iter().filter_map(|name| {
        let text = read(name);
        let kept = text.split(';').next().unwrap_or_default().trim();
        (!kept.is_empty() && kept != "Not affected").then(|| format!("{name}: {kept}"))
    });
    kept.collect::<Vec<_>>().join("; ")
}

/// Refuses to measure while the kernel counts the run time of each program, which costs 44 ns per packet.
///
/// # Errors
/// If it does.
pub fn fit_for_timing() -> Result<()> {
    const PATH: &str = "/proc/sys/kernel/bpf_stats_enabled";
    match fs::read_to_string(PATH) {
        Ok(text) if text.trim() != "0" => {
            Err(Error::Unusable(format!("{PATH} is {}: every packet pays for it; set it to 0", text.trim())))
        }
        _ => Ok(()),
    }
}

/// `YYYY-MM-DDThh:mm:ssZ` of a time in seconds since 1970-01-01, by the civil calendar (Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms").
pub fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::{Environment, named, utc};

    #[test]
    fn mitigations_are_named_by_what_the_kernel_does() {
        let amd = |name: &str| match name {
            "spectre_v2" => "Mitigation: Retpolines; STIBP: disabled; RSB filling\n".to_owned(),
            "retbleed" => "Not affected\n".to_owned(),
            _ => "Vulnerable: Safe RET, no microcode\n".to_owned(),
        };
        assert_eq!(
            named(amd),
            "spectre_v2: Mitigation: Retpolines; spec_rstack_overflow: Vulnerable: Safe RET, no microcode"
        );
        assert_eq!(named(|_| String::new()), "");
    }

    #[test]
    fn dates_of_known_seconds() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_767_225_599), "2025-12-31T23:59:59Z");
        assert!(Environment::now().kernel.contains('.'));
    }
}
