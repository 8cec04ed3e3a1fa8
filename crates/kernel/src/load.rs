//! Loading programs, and the verifier's answers.
//!
//! A program is loaded with the statistics log first (level 4, a few lines), so that a load costs no more
//! than it must. Only a rejected one is loaded again, with the log of the path that failed. `ENOSPC` means
//! that the log buffer was too small, never that the program is wrong: the buffer is enlarged.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Errno, KernelError};
use crate::log_text::log_text;
use crate::map::KernelMap;
use crate::program::KernelProgram;
use crate::sys::{self, PlainData, ProgLoad, addr, addr_mut};
use crate::types::{AttachType, ProgramType};

/// Records of `func_info` or `line_info`, as the object file or our encoder lays them out.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordInfo<'a> {
    /// Bytes of a record.
    pub record_size: u32,
    /// The records end to end, with instruction offsets counted in slots.
    pub bytes: &'a [u8],
}

impl RecordInfo<'_> {
    fn count(&self) -> u32 {
        (self.bytes.len() as u32).checked_div(self.record_size).unwrap_or(0)
    }
}

/// Specification of a program. Plain data; [`KernelProgram::load`] asks the kernel for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramSpec<'a> {
    /// Name for listings; at most 15 bytes of it are kept.
    pub name: &'a str,
    /// Program type.
    pub program_type: ProgramType,
    /// Its attach type, where the program type asks for it.
    pub expected_attach: AttachType,
    /// The instructions, 8-byte slots in the machine's byte order, all descriptors and ids filled in.
    pub insns: &'a [u64],
    /// Licence, such as `GPL`.
    pub license: &'a str,
    /// [`prog_flags`](crate::prog_flags).
    pub flags: u32,
    /// BTF that `func_info` and `line_info` refer to.
    pub btf: Option<BorrowedFd<'a>>,
    /// One record per function.
    pub func_info: RecordInfo<'a>,
    /// Source lines.
    pub line_info: RecordInfo<'a>,
    /// The kernel function, tracepoint or hook, as BTF id, for the types that attach by BTF.
    pub attach_btf_id: u32,
    /// The module's BTF that `attach_btf_id` is in, if not vmlinux's.
    pub attach_btf: Option<BorrowedFd<'a>>,
    /// The program that `attach_btf_id` is in, for program extensions.
    pub attach_program: Option<BorrowedFd<'a>>,
    /// Descriptors that instructions name by index (module BTF of kfuncs, maps).
    pub fd_array: &'a [i32],
    /// Kernel version, which old kprobe objects carry; 0 otherwise.
    pub kernel_version: u32,
    /// Network interface for device-bound programs; 0 otherwise.
    pub ifindex: u32,
}

/// Counts of the verifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerifierStats {
    /// Instructions walked ("processed N insns"), over all paths and subprograms.
    pub processed: u32,
    /// Microseconds that verification took, if the kernel said.
    pub micros: Option<u32>,
    /// States kept at the peak.
    pub peak_states: u32,
    /// States kept in total.
    pub total_states: u32,
}

impl VerifierStats {
    /// Reads the statistics from the end of a log.
    pub fn parse(log: &str) -> Option<Self> {
        let mut micros = None;
        let mut stats = None;
        for line in log.lines().rev().take(64) {
            if let Some(rest) = line.strip_prefix("verification time ") {
                micros = rest.split(' ').next().and_then(|n| n.parse().ok());
            } else if line.starts_with("processed ") {
                stats = Self::processed_line(line);
            }
        }
        stats.map(|s| VerifierStats { micros, ..s })
    }

    /// `processed 19 insns (limit 1000000) max_states_per_insn 0 total_states 1 peak_states 1 mark_read 1`
    fn processed_line(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let after = |name: &str| {
            let at = words.iter().position(|w| *w == name)?;
            words.get(at + 1)?.parse().ok()
        };
        Some(VerifierStats {
            processed: after("processed")?,
            micros: None,
            peak_states: after("peak_states").unwrap_or(0),
            total_states: after("total_states").unwrap_or(0),
        })
    }
}

/// Why a program was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The verifier rejected it.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// The kernel refused before or beside verification: missing capabilities, no memory, a bad attribute.
    #[error(transparent)]
    Refused(#[from] KernelError),
}

impl LoadError {
    /// The kernel's error number.
    pub fn errno(&self) -> Option<i32> {
        match self {
            LoadError::Rejected(r) => Some(r.errno.0),
            LoadError::Refused(e) => e.errno(),
        }
    }
}

/// A rejection by the verifier.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the kernel's verifier rejects program {name:?}: {errno}: {}", self.reason())]
pub struct Rejection {
    /// Name of the program.
    pub name: String,
    /// `EACCES` or `EINVAL`: a rule broken; `E2BIG`: too complex; `EFAULT`: too many pending jumps.
    pub errno: Errno,
    /// The verifier's log of the path that failed, or its end if it is very long.
    pub log: String,
    /// Counts of the verifier until then.
    pub stats: Option<VerifierStats>,
}

impl Rejection {
    /// The verifier's verdict: the last line that is neither statistics nor an instruction, or the errno. Of
    /// programs that are too long to verify, the verdict stands behind the last instruction.
    pub fn reason(&self) -> &str {
        let end = |line: &str| LIMITS.iter().find_map(|limit| line.find(limit));
        let limit = self.log.lines().rev().find_map(|line| line.get(end(line)?..));
        if let Some(limit) = limit {
            return limit.trim();
        }
        self.log.lines().rev().map(str::trim).find(|l| is_verdict(l)).unwrap_or("no reason given")
    }

    /// The slot at which verification stopped, if the log says.
    pub fn slot(&self) -> Option<usize> {
        self.log.lines().rev().find_map(insn_line)
    }

    /// The source line (`text @ file:line`) that the log names last, if the program has line info.
    pub fn source(&self) -> Option<&str> {
        self.log.lines().rev().find_map(|l| l.strip_prefix("; "))
    }

    /// The last `n` lines before the statistics: the state at the failure, and the verdict.
    pub fn log_tail(&self, n: usize) -> Vec<&str> {
        let mut lines: Vec<&str> = self.log.lines().filter(|l| !l.is_empty() && !is_statistics(l)).collect();
        lines.drain(..lines.len().saturating_sub(n));
        lines
    }
}

fn is_statistics(line: &str) -> bool {
    ["processed ", "verification time ", "stack depth ", "mark_precise:", "max_states", "insns processed "]
        .iter()
        .any(|p| line.starts_with(p))
}

fn is_verdict(line: &str) -> bool {
    !line.is_empty()
        && !is_statistics(line)
        && !line.starts_with(';')
        && insn_line(line).is_none()
        && !line.starts_with("from ")
        && !line.starts_with("R0=")
        && !line.starts_with("R0_")
        && !line.starts_with("cur state:")
        && !line.starts_with("old state:")
        && !line.starts_with("caller:")
        && !line.starts_with("callee:")
        && !line.starts_with("frame")
}

/// Verdicts on programs that are too long to verify.
const LIMITS: [&str; 3] = ["BPF program is too large", "infinite loop detected", "The sequence of "];

/// The slot of a line such as `12: (bf) r1 = r6   ; R1_w=ctx()`.
fn insn_line(line: &str) -> Option<usize> {
    let (slot, rest) = line.split_once(": ")?;
    if rest.starts_with('(') || rest.starts_with('R') { slot.parse().ok() } else { None }
}

/// First buffer: the statistics of a program with few subprograms.
const STATS_LOG: usize = 4 << 10;
/// The log of a rejection; since Linux 6.4 a smaller buffer keeps the end, which tells most.
const EXPLAIN_LOG: usize = 4 << 20;
const LEVEL_STATS: u32 = 4;
const LEVEL_PATH: u32 = 1;
const LEVEL_ALL: u32 = 2;

impl KernelProgram {
    /// Asks the kernel to verify and load a program.
    ///
    /// # Errors
    /// [`LoadError::Rejected`] with the verifier's log, or [`LoadError::Refused`].
    pub fn load(spec: &ProgramSpec<'_>) -> Result<Self, LoadError> {
        let mut log = vec![0u8; STATS_LOG];
        loop {
            let errno = match attempt(spec, LEVEL_STATS, &mut log) {
                Ok(fd) => return Ok(KernelProgram::new(fd, spec, VerifierStats::parse(&log_text(&log)))),
                Err(errno) => errno,
            };
            match errno {
                libc::ENOSPC if log.len() < EXPLAIN_LOG => {
                    let larger = log.len() * 8;
                    log.clear();
                    log.resize(larger, 0);
                }
                // The verifier gives up when a signal or a neighbour asks it to.
                libc::EAGAIN => {}
                _ => return Err(explain(spec, errno)),
            }
        }
    }

    /// Loads a program and gives the verifier's whole log (level 2): the state at each instruction on every
    /// path. For harvesting ranges; tens of times slower than [`KernelProgram::load`].
    ///
    /// # Errors
    /// As for [`KernelProgram::load`]; a log beyond 64 MiB is refused with `ENOSPC`.
    pub fn load_with_full_log(spec: &ProgramSpec<'_>) -> Result<(Self, String), LoadError> {
        let mut log = vec![0u8; 1 << 20];
        loop {
            match attempt(spec, LEVEL_ALL | LEVEL_STATS, &mut log) {
                Ok(fd) => {
                    let text = log_text(&log);
                    return Ok((KernelProgram::new(fd, spec, VerifierStats::parse(&text)), text));
                }
                Err(libc::ENOSPC) if log.len() < 64 << 20 => {
                    let larger = log.len() * 4;
                    log.clear();
                    log.resize(larger, 0);
                }
                Err(libc::EAGAIN) => {}
                Err(errno) => return Err(explain(spec, errno)),
            }
        }
    }

    /// Ties a map to a program that does not use it, so that it lives and is listed with it.
    ///
    /// # Errors
    /// What bpf(2) refuses.
    pub fn bind_map(&self, map: &KernelMap) -> crate::Result<()> {
        use std::os::fd::AsFd;
        let mut attr = sys::BindMap::zeroed();
        attr.prog_fd = self.as_fd().as_raw_fd() as u32;
        attr.map_fd = map.as_fd().as_raw_fd() as u32;
        sys::call(sys::PROG_BIND_MAP, &mut attr, || format!("binding map {}", map.id())).map(drop)
    }
}

fn attempt(spec: &ProgramSpec<'_>, level: u32, log: &mut [u8]) -> Result<std::os::fd::OwnedFd, i32> {
    let license = sys::c_string(spec.license, "loading a program").map_err(|_| libc::EINVAL)?;
    let mut attr = ProgLoad::zeroed();
    attr.prog_type = spec.program_type.0;
    attr.expected_attach_type = spec.expected_attach.0;
    attr.insns = addr(spec.insns);
    attr.insn_cnt = u32::try_from(spec.insns.len()).map_err(|_| libc::E2BIG)?;
    attr.license = license.as_ptr() as u64;
    attr.log_level = level;
    attr.log_size = log.len() as u32;
    attr.log_buf = addr_mut(log);
    attr.kern_version = spec.kernel_version;
    attr.prog_flags = spec.flags;
    attr.prog_name = sys::object_name(spec.name);
    attr.prog_ifindex = spec.ifindex;
    attr.attach_btf_id = spec.attach_btf_id;
    if let Some(btf) = spec.btf {
        attr.prog_btf_fd = btf.as_raw_fd() as u32;
        attr.func_info_rec_size = spec.func_info.record_size;
        attr.func_info = addr(spec.func_info.bytes);
        attr.func_info_cnt = spec.func_info.count();
        attr.line_info_rec_size = spec.line_info.record_size;
        attr.line_info = addr(spec.line_info.bytes);
        attr.line_info_cnt = spec.line_info.count();
    }
    if let Some(program) = spec.attach_program {
        attr.__bindgen_anon_1.attach_prog_fd = program.as_raw_fd() as u32;
    } else if let Some(btf) = spec.attach_btf {
        attr.__bindgen_anon_1.attach_btf_obj_fd = btf.as_raw_fd() as u32;
    }
    attr.fd_array = addr(spec.fd_array);
    sys::bpf_fd(sys::PROG_LOAD, &mut attr)
}

/// Loads once more for the log, and makes the error of it.
fn explain(spec: &ProgramSpec<'_>, errno: i32) -> LoadError {
    let mut log = vec![0u8; EXPLAIN_LOG];
    // The outcome is known; only the log is of interest.
    let again = attempt(spec, LEVEL_PATH | LEVEL_STATS, &mut log);
    let text = log_text(&log);
    if text.is_empty() || again.is_ok() {
        let doing = format!("loading program {:?} ({})", spec.name, spec.program_type);
        return LoadError::Refused(KernelError::call(sys::PROG_LOAD.name, doing, errno));
    }
    let stats = VerifierStats::parse(&text);
    LoadError::Rejected(Box::new(Rejection {
        name: spec.name.to_owned(),
        errno: Errno(errno),
        log: text,
        stats,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "0: R1=ctx() R10=fp0\n; int x = *p; @ a.c:7\n0: (61) r2 = *(u32 *)(r1 +0)  ; R2_w=pkt(r=0)\n\
        1: (71) r0 = *(u8 *)(r2 +0)\ninvalid access to packet, off=0 size=1, R2(id=0,off=0,r=0)\n\
        R2 offset is outside of the packet\nverification time 41 usec\nstack depth 0\n\
        processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 3 peak_states 2 mark_read 0\n";

    fn rejection() -> Rejection {
        Rejection { name: "x".into(), errno: Errno(libc::EACCES), log: LOG.into(), stats: None }
    }

    #[test]
    fn statistics_are_read_from_the_log() {
        let want = VerifierStats { processed: 2, micros: Some(41), peak_states: 2, total_states: 3 };
        assert_eq!(VerifierStats::parse(LOG), Some(want));
        assert_eq!(VerifierStats::parse("processed many insns"), None);
    }

    #[test]
    fn a_rejection_names_reason_slot_and_source() {
        let r = rejection();
        assert_eq!(r.reason(), "R2 offset is outside of the packet");
        assert_eq!(r.slot(), Some(1));
        assert_eq!(r.source(), Some("int x = *p; @ a.c:7"));
        assert_eq!(r.log_tail(2).len(), 2);
        assert!(r.log_tail(2)[0].starts_with("invalid access"));
        // Linux 7.2 also prints this count.
        let newer =
            Rejection { log: LOG.replace("verification time", "insns processed 2\nverification time"), ..r };
        assert_eq!(newer.reason(), "R2 offset is outside of the packet");
    }
}
