//! `millstream doctor`: tests by experiment the features and privileges of this machine, with advice on the
//! missing ones.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, ExitCode};

use millstream_kernel::probe::{self, ProbeOutcome};
use millstream_kernel::{MOUNT, possible_cpus};
use millstream_specialize::guard::Guard;
use serde::Serialize;

use crate::dpdk;
use crate::exit::Exit;

/// Flags of `millstream doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    /// As it should be.
    Ok,
    /// Something works less well, or by another mechanism, without it.
    Limited,
    /// Something does not work without it.
    Missing,
    /// Neither good nor bad.
    Info,
}

#[derive(Clone, Debug, Serialize)]
struct SystemCheck {
    name: &'static str,
    status: CheckStatus,
    found: String,
    /// Features that need it.
    needed_for: &'static str,
    /// Advice, if it is not as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl SystemCheck {
    fn info(name: &'static str, found: impl Into<String>, needed_for: &'static str) -> Self {
        SystemCheck { name, status: CheckStatus::Info, found: found.into(), needed_for, advice: None }
    }

    /// A check by experiment; `status` and `advice` apply if it fails.
    fn probed(
        name: &'static str,
        outcome: ProbeOutcome,
        status: CheckStatus,
        needed_for: &'static str,
        advice: &str,
    ) -> Self {
        match outcome {
            ProbeOutcome::Yes => SystemCheck {
                name,
                status: CheckStatus::Ok,
                found: "works".to_owned(),
                needed_for,
                advice: None,
            },
            ProbeOutcome::No(found) => {
                SystemCheck { name, status, found, needed_for, advice: Some(advice.to_owned()) }
            }
            ProbeOutcome::Forbidden(found) => {
                let advice = if lacking().is_empty() { advice } else { "run as root, to be able to tell" };
                SystemCheck { name, status, found, needed_for, advice: Some(advice.to_owned()) }
            }
        }
    }
}

#[derive(Serialize)]
struct DoctorReport {
    schema: u32,
    ready: bool,
    checks: Vec<SystemCheck>,
}

/// Runs the command.
pub(crate) fn run(args: DoctorArgs) -> Result<ExitCode, miette::Report> {
    let mut checks = machine();
    checks.extend(permissions());
    checks.extend(settings());
    checks.extend(hooks());
    checks.extend(tools());
    let ready = checks.iter().all(|c| c.status != CheckStatus::Missing);
    let report = DoctorReport { schema: 1, ready, checks };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report).map_err(|e| miette::miette!("{e}"))?);
    } else {
        out!("{}", text(&report));
    }
    Ok(if ready { Exit::Done } else { Exit::NotPermitted }.into())
}

fn text(report: &DoctorReport) -> String {
    let mut out = String::new();
    let width = report.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for c in &report.checks {
        let mark = match c.status {
            CheckStatus::Ok => "ok     ",
            CheckStatus::Limited => "limited",
            CheckStatus::Missing => "MISSING",
            CheckStatus::Info => "-      ",
        };
        let _ = writeln!(out, "{mark}  {:width$}  {}", c.name, c.found);
        if let Some(advice) = &c.advice {
            let _ = writeln!(out, "{:9}{:width$}  needed for {}; {advice}", "", "", c.needed_for);
        }
    }
    out.push_str(match report.ready {
        true => "\nThis machine can do all that Millstream needs.\n",
        false => "\nSome of what Millstream needs is missing; each line above says what to do.\n",
    });
    out
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn machine() -> Vec<SystemCheck> {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
    let cpus = possible_cpus().map_or_else(|e| e.to_string(), |n| n.to_string());
    let mut out = vec![
        SystemCheck::info("kernel", release, "everything"),
        SystemCheck::info("possible CPUs", cpus, "the size of per-CPU values"),
    ];
    let arch = std::env::consts::ARCH;
    let known = arch == "x86_64";
    out.push(SystemCheck {
        name: "architecture",
        status: if known { CheckStatus::Ok } else { CheckStatus::Limited },
        found: arch.to_owned(),
        needed_for: "the costs that the optimizer reckons with",
        advice: (!known).then(|| "results are right, but tuned for x86-64".to_owned()),
    });
    out
}

/// Capabilities by number, as in `/proc/self/status`.
const CAPABILITIES: [(&str, u32); 4] =
    [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];

fn permissions() -> Vec<SystemCheck> {
    vec![
        capabilities(),
        SystemCheck::probed(
            "BPF",
            probe::bpf(),
            CheckStatus::Missing,
            "verify, run, lab",
            "run as root, outside of containers that filter bpf(2)",
        ),
        SystemCheck::probed(
            "objects by id",
            probe::enumeration(),
            CheckStatus::Missing,
            "adopting attached programs, finding writers of maps",
            "run as root, or with CAP_SYS_ADMIN",
        ),
        SystemCheck::probed(
            "kernel BTF",
            probe::kernel_btf(),
            CheckStatus::Missing,
            "CO-RE, kernel functions, the guard",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF",
        ),
    ]
}

/// Capabilities that this process does not have.
fn lacking() -> Vec<&'static str> {
    let status = read("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let held = line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok()).unwrap_or(0);
    CAPABILITIES.iter().filter(|(_, bit)| held >> bit & 1 == 0).map(|(name, _)| *name).collect()
}

fn capabilities() -> SystemCheck {
    let lacking = lacking();
    let fine = lacking.is_empty();
    SystemCheck {
        name: "capabilities",
        status: if fine { CheckStatus::Ok } else { CheckStatus::Missing },
        found: if fine { "all held".to_owned() } else { format!("lacking {}", lacking.join(", ")) },
        needed_for: "verify, run, lab",
        advice: (!fine).then(|| "run as root".to_owned()),
    }
}

/// A number of /proc/sys that should be `want`.
fn sysctl(name: &'static str, want: i64, status: CheckStatus, needed_for: &'static str) -> SystemCheck {
    let file = name.replace('.', "/");
    let (found, fine) = match probe::sysctl(&file) {
        Ok(n) => (n.to_string(), n == want),
        // Without the file, the kernel has the feature compiled in (or has none of that name): not wrong.
        Err(e) => return SystemCheck::info(name, e.to_string(), needed_for),
    };
    SystemCheck {
        name,
        status: if fine { CheckStatus::Ok } else { status },
        found,
        needed_for,
        advice: (!fine).then(|| format!("sysctl {name}={want}")),
    }
}

fn settings() -> Vec<SystemCheck> {
    let lockdown = probe::lockdown();
    let mounted = probe::bpf_filesystems().unwrap_or_default();
    let mut out = vec![
        sysctl("net.core.bpf_jit_enable", 1, CheckStatus::Missing, "speed: without the JIT nothing is fast"),
        sysctl("net.core.bpf_jit_harden", 0, CheckStatus::Limited, "speed: hardening blinds every constant"),
        sysctl(
            "kernel.bpf_stats_enabled",
            0,
            CheckStatus::Limited,
            "speed: statistics cost 45 ns per packet",
        ),
    ];
    out.push(SystemCheck {
        name: "lockdown",
        status: if lockdown == "confidentiality" { CheckStatus::Missing } else { CheckStatus::Ok },
        needed_for: "tracing programs, which guard specialised code",
        advice: (lockdown == "confidentiality").then(|| "boot with lockdown=integrity or none".to_owned()),
        found: lockdown,
    });
    out.push(bpf_filesystem(&mounted));
    let limits = read("/proc/self/limits").unwrap_or_default();
    let memlock = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"));
    let memlock = memlock.and_then(|l| l.split_whitespace().next()).unwrap_or("unknown");
    out.push(SystemCheck::info(
        "locked memory",
        memlock,
        "kernels before 5.11 only, which charge maps to it",
    ));
    out
}

/// Checks for a place for pins, and that others cannot create directories there.
fn bpf_filesystem(mounted: &[String]) -> SystemCheck {
    let open = |at: &&String| std::fs::metadata(at).is_ok_and(|m| m.mode() & 0o022 != 0);
    let open: Vec<&str> = mounted.iter().filter(open).map(String::as_str).collect();
    let (found, advice) = match (mounted, open.as_slice()) {
        ([], _) => ("not mounted".to_owned(), Some(MOUNT.to_owned())),
        (_, []) => (mounted.join(", "), None),
        (_, open) => (
            format!("{}; everybody may make directories in {}", mounted.join(", "), open.join(", ")),
            Some(format!("chmod 0700 {}; or mount it so: {MOUNT}", open.join(" "))),
        ),
    };
    SystemCheck {
        name: "BPF file system",
        status: if advice.is_some() { CheckStatus::Limited } else { CheckStatus::Ok },
        found,
        needed_for: "pinned maps, links that outlive the process",
        advice,
    }
}

/// The guard itself, loaded, attached and removed again.
fn guard() -> SystemCheck {
    let (outcome, hook) = match Guard::attach() {
        Ok(guard) => (ProbeOutcome::Yes, Some(guard.hook())),
        Err(e) if e.is_forbidden() => (ProbeOutcome::Forbidden(e.to_string()), None),
        Err(e) => (ProbeOutcome::No(e.to_string()), None),
    };
    let check = SystemCheck::probed(
        "guard",
        outcome,
        CheckStatus::Missing,
        "run, daemon, demo",
        "use Linux 5.10 or later with BTF and CONFIG_FTRACE_SYSCALLS",
    );
    match hook {
        Some(hook) => SystemCheck { found: format!("works {hook}"), ..check },
        None => check,
    }
}

/// Mechanism by which TC programs are attached.
fn tc() -> SystemCheck {
    let (name, needed_for) = ("TC programs", "run, daemon with TC programs");
    let (links, found) = (probe::tcx(), "works by filters of clsact");
    let filters = if links.is_yes() { ProbeOutcome::Yes } else { probe::clsact() };
    if !links.is_yes() && filters.is_yes() {
        let advice = "use Linux 6.6 or later, where programs are exchanged by compare and swap";
        let status = CheckStatus::Limited;
        return SystemCheck {
            name,
            status,
            found: found.to_owned(),
            needed_for,
            advice: Some(advice.to_owned()),
        };
    }
    SystemCheck::probed(
        name,
        filters,
        CheckStatus::Limited,
        needed_for,
        "use Linux 6.6 or later, or CONFIG_NET_CLS_BPF",
    )
}

fn hooks() -> Vec<SystemCheck> {
    vec![
        SystemCheck::probed(
            "native XDP on veth",
            probe::native_xdp_on_veth(),
            CheckStatus::Missing,
            "lab, demo",
            "use a kernel with CONFIG_VETH, and namespaces permitted",
        ),
        SystemCheck::probed(
            "live frames",
            probe::live_frames(),
            CheckStatus::Missing,
            "lab, demo",
            "use Linux 5.18 or later",
        ),
        tc(),
        guard(),
        SystemCheck::probed(
            "atomic exchanges",
            probe::fetching_atomics(),
            CheckStatus::Limited,
            "writes that leave specialised code of other tables running",
            "use Linux 5.12 or later; before, each write to a table stops all specialised code of its \
             program until that is approved again",
        ),
        SystemCheck::probed(
            "coarse clock",
            probe::coarse_clock(),
            CheckStatus::Limited,
            "the speed of switch, nat and balancer",
            "use Linux 5.11 or later; before, the exact clock is read in its place",
        ),
        SystemCheck::probed(
            "hardware counters",
            probe::hardware_counters(),
            CheckStatus::Limited,
            "counting instructions and misses",
            "executed instructions are counted in the interpreter in their place",
        ),
    ]
}

fn tools() -> Vec<SystemCheck> {
    let version = |program: &str| {
        let out = Command::new(program).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or_default().to_owned())
    };
    let clang = ["clang-19", "clang"].into_iter().find_map(version);
    let clang = SystemCheck {
        name: "clang",
        status: if clang.is_some() { CheckStatus::Ok } else { CheckStatus::Limited },
        needed_for: "building the data planes under programs/; never at run time",
        advice: clang.is_none().then(|| "install clang-19".to_owned()),
        found: clang.unwrap_or_else(|| "not found".to_owned()),
    };
    // A build with DPDK does not start without it.
    let dpdk = dpdk::version().map(|found| SystemCheck {
        name: "DPDK",
        status: CheckStatus::Ok,
        found,
        needed_for: "--io dpdk:DEVICE",
        advice: None,
    });
    std::iter::once(clang).chain(dpdk).collect()
}
