//! Loading, test runs and links against the real kernel.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use crate::common::{array, counting_xdp, exit, mov, since, slot, xdp};
use millstream_kernel::{
    AttachType, Hook, KernelBtf, KernelProgram, Link, LoadError, Namespace, ProgramSpec, ProgramType,
    TcFilter, TestRun, XdpHolder, XdpMode, add_clsact, create_veth, errno_name, filters, interface, probe,
    program_ids, query_xdp, remove_empty_clsact, replace_xdp_netlink, set_up_pair, testing,
};

/// `r2 = data; r0 = *(u8 *)(r2 + 0)`: a packet access without a check.
fn unchecked() -> [u64; 3] {
    [slot(0x61, 2, 1, 0, 0), slot(0x71, 0, 2, 0, 0), exit()]
}

fn spec<'a>(insns: &'a [u64]) -> ProgramSpec<'a> {
    ProgramSpec { name: "t", program_type: ProgramType::XDP, insns, license: "GPL", ..ProgramSpec::default() }
}

#[test]
fn an_accepted_program_brings_statistics_and_sizes() {
    if !testing::require() {
        return;
    }
    let p = xdp("accepted", &[mov(0, 2), exit()]);
    assert_eq!(p.stats().unwrap().processed, 2);
    let info = p.info().unwrap();
    assert_eq!((info.name.as_str(), info.program_type), ("accepted", ProgramType::XDP));
    if since(5, 16, "the number of verified instructions") {
        assert_eq!(info.verified_insns, 2);
    }
    assert_eq!(p.translated().unwrap(), [mov(0, 2), exit()]);
    assert_eq!(p.jited_image().unwrap().len(), info.jited_len as usize);
    assert_eq!(p.jited_functions().unwrap().len(), 1);
    assert!(program_ids().unwrap().contains(&info.id));
}

#[test]
fn a_rejected_program_says_where_and_why() {
    if !testing::require() {
        return;
    }
    let LoadError::Rejected(r) = KernelProgram::load(&spec(&unchecked())).unwrap_err() else {
        panic!("refused, not rejected")
    };
    assert_eq!(errno_name(r.errno.0), "EACCES");
    assert_eq!(r.slot(), Some(1));
    // "offset is outside of the packet"; since Linux 7.2 "min value is outside of the allowed memory range".
    assert!(r.reason().starts_with("R2 ") && r.reason().contains("is outside of the"), "{}", r.reason());
    assert!(r.stats.is_some());
}

#[test]
fn a_long_rejection_keeps_its_end() {
    if !testing::require() {
        return;
    }
    // Far more log than the first buffer holds, then the same mistake.
    let mut insns = vec![mov(3, 1); 5000];
    insns.extend(unchecked());
    let LoadError::Rejected(r) = KernelProgram::load(&spec(&insns)).unwrap_err() else { panic!() };
    assert_eq!(r.errno.0, libc::EACCES);
    assert_eq!(r.slot(), Some(5001));
    let (p, log) = KernelProgram::load_with_full_log(&spec(&[mov(0, 2), exit()])).unwrap();
    assert!(log.contains("(b7) r0 = 2"), "{log}");
    assert_eq!(p.stats().unwrap().processed, 2);
}

#[test]
fn an_impossible_attribute_is_refused_without_a_log() {
    if !testing::require() {
        return;
    }
    let bad = ProgramSpec { program_type: ProgramType(999), ..spec(&[]) };
    assert!(matches!(KernelProgram::load(&bad), Err(LoadError::Refused(e)) if e.errno() == Some(libc::E2BIG)
        || e.errno() == Some(libc::EINVAL)));
    assert!(KernelBtf::load(b"no BTF at all, but long enough for a header").is_err());
}

#[test]
fn a_test_run_gives_verdict_packet_and_context() {
    if !testing::require() {
        return;
    }
    // Write 0x55 into the first byte, if there is one; TX.
    let p = xdp(
        "writes",
        &[
            slot(0x61, 2, 1, 0, 0),
            slot(0x61, 3, 1, 4, 0),
            slot(0xbf, 4, 2, 0, 0),
            slot(0x07, 4, 0, 0, 1),
            slot(0x2d, 4, 3, 1, 0), // if r4 > r3 goto +1
            slot(0x72, 2, 0, 0, 0x55),
            mov(0, 3),
            exit(),
        ],
    );
    let out = p.test_run(&TestRun::packet(&[0xaa; 64])).unwrap();
    assert_eq!(out.retval, 3);
    assert_eq!(out.data.len(), 64);
    assert_eq!(out.data[..2], [0x55, 0xaa]);
    assert!(p.test_run(&TestRun { repeat: 1000, ..TestRun::packet(&[0; 64]) }).unwrap().duration_ns > 0);
    if since(5, 18, "refusing packets that are too short") {
        assert_eq!(p.test_run(&TestRun::packet(&[0; 3])).unwrap_err().errno(), Some(libc::EINVAL));
    }
}

#[test]
fn a_link_is_replaced_only_if_the_expected_program_is_there() {
    if !testing::require() {
        return;
    }
    Namespace::new()
        .unwrap()
        .enter(|| {
            let [a, b, c] = ["a", "b", "c"].map(|n| xdp(n, &[mov(0, 2), exit()]));
            let link = Link::attach_xdp(&a, 1, XdpMode::Generic).unwrap();
            link.replace(&b, &a).unwrap();
            assert_eq!(link.info().unwrap().program_id, b.id().unwrap());
            let stale = link.replace(&c, &a).unwrap_err();
            assert_eq!(stale.errno(), Some(libc::EPERM));
            assert_eq!(link.info().unwrap().program_id, b.id().unwrap(), "nothing changed");
            link.replace_any(&c).unwrap();
            assert_eq!(query_xdp(1).unwrap().unwrap().program_id, c.id().unwrap());
            let busy = Link::attach_xdp(&a, 1, XdpMode::Generic).unwrap_err();
            assert_eq!(busy.errno(), Some(libc::EBUSY));
            assert!(busy.hint().unwrap().contains("adopt"));
            link.detach().unwrap();
            assert_eq!(query_xdp(1).unwrap(), None);
            assert_eq!(link.replace(&a, &c).unwrap_err().errno(), Some(libc::ENOLINK));
        })
        .unwrap();
}

#[test]
fn an_interface_is_adopted_from_its_link_and_given_back() {
    if !testing::require() {
        return;
    }
    Namespace::new()
        .unwrap()
        .enter(|| {
            let (theirs, ours) = (xdp("theirs", &[mov(0, 2), exit()]), xdp("ours", &[mov(0, 1), exit()]));
            assert!(Hook::adopt_xdp(1).unwrap().is_none());
            let link = Link::attach_xdp(&theirs, 1, XdpMode::Generic).unwrap();
            let (hook, original) = Hook::adopt_xdp(1).unwrap().unwrap();
            assert!(matches!(hook, Hook::Link(_)));
            hook.replace(&ours, &original).unwrap();
            assert_eq!(link.info().unwrap().program_id, ours.id().unwrap());
            hook.replace(&original, &ours).unwrap();
            drop(hook);
            let state = query_xdp(1).unwrap().unwrap();
            assert_eq!(state.program_id, theirs.id().unwrap());
            assert_eq!(state.holder, XdpHolder::Link(link.info().unwrap().id));
        })
        .unwrap();
}

#[test]
fn an_interface_is_adopted_from_rtnetlink_and_given_back() {
    if !testing::require() {
        return;
    }
    Namespace::new()
        .unwrap()
        .enter(|| {
            let (theirs, ours) = (xdp("theirs", &[mov(0, 2), exit()]), xdp("ours", &[mov(0, 1), exit()]));
            let (a, _) = create_veth("msk0", "msk1", 1).unwrap();
            replace_xdp_netlink(a, Some(&theirs), None, XdpMode::Native).unwrap();
            let (hook, original) = Hook::adopt_xdp(a).unwrap().unwrap();
            assert_eq!(original.id().unwrap(), theirs.id().unwrap());
            hook.replace(&ours, &original).unwrap();
            let state = query_xdp(a).unwrap().unwrap();
            assert_eq!((state.program_id, state.mode), (ours.id().unwrap(), XdpMode::Native));
            assert_eq!(state.holder, XdpHolder::Netlink);
            // Whoever expects the old one changes nothing.
            let stale = hook.replace(&ours, &original).unwrap_err();
            assert_eq!(stale.errno(), Some(libc::EEXIST), "{stale}");
            hook.replace(&original, &ours).unwrap();
            assert_eq!(query_xdp(a).unwrap().unwrap().program_id, theirs.id().unwrap());
            replace_xdp_netlink(a, None, Some(&original), XdpMode::Native).unwrap();
            assert_eq!(query_xdp(a).unwrap(), None);
        })
        .unwrap();
}

#[test]
fn filters_are_attached_behind_others_exchanged_and_removed() {
    if !testing::require() || !testing::permitted("clsact", &probe::clsact()) {
        return;
    }
    let program = |name, verdict| {
        let (insns, program_type) = ([mov(0, verdict), exit()], ProgramType::SCHED_CLS);
        KernelProgram::load(&ProgramSpec {
            name,
            program_type,
            insns: &insns,
            license: "GPL",
            ..ProgramSpec::default()
        })
        .unwrap()
    };
    Namespace::new()
        .unwrap()
        .enter(|| {
            let (a, _) = create_veth("msk0", "msk1", 1).unwrap();
            let way = AttachType::TCX_INGRESS;
            let [first, second, other] = ["first", "second", "other"].map(|name| program(name, -1));
            // Without a queueing discipline there is no place for it.
            assert!(TcFilter::attach(&first, a, way).is_err());
            assert_eq!((add_clsact(a).unwrap(), add_clsact(a).unwrap()), (true, false));
            let one = TcFilter::attach(&first, a, way).unwrap();
            let two = TcFilter::attach(&second, a, way).unwrap();
            let there = || filters(a, way).unwrap().iter().map(|f| f.program_id).collect::<Vec<_>>();
            let [first_id, second_id, other_id] = [&first, &second, &other].map(|p| p.id().unwrap());
            assert_eq!(there(), [first_id, second_id], "in the order of their coming");
            assert!(filters(a, AttachType::TCX_EGRESS).unwrap().is_empty());
            one.replace(&other, &first).unwrap();
            assert_eq!(there(), [other_id, second_id], "the place is kept");
            assert_eq!(one.replace(&first, &first).unwrap_err().errno(), Some(libc::EEXIST));
            remove_empty_clsact(a).unwrap();
            assert_eq!(there().len(), 2, "who has filters keeps them");
            two.detach().unwrap();
            two.detach().unwrap();
            assert_eq!(two.replace(&other, &second).unwrap_err().errno(), Some(libc::ENOENT));
            one.detach().unwrap();
            remove_empty_clsact(a).unwrap();
            assert!(TcFilter::attach(&first, a, way).is_err(), "the queueing discipline is gone");
            remove_empty_clsact(a).unwrap();
        })
        .unwrap();
}

/// Attaches to tcx as `BPF_PROG_ATTACH` does: without a link.
#[allow(unsafe_code)] // the crate itself attaches by links only
fn attach_without_link(program: &KernelProgram, ifindex: u32) {
    const PROG_ATTACH: i32 = 8;
    let fd = program.as_fd().as_raw_fd() as u32;
    let attr = [ifindex, fd, AttachType::TCX_INGRESS.0, 0];
    // SAFETY: the attribute is live and as long as said.
    let done = unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, attr.as_ptr(), size_of_val(&attr)) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn programs_on_tcx_are_adopted_and_given_back() {
    if !testing::require() || !testing::permitted("tcx", &probe::tcx()) {
        return;
    }
    let program = |verdict| {
        let (insns, program_type) = ([mov(0, verdict), exit()], ProgramType::SCHED_CLS);
        KernelProgram::load(&ProgramSpec {
            program_type,
            insns: &insns,
            license: "GPL",
            ..ProgramSpec::default()
        })
        .unwrap()
    };
    Namespace::new()
        .unwrap()
        .enter(|| {
            let [linked, bare, ours, other] = [-1, -1, 0, 0].map(program);
            let link = Link::attach_tcx(&linked, 1, AttachType::TCX_INGRESS).unwrap();
            attach_without_link(&bare, 1);
            assert!(Hook::adopt_tc(1, AttachType::TCX_EGRESS).unwrap().is_empty());
            let mut found = Hook::adopt_tc(1, AttachType::TCX_INGRESS).unwrap();
            let (second, first) = (found.pop().unwrap(), found.pop().unwrap());
            assert!(matches!((&first.0, &second.0), (Hook::Link(_), Hook::Tcx { .. })));
            for ((hook, before), id) in [(first, linked.id().unwrap()), (second, bare.id().unwrap())] {
                assert_eq!((before.id().unwrap(), hook.program(&before).unwrap()), (id, Some(id)));
                hook.replace(&ours, &before).unwrap();
                assert_eq!(hook.program(&ours).unwrap(), Some(ours.id().unwrap()));
                let stale = hook.replace(&other, &before).unwrap_err();
                assert!(matches!(stale.errno(), Some(libc::EPERM | libc::ENOENT)), "{stale}");
                hook.replace(&before, &ours).unwrap();
            }
            drop(link);
        })
        .unwrap();
}

#[test]
fn live_frames_cross_a_veth_pair_and_all_are_counted() {
    if !testing::require() || !testing::permitted("live frames", &probe::live_frames()) {
        return;
    }
    let sent = 100_000u32;
    let counter = array("counter", 8, 1, 0);
    Namespace::new()
        .unwrap()
        .enter(|| {
            let (a, b) = create_veth("msk0", "msk1", 1).unwrap();
            set_up_pair((a, b)).unwrap();
            assert!([a, b].map(|end| interface(end).unwrap()).iter().all(|end| end.up && end.operational));
            let receiver = counting_xdp("receiver", &counter, 1);
            let _receiver = Link::attach_xdp(&receiver, b, XdpMode::Native).unwrap();
            // bpf_redirect(a, 0); kept attached, so that the dispatcher is not rebuilt at each run.
            let generator = xdp("generator", &[mov(1, a as i32), mov(2, 0), slot(0x85, 0, 0, 0, 23), exit()]);
            let _generator = Link::attach_xdp(&generator, 1, XdpMode::Generic).unwrap();
            // Linux before 6.5 may leave the receiver to ksoftirqd, which must get the CPU before a ring is
            // full.
            let idle = libc::sched_param { sched_priority: 0 };
            // SAFETY: reads one live structure, and changes the class of this thread only.
            #[allow(unsafe_code)]
            unsafe {
                libc::sched_setscheduler(0, libc::SCHED_IDLE, &idle)
            };
            generator
                .test_run(&TestRun {
                    data: &[0; 64],
                    repeat: sent,
                    live_frames: true,
                    batch: 64,
                    ..TestRun::default()
                })
                .unwrap();
        })
        .unwrap();
    let count = counter.lookup(&[0; 4]).unwrap().unwrap();
    assert_eq!(u64::from_ne_bytes(count.try_into().unwrap()), u64::from(sent));
}

#[test]
fn probes_leave_nothing_behind() {
    if !testing::require() {
        return;
    }
    assert!(probe::native_xdp_on_veth().is_yes());
    assert!(probe::tcx().is_yes() || probe::clsact().is_yes());
    assert!(probe::enumeration().is_yes());
    let features = [
        probe::instruction_set_v4(),
        probe::elided_null_checks(),
        probe::fetching_atomics(),
        probe::coarse_clock(),
    ];
    assert!(!features.iter().any(|f| matches!(f, probe::ProbeOutcome::Forbidden(_))), "{features:?}");
    assert!(interface(u32::MAX >> 1).is_err());
    let left = || {
        let programs = program_ids().unwrap().into_iter().filter_map(|id| KernelProgram::from_id(id).ok());
        programs.filter(|p| p.name() == "probe").count()
    };
    // Those that other tests probe with at this moment are soon gone, and so are those that the kernel frees
    // later.
    let end = Instant::now() + Duration::from_secs(10);
    while left() > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(left(), 0);
}
