//! Network interfaces: their properties, and veth pairs for probes, tests and the laboratory.
//!
//! All functions act in the network namespace of the calling thread.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::error::{KernelError, Result};
use crate::netlink::{self, NetlinkRequest};
use crate::sys;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_OPERSTATE: u16 = 16;
/// `IF_OPER_UP`.
const OPERATIONAL: u8 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
pub(crate) const IFLA_XDP: u16 = 43;

/// Sizes of `struct ifaddrmsg` and `struct rtmsg`.
const IFADDR: usize = 8;
const RTMSG: usize = 12;

/// Longest wait for the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

/// An interface, as rtnetlink describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetInterface {
    /// Index in this namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// True if its hardware addresses are Ethernet's (`ARPHRD_ETHER`).
    pub ethernet: bool,
    /// Hardware address, empty if it has none.
    pub address: Vec<u8>,
    /// Largest packet, without the link-layer header.
    pub mtu: u32,
    /// True if it is set up (administratively).
    pub up: bool,
    /// True if it passes packets: it is set up, has a carrier, and the kernel has taken note of that.
    pub operational: bool,
    pub(crate) xdp: Vec<(u16, Vec<u8>)>,
}

/// The index of the interface of this name.
///
/// # Errors
/// `ENODEV` if there is none in this namespace.
pub fn interface_index(name: &str) -> Result<u32> {
    let doing = format!("looking for interface {name:?}");
    match netlink::name_to_index(&sys::c_string(name, &doing)?) {
        0 => Err(KernelError::call("if_nametoindex", doing, libc::ENODEV)),
        index => Ok(index),
    }
}

/// Asks about an interface.
///
/// # Errors
/// `ENODEV` if there is none of that index.
pub fn interface(index: u32) -> Result<NetInterface> {
    let doing = format!("asking about interface {index}");
    let answers = NetlinkRequest::link(libc::RTM_GETLINK, 0, index, 0, 0).send(&doing)?;
    let missing = || KernelError::argument(doing.clone(), "the kernel did not describe it");
    answers.first().and_then(|answer| described(answer)).ok_or_else(missing)
}

/// All interfaces of this namespace.
///
/// # Errors
/// If the kernel does not answer.
pub fn interfaces() -> Result<Vec<NetInterface>> {
    let request = NetlinkRequest::link(libc::RTM_GETLINK, libc::NLM_F_DUMP as u16, 0, 0, 0);
    Ok(request.send("asking for interfaces")?.iter().filter_map(|answer| described(answer)).collect())
}

fn described(answer: &[u8]) -> Option<NetInterface> {
    let (index, flags) = netlink::link_answer(answer)?;
    let mut out = NetInterface {
        index,
        name: String::new(),
        ethernet: answer.get(2..4)? == libc::ARPHRD_ETHER.to_ne_bytes(),
        address: Vec::new(),
        mtu: 0,
        up: flags & libc::IFF_UP as u32 != 0,
        operational: false,
        xdp: Vec::new(),
    };
    for (kind, payload) in netlink::link_attributes(answer) {
        match kind {
            IFLA_IFNAME => out.name = String::from_utf8_lossy(payload).trim_end_matches('\0').to_owned(),
            IFLA_ADDRESS => out.address = payload.to_vec(),
            IFLA_MTU => out.mtu = netlink::u32_at(payload, 0).unwrap_or(0),
            IFLA_OPERSTATE => out.operational = payload.first() == Some(&OPERATIONAL),
            IFLA_XDP => {
                out.xdp = netlink::attributes(payload).map(|(k, p)| (k, p.to_vec())).collect();
            }
            _ => {}
        }
    }
    Some(out)
}

/// Addresses of IPv4 of all interfaces, in the kernel's order: index of the interface, address, and bits of
/// its network.
///
/// # Errors
/// If the kernel does not answer.
pub fn addresses() -> Result<Vec<(u32, Ipv4Addr, u8)>> {
    let answers = NetlinkRequest::ipv4(libc::RTM_GETADDR, IFADDR).send("asking for addresses")?;
    let one = |answer: &Vec<u8>| {
        let own = |wanted| {
            let mut all = netlink::attributes(answer.get(IFADDR..)?);
            all.find(|(kind, _)| *kind == wanted).and_then(|(_, payload)| address(payload))
        };
        // Of a line between two the other end is `IFA_ADDRESS`.
        let found = own(libc::IFA_LOCAL).or_else(|| own(libc::IFA_ADDRESS))?;
        Some((netlink::u32_at(answer, 4)?, found, *answer.get(1)?))
    };
    Ok(answers.iter().filter_map(one).collect())
}

/// Gateways of the default routes of IPv4 in the main table, those that are preferred first: index of the
/// interface, and address.
///
/// # Errors
/// If the kernel does not answer.
pub fn gateways() -> Result<Vec<(u32, Ipv4Addr)>> {
    let answers = NetlinkRequest::ipv4(libc::RTM_GETROUTE, RTMSG).send("asking for routes")?;
    let one = |answer: &Vec<u8>| {
        // Length of the destination, table.
        if (*answer.get(1)?, *answer.get(4)?) != (0, libc::RT_TABLE_MAIN) {
            return None;
        }
        let (mut to, mut by, mut priority) = (None, None, 0);
        for (kind, payload) in netlink::attributes(answer.get(RTMSG..)?) {
            match kind {
                libc::RTA_OIF => by = netlink::u32_at(payload, 0),
                libc::RTA_GATEWAY => to = address(payload),
                libc::RTA_PRIORITY => priority = netlink::u32_at(payload, 0)?,
                _ => {}
            }
        }
        Some((priority, by?, to?))
    };
    let mut all: Vec<(u32, u32, Ipv4Addr)> = answers.iter().filter_map(one).collect();
    all.sort_by_key(|(priority, ..)| *priority);
    Ok(all.into_iter().map(|(_, by, to)| (by, to)).collect())
}

fn address(payload: &[u8]) -> Option<Ipv4Addr> {
    payload.try_into().ok().map(|bytes: [u8; 4]| Ipv4Addr::from(bytes))
}

/// Makes a veth pair with `queues` receive and transmit queues each, and gives the indices of the two ends.
///
/// # Errors
/// `EEXIST` if a name is taken, `EPERM` without CAP_NET_ADMIN.
pub fn create_veth(name: &str, peer: &str, queues: u32) -> Result<(u32, u32)> {
    let doing = format!("making the veth pair {name}, {peer}");
    let end = |r: &mut NetlinkRequest, name: &str| {
        r.text(IFLA_IFNAME, name);
        r.attribute(IFLA_NUM_TX_QUEUES, &queues.to_ne_bytes());
        r.attribute(IFLA_NUM_RX_QUEUES, &queues.to_ne_bytes());
    };
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut request = NetlinkRequest::link(libc::RTM_NEWLINK, flags, 0, 0, 0);
    end(&mut request, name);
    request.nest(IFLA_LINKINFO, &[], |r| {
        r.text(IFLA_INFO_KIND, "veth");
        r.nest(IFLA_INFO_DATA, &[], |r| {
            // The peer's attributes follow an `ifinfomsg` of its own.
            r.nest(VETH_INFO_PEER, &[0; 16], |r| end(r, peer));
        });
    });
    request.send(&doing)?;
    Ok((interface_index(name)?, interface_index(peer)?))
}

/// Sets an interface up.
///
/// # Errors
/// `ENODEV`, `EPERM`.
pub fn set_up(index: u32) -> Result<()> {
    let up = libc::IFF_UP as u32;
    NetlinkRequest::link(libc::RTM_NEWLINK, 0, index, up, up)
        .send(&format!("setting interface {index} up"))
        .map(drop)
}

/// Sets an interface down.
///
/// # Errors
/// `ENODEV`, `EPERM`.
pub fn set_down(index: u32) -> Result<()> {
    NetlinkRequest::link(libc::RTM_NEWLINK, 0, index, 0, libc::IFF_UP as u32)
        .send(&format!("setting interface {index} down"))
        .map(drop)
}

/// Sets the MTU of an interface.
///
/// # Errors
/// `ENODEV`, `EPERM`, `EINVAL` or `ERANGE` for one that the interface cannot have.
pub fn set_mtu(index: u32, mtu: u32) -> Result<()> {
    let mut request = NetlinkRequest::link(libc::RTM_NEWLINK, 0, index, 0, 0);
    request.attribute(IFLA_MTU, &mtu.to_ne_bytes());
    request.send(&format!("setting the MTU of interface {index}")).map(drop)
}

/// Sets the hardware address of an interface.
///
/// # Errors
/// `ENODEV`, `EPERM`, `EBUSY` if its driver changes the address only while the interface is down.
pub fn set_address(index: u32, address: &[u8]) -> Result<()> {
    let mut request = NetlinkRequest::link(libc::RTM_NEWLINK, 0, index, 0, 0);
    request.attribute(IFLA_ADDRESS, address);
    request.send(&format!("setting the address of interface {index}")).map(drop)
}

/// Sets both ends of a veth pair up, and waits until they pass packets. The one that is set up first has a
/// carrier only with the other, which a worker of the kernel sees to; until then the kernel silently drops
/// frames sent there.
///
/// # Errors
/// `ENODEV`, `EPERM`; if one passes no packets after ten seconds.
pub fn set_up_pair(ends: (u32, u32)) -> Result<()> {
    let ends = [ends.0, ends.1];
    ends.into_iter().try_for_each(set_up)?;
    let start = Instant::now();
    for end in ends {
        while !interface(end)?.operational {
            if start.elapsed() > PATIENCE {
                return Err(KernelError::argument(
                    format!("setting interface {end} up"),
                    "it passes no packets",
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Removes an interface; of a veth pair, both ends.
///
/// # Errors
/// `ENODEV`, `EPERM`, `EOPNOTSUPP` for interfaces that cannot be removed.
pub fn delete_interface(index: u32) -> Result<()> {
    NetlinkRequest::link(libc::RTM_DELLINK, 0, index, 0, 0)
        .send(&format!("removing interface {index}"))
        .map(drop)
}
