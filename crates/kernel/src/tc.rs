//! The TC hooks of an interface: which programs are there, by tcx and by filters of a clsact qdisc.
//!
//! A tcx program got there by a link, or by `BPF_PROG_ATTACH` without one; both are replaced by compare and
//! swap. A filter (`tc filter add ... bpf da`) belongs to rtnetlink, which replaces it in one step but
//! compares nothing: the present filter is looked at just before, and another process may change it between
//! that look and the step.
//!
//! Sources: `include/uapi/linux/{bpf,pkt_cls,pkt_sched,rtnetlink}.h`, `net/sched/cls_bpf.c`,
//! `kernel/bpf/mprog.c` of Linux 6.18.

use crate::error::{KernelError, Result};
use crate::grace::grace_period;
use crate::netlink::{self, NetlinkRequest, u32_at};
use crate::program::KernelProgram;
use crate::sys::{self, PlainData, ProgAttach, ProgQuery, uapi};
use crate::types::AttachType;

/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` and the same for egress.
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;
/// `TC_H_CLSACT` and the handle of the queueing discipline that is there.
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// Priority that the kernel gives to the first filter of an interface if none is said.
const FIRST_PRIORITY: u16 = 0xc000;
/// All protocols (`ETH_P_ALL`).
const ALL_PROTOCOLS: u16 = 3;
/// Bytes of `struct tcmsg`.
const TCMSG: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_CHAIN: u16 = 11;
const TCA_BPF_ACT: u16 = 1;
const TCA_BPF_POLICE: u16 = 2;
const TCA_BPF_CLASSID: u16 = 3;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAGS_GEN: u16 = 9;
const TCA_BPF_ID: u16 = 11;
const ACT_DIRECT: u32 = 1;
/// Of the general flags, those that are asked for and not only told: skip hardware, skip software, verbose.
const ASKED: u32 = 0b1_0011;

/// A program on a tcx hook, and the link by which it is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcxState {
    /// Id of the program.
    pub program_id: u32,
    /// Id of the link; `None` if it is there without one.
    pub link_id: Option<u32>,
}

/// The programs on a tcx hook, in the order in which packets meet them.
///
/// # Errors
/// `ENODEV`; `EINVAL` before Linux 6.6.
pub fn query_tcx(ifindex: u32, attach: AttachType) -> Result<Vec<TcxState>> {
    let mut room = 16;
    loop {
        let (mut programs, mut links) = (vec![0u32; room], vec![0u32; room]);
        let mut attr = ProgQuery::zeroed();
        attr.__bindgen_anon_1.target_ifindex = ifindex;
        attr.attach_type = attach.0;
        attr.prog_ids = sys::addr_mut(&mut programs);
        attr.link_ids = sys::addr_mut(&mut links);
        attr.__bindgen_anon_2.count = room as u32;
        match sys::bpf(sys::PROG_QUERY, &mut attr) {
            Err(libc::ENOSPC) => room *= 2,
            Err(errno) => {
                let doing = format!("asking what is on {attach} of interface {ifindex}");
                return Err(KernelError::call(sys::PROG_QUERY.name, doing, errno));
            }
            Ok(_) => {
                let both = programs.into_iter().zip(links).filter(|(program, _)| *program != 0);
                let state =
                    |(program_id, link)| TcxState { program_id, link_id: Some(link).filter(|l| *l != 0) };
                return Ok(both.map(state).collect());
            }
        }
    }
}

/// Puts `new` in the place of `expected`, which is on a tcx hook without a link, in one step.
pub(crate) fn replace_tcx(
    ifindex: u32,
    attach: AttachType,
    new: &KernelProgram,
    expected: &KernelProgram,
) -> Result<()> {
    let mut attr = ProgAttach::zeroed();
    attr.__bindgen_anon_1.target_ifindex = ifindex;
    attr.attach_bpf_fd = new.raw();
    attr.attach_type = attach.0;
    attr.attach_flags = uapi::BPF_F_REPLACE;
    attr.replace_bpf_fd = expected.raw();
    sys::call(sys::PROG_ATTACH, &mut attr, || {
        format!("replacing {:?} on {attach} of interface {ifindex}", expected.name())
    })
    .map(drop)
}

/// A filter that consists of one program whose verdict counts (`direct-action`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcFilter {
    /// Interface index.
    pub ifindex: u32,
    /// The way in or out.
    pub attach: AttachType,
    /// Its chain, 0 most often.
    pub chain: u32,
    /// Its priority: lower ones are met first.
    pub priority: u16,
    /// Its protocol, as in the header of a frame.
    pub protocol: u16,
    /// Its number among the filters of its priority.
    pub handle: u32,
    /// Id of the program.
    pub program_id: u32,
    /// Other attributes, which stay when the program is replaced.
    name: Vec<u8>,
    class: Option<Vec<u8>>,
    flags: u32,
}

/// The filters of one program each on an interface, in the order in which packets meet them. Those that have
/// actions beside, or leave the verdict to such, are left out.
///
/// # Errors
/// `ENODEV`.
pub fn filters(ifindex: u32, attach: AttachType) -> Result<Vec<TcFilter>> {
    let answers = all_filters(ifindex, attach)?;
    Ok(answers.iter().filter_map(|answer| TcFilter::read(answer, attach)).collect())
}

/// Returns true if the kernel has tcx; before Linux 6.6 it does not.
///
/// # Errors
/// `ENODEV`, `EPERM`.
pub fn has_tcx(ifindex: u32) -> Result<bool> {
    match query_tcx(ifindex, AttachType::TCX_INGRESS) {
        Err(e) if e.errno() == Some(libc::EINVAL) => Ok(false),
        found => found.map(|_| true),
    }
}

/// Adds a clsact queueing discipline to an interface; `false` if one is there already.
///
/// # Errors
/// `ENODEV`, `EPERM`, `ENOENT` if the kernel lacks it (`CONFIG_NET_SCH_INGRESS`).
pub fn add_clsact(ifindex: u32) -> Result<bool> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut request = NetlinkRequest::tc(libc::RTM_NEWQDISC, flags, [ifindex, CLSACT_HANDLE, CLSACT, 0]);
    request.text(TCA_KIND, "clsact");
    match request.send(&format!("adding clsact to interface {ifindex}")) {
        Err(e) if e.errno() == Some(libc::EEXIST) => Ok(false),
        done => done.map(|_| true),
    }
}

/// Removes the clsact queueing discipline of an interface if no filter is left there, on either way.
///
/// # Errors
/// If the kernel refuses. That there is none is no error.
pub fn remove_empty_clsact(ifindex: u32) -> Result<()> {
    let gone = |e: &KernelError| matches!(e.errno(), Some(libc::ENODEV | libc::ENOENT | libc::EINVAL));
    for attach in [AttachType::TCX_INGRESS, AttachType::TCX_EGRESS] {
        match all_filters(ifindex, attach) {
            Err(e) if gone(&e) => return Ok(()),
            found => {
                if !found?.is_empty() {
                    return Ok(());
                }
            }
        }
    }
    let mut request = NetlinkRequest::tc(libc::RTM_DELQDISC, 0, [ifindex, CLSACT_HANDLE, CLSACT, 0]);
    request.text(TCA_KIND, "clsact");
    match request.send(&format!("removing clsact from interface {ifindex}")) {
        Err(e) if gone(&e) => Ok(()),
        done => done.map(drop),
    }
}

/// The answers about all filters of an interface, of any kind.
fn all_filters(ifindex: u32, attach: AttachType) -> Result<Vec<Vec<u8>>> {
    let request =
        NetlinkRequest::tc(libc::RTM_GETTFILTER, libc::NLM_F_DUMP as u16, [ifindex, 0, parent(attach), 0]);
    request.send(&format!("asking for the filters of interface {ifindex}"))
}

fn parent(attach: AttachType) -> u32 {
    if attach == AttachType::TCX_EGRESS { EGRESS } else { INGRESS }
}

impl TcFilter {
    /// Attaches a program as a filter behind all that are there. The interface must have a clsact queueing
    /// discipline ([`add_clsact`]). Unlike a link, the filter stays when the process ends.
    ///
    /// # Errors
    /// `ENODEV`, `EPERM`; `EEXIST` if another process took the place meanwhile, or no priority is left.
    pub fn attach(program: &KernelProgram, ifindex: u32, attach: AttachType) -> Result<Self> {
        let doing = format!("attaching TC program {:?} as a filter of interface {ifindex}", program.name());
        let priorities = all_filters(ifindex, attach)?;
        let last =
            priorities.iter().filter_map(|answer| u32_at(answer, 16)).map(|info| (info >> 16) as u16).max();
        let priority = match last {
            None => FIRST_PRIORITY,
            Some(last) => {
                last.checked_add(1).ok_or_else(|| KernelError::call("rtnetlink", &doing, libc::EEXIST))?
            }
        };
        let filter = TcFilter {
            ifindex,
            attach,
            chain: 0,
            priority,
            protocol: ALL_PROTOCOLS,
            handle: 1,
            program_id: program.id()?,
            name: program.name().bytes().chain([0]).collect(),
            class: None,
            flags: 0,
        };
        filter.put(program, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &doing)?;
        Ok(filter)
    }

    /// Takes the filter away; when this returns, no packet is in its program any more.
    ///
    /// # Errors
    /// If the kernel refuses. That the filter, or the interface, is gone is no error.
    pub fn detach(&self) -> Result<()> {
        let mut request = self.request(libc::RTM_DELTFILTER, 0);
        request.text(TCA_KIND, "bpf");
        match request.send(&format!("removing a filter of interface {}", self.ifindex)) {
            Err(e) if matches!(e.errno(), Some(libc::ENODEV | libc::ENOENT | libc::EINVAL)) => return Ok(()),
            done => done?,
        };
        grace_period()
    }

    /// A request about this filter.
    fn request(&self, kind: u16, flags: u16) -> NetlinkRequest {
        let info = u32::from(self.priority) << 16 | u32::from(self.protocol.to_be());
        let mut request =
            NetlinkRequest::tc(kind, flags, [self.ifindex, self.handle, parent(self.attach), info]);
        if self.chain != 0 {
            request.attribute(TCA_CHAIN, &self.chain.to_ne_bytes());
        }
        request
    }

    /// Writes the filter with this program.
    fn put(&self, program: &KernelProgram, flags: u16, doing: &str) -> Result<()> {
        let mut request = self.request(libc::RTM_NEWTFILTER, flags);
        request.text(TCA_KIND, "bpf");
        request.nest(TCA_OPTIONS, &[], |r| {
            r.attribute(TCA_BPF_FD, &program.raw().to_ne_bytes());
            if !self.name.is_empty() {
                r.attribute(TCA_BPF_NAME, &self.name);
            }
            r.attribute(TCA_BPF_FLAGS, &ACT_DIRECT.to_ne_bytes());
            r.attribute(TCA_BPF_FLAGS_GEN, &self.flags.to_ne_bytes());
            if let Some(class) = &self.class {
                r.attribute(TCA_BPF_CLASSID, class);
            }
        });
        request.send(doing).map(drop)
    }

    /// Of an answer: `struct tcmsg`, then attributes.
    fn read(answer: &[u8], attach: AttachType) -> Option<TcFilter> {
        let (ifindex, handle, info) = (u32_at(answer, 4)?, u32_at(answer, 8)?, u32_at(answer, 16)?);
        let find = |bytes, wanted| netlink::attributes(bytes).find(|(kind, _)| *kind == wanted);
        let all = answer.get(TCMSG..)?;
        let (_, options) =
            find(all, TCA_OPTIONS).filter(|_| find(all, TCA_KIND) == Some((TCA_KIND, b"bpf\0")))?;
        let option = |wanted| find(options, wanted).map(|(_, payload)| payload);
        let number = |wanted| option(wanted).and_then(|p| u32_at(p, 0));
        let direct = number(TCA_BPF_FLAGS).is_some_and(|flags| flags & ACT_DIRECT != 0);
        if !direct || option(TCA_BPF_ACT).is_some() || option(TCA_BPF_POLICE).is_some() {
            return None;
        }
        Some(TcFilter {
            ifindex,
            attach,
            chain: find(all, TCA_CHAIN).and_then(|(_, p)| u32_at(p, 0)).unwrap_or(0),
            priority: (info >> 16) as u16,
            protocol: u16::from_be(info as u16),
            handle,
            program_id: number(TCA_BPF_ID)?,
            name: option(TCA_BPF_NAME).unwrap_or_default().to_vec(),
            class: option(TCA_BPF_CLASSID).map(<[u8]>::to_vec),
            flags: number(TCA_BPF_FLAGS_GEN).unwrap_or(0) & ASKED,
        })
    }

    /// The id of its program now; `None` if the filter, or the interface, is gone.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn program(&self) -> Result<Option<u32>> {
        let place = |f: &TcFilter| (f.chain, f.priority, f.protocol, f.handle);
        let now = match filters(self.ifindex, self.attach) {
            Err(e) if e.errno() == Some(libc::ENODEV) => return Ok(None),
            now => now?,
        };
        Ok(now.iter().find(|f| place(f) == place(self)).map(|f| f.program_id))
    }

    /// Puts `new` in the place of `expected`; when this returns, no packet is in that any more.
    ///
    /// # Errors
    /// `EEXIST` if another program was there a moment ago, `ENOENT` if the filter is gone; nothing
    /// changed then.
    pub fn replace(&self, new: &KernelProgram, expected: &KernelProgram) -> Result<()> {
        let doing = || format!("replacing {:?} in a filter of interface {}", expected.name(), self.ifindex);
        let errno = match self.program()? {
            Some(id) if id == expected.id()? => None,
            Some(_) => Some(libc::EEXIST),
            None => Some(libc::ENOENT),
        };
        if let Some(errno) = errno {
            return Err(KernelError::call("rtnetlink", doing(), errno));
        }
        self.put(new, libc::NLM_F_REPLACE as u16, &doing())?;
        // Links wait for this by themselves.
        grace_period()
    }
}
