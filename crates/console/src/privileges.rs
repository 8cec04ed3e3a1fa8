//! Privileges that a command keeps.
//!
//! Before a command reads its input it gives up, for itself and all processes that it starts, the
//! capabilities and system calls that it does not need: code that reads hostile objects and configurations
//! can then do no more than its user's files allow. `docs/trust.md` has the table, which a test compares with
//! this module.
//!
//! A process of root without `CAP_DAC_OVERRIDE` may not open other users' files. Where the command line names
//! one, that capability and `CAP_DAC_READ_SEARCH` are kept.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Privileges that a command needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum RequiredPrivileges {
    /// Its user's files, and solvers as children.
    Files,
    /// bpf(2): to load programs and run them on test packets, in network namespaces of its own; solvers as
    /// children.
    Kernel,
    /// bpf(2) and rtnetlink: to attach programs and keep them; solvers as children.
    Attach,
    /// The same, packet sockets, and threads with a priority and locked memory: to measure, and to maintain a
    /// data plane.
    Measure,
    /// Packet and AF_XDP sockets and TAP interfaces.
    Interfaces,
    /// Everything: device drivers in userspace.
    Devices,
}

impl RequiredPrivileges {
    /// Privileges for sources and sinks of packets: `mem`, `pcap:...`, `DEVICE=xdp:...`.
    pub fn of_io<'s>(specs: impl IntoIterator<Item = &'s str>) -> RequiredPrivileges {
        let of = |spec: &str| {
            let way = spec.rsplit_once('=').map_or(spec, |(_, way)| way);
            match way.split(':').next().unwrap_or_default() {
                "dpdk" => RequiredPrivileges::Devices,
                "raw" | "tap" | "xdp" => RequiredPrivileges::Interfaces,
                _ => RequiredPrivileges::Files,
            }
        };
        specs.into_iter().map(of).max().unwrap_or(RequiredPrivileges::Files)
    }
}

/// Capabilities to read and write other users' files.
const OTHERS_FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);

impl RequiredPrivileges {
    /// Capabilities that are kept where the process has them.
    pub fn capabilities(self) -> CapabilitySet {
        // Access by id to kernel objects, and namespaces, take SYS_ADMIN; it includes BPF and PERFMON, which
        // are named since a process may have these alone.
        let kernel = CapabilitySet::BPF
            | CapabilitySet::NET_ADMIN
            | CapabilitySet::PERFMON
            | CapabilitySet::SYS_ADMIN
            | CapabilitySet::SYS_RESOURCE
            | CapabilitySet::SYSLOG;
        let sockets = CapabilitySet::NET_RAW | CapabilitySet::IPC_LOCK | CapabilitySet::SYS_NICE;
        match self {
            RequiredPrivileges::Files => CapabilitySet::empty(),
            RequiredPrivileges::Kernel | RequiredPrivileges::Attach => kernel,
            RequiredPrivileges::Measure | RequiredPrivileges::Interfaces => kernel | sockets,
            RequiredPrivileges::Devices => CapabilitySet::all(),
        }
    }

    /// System calls that are refused.
    pub fn refused(self) -> Vec<SystemCall> {
        match self {
            RequiredPrivileges::Files => [NEVER, WITHOUT_KERNEL].concat(),
            RequiredPrivileges::Kernel
            | RequiredPrivileges::Attach
            | RequiredPrivileges::Measure
            | RequiredPrivileges::Interfaces => NEVER.to_vec(),
            RequiredPrivileges::Devices => Vec::new(),
        }
    }

    /// Returns true if programs that the command starts get no capabilities, whoever the user is. Supervised
    /// processes are the command again, and get those that it keeps.
    fn has_weak_children(self) -> bool {
        !matches!(self, RequiredPrivileges::Interfaces | RequiredPrivileges::Devices)
    }
}

/// Name and number of a system call.
pub type SystemCall = (&'static str, i64);

macro_rules! system_calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// System calls that no command needs.
const NEVER: &[SystemCall] = system_calls! {
    SYS_acct SYS_add_key SYS_adjtimex SYS_clock_adjtime SYS_clock_settime SYS_delete_module SYS_fanotify_init
    SYS_finit_module SYS_init_module SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_kcmp
    SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_lookup_dcookie SYS_mount_setattr SYS_open_by_handle_at
    SYS_pidfd_getfd SYS_pivot_root SYS_process_vm_readv SYS_process_vm_writev SYS_ptrace SYS_quotactl
    SYS_reboot SYS_request_key SYS_setdomainname SYS_sethostname SYS_settimeofday SYS_swapoff SYS_swapon
    SYS_syslog SYS_userfaultfd SYS_vhangup
};

/// System calls that only commands with kernel access or namespaces need.
const WITHOUT_KERNEL: &[SystemCall] = system_calls! {
    SYS_bpf SYS_chroot SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_mount SYS_move_mount SYS_open_tree
    SYS_perf_event_open SYS_setns SYS_umount2 SYS_unshare
};

/// Gives up unneeded privileges. A failure is logged, and the privilege is kept: a command is no worse off
/// than without.
pub fn reduce(needs: RequiredPrivileges, arguments: &[OsString]) {
    if needs == RequiredPrivileges::Devices {
        return;
    }
    let given = give_up(needs, arguments);
    if let Err(error) = given.and_then(|()| set_no_new_privs(true)) {
        tracing::debug!("privileges are kept: {error}");
        return;
    }
    let filter =
        filter(needs).and_then(|filter| seccompiler::apply_filter(&filter).map_err(|e| e.to_string()));
    if let Err(error) = filter {
        tracing::debug!("system calls are not restricted: {error}");
    }
}

/// Gives up capabilities for this process and its children.
fn give_up(needs: RequiredPrivileges, arguments: &[OsString]) -> Result<(), Errno> {
    let has = capabilities(None)?;
    let mut keeps = needs.capabilities();
    if geteuid().is_root()
        && (has.effective & OTHERS_FILES) != CapabilitySet::empty()
        && names_others(arguments, has)?
    {
        keeps |= OTHERS_FILES;
    }
    if has.effective.contains(CapabilitySet::SETPCAP) {
        // Capabilities that this kernel does not know cannot be dropped.
        for one in (!keeps).iter() {
            let _ = remove_capability_from_bounding_set(one);
        }
        if needs.has_weak_children() {
            let bits = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
            let set = capabilities_secure_bits().and_then(|old| set_capabilities_secure_bits(old | bits));
            if let Err(error) = set {
                tracing::debug!("children may have capabilities: {error}");
            }
        }
    }
    clear_ambient_capability_set()?;
    let kept = CapabilitySets {
        effective: has.effective & keeps,
        permitted: has.permitted & keeps,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)
}

/// Returns true if a file that an argument names, or the folder for a new one, cannot be reached without
/// [`OTHERS_FILES`].
fn names_others(arguments: &[OsString], has: CapabilitySets) -> Result<bool, Errno> {
    let without = CapabilitySets { effective: has.effective & !OTHERS_FILES, ..has };
    set_capabilities(None, without)?;
    let found = arguments.iter().flat_map(named).any(|path| !is_reachable(&path));
    set_capabilities(None, has)?;
    Ok(found)
}

/// Possible paths in an argument: all of it, or the part behind `=` or `:`.
fn named(argument: &OsString) -> Vec<PathBuf> {
    let text = argument.to_string_lossy();
    let parts = [Some(&*text), text.split_once('=').map(|p| p.1), text.split_once(':').map(|p| p.1)];
    parts.into_iter().flatten().filter(|p| !p.is_empty() && !p.starts_with('-')).map(PathBuf::from).collect()
}

fn is_reachable(path: &Path) -> bool {
    let may = |path: &Path, access| match accessat(CWD, path, access, AtFlags::EACCESS) {
        Err(Errno::ACCESS | Errno::PERM) => false,
        // A missing file, or an argument that is no path, belongs to nobody.
        _ => true,
    };
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.exists() { may(path, Access::READ_OK) } else { may(parent, Access::WRITE_OK | Access::EXEC_OK) }
}

/// The filter of system calls. Refused calls fail as if the kernel did not permit them.
fn filter(needs: RequiredPrivileges) -> Result<BpfProgram, String> {
    let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
        needs.refused().into_iter().map(|(_, number)| (number, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().map_err(|e: seccompiler::BackendError| e.to_string())?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).map_err(|e| e.to_string())?;
    filter.try_into().map_err(|e: seccompiler::BackendError| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_need_nothing_and_nobody_needs_what_changes_the_system() {
        assert_eq!(RequiredPrivileges::Files.capabilities(), CapabilitySet::empty());
        let changes = CapabilitySet::SYS_MODULE
            | CapabilitySet::SYS_PTRACE
            | CapabilitySet::SETUID
            | CapabilitySet::SYS_TIME
            | OTHERS_FILES;
        for needs in [
            RequiredPrivileges::Files,
            RequiredPrivileges::Kernel,
            RequiredPrivileges::Attach,
            RequiredPrivileges::Measure,
            RequiredPrivileges::Interfaces,
        ] {
            assert_eq!(needs.capabilities() & changes, CapabilitySet::empty(), "{needs:?}");
            let refused: Vec<&str> = needs.refused().iter().map(|c| c.0).collect();
            assert!(refused.contains(&"SYS_ptrace") && refused.contains(&"SYS_init_module"), "{needs:?}");
            assert_eq!(refused.contains(&"SYS_bpf"), needs == RequiredPrivileges::Files, "{needs:?}");
            filter(needs).expect("a filter");
        }
    }

    #[test]
    fn interfaces_and_devices_need_more_than_files() {
        for (specs, needs) in [
            (&["mem"][..], RequiredPrivileges::Files),
            (&["a=pcap:in.pcap,out.pcap", "b=mem"], RequiredPrivileges::Files),
            (&["raw"], RequiredPrivileges::Interfaces),
            (&["mem", "eth0=xdp:eth0"], RequiredPrivileges::Interfaces),
            (&["tap:t0", "x=dpdk:net_ring0"], RequiredPrivileges::Devices),
        ] {
            assert_eq!(RequiredPrivileges::of_io(specs.iter().copied()), needs, "{specs:?}");
        }
    }

    #[test]
    fn the_page_has_these_system_calls() {
        let page = include_str!("../../../docs/trust.md");
        for (name, _) in NEVER.iter().chain(WITHOUT_KERNEL) {
            let name = name.trim_start_matches("SYS_");
            assert!(page.contains(&format!("`{name}`")), "docs/trust.md does not name {name}");
        }
    }

    #[test]
    fn arguments_may_name_files_in_several_ways() {
        let paths =
            |a: &str| named(&OsString::from(a)).iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths("x.o"), ["x.o"]);
        assert_eq!(paths("--output=x.o"), ["x.o"]);
        assert_eq!(paths("pcap:in.pcap"), ["pcap:in.pcap", "in.pcap"]);
        assert!(paths("--stats").is_empty());
    }
}
