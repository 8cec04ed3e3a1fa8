//! Helpers on packets and contexts.

use super::{EFAULT, EINVAL, ENOENT, Result, csum, errno, maps};
use crate::env::{RedirectTarget, SideEffect};
use crate::packet::ContextKind;
use crate::{Fault, MachineState, helpers};

/// Most bytes that an access at an offset may span.
const MAX_ACCESS: u64 = 0xffff;
const ETH_HLEN: usize = 14;
const ETH_P_8021Q: u16 = 0x8100;
/// `BPF_F_PSEUDO_HDR`, `BPF_F_MARK_MANGLED_0`, `BPF_F_MARK_ENFORCE`, and the mask of the field's size.
const L4_FLAGS: u64 = 0x10 | 0x20 | 0x40 | 0xf;

/// The helpers of this file; `None` for any other.
pub(super) fn packet_helper(state: &mut MachineState, id: i32, args: [u64; 5]) -> Result<Option<u64>> {
    let [_, b, c, d, e] = args;
    Ok(Some(match id {
        9 => packet_store(state, b, c, d)?,
        10 => l3_csum_replace(state, b, c, d, e)?,
        11 => l4_csum_replace(state, b, c, d, e)?,
        13 => clone_redirect(state, b)?,
        18 => vlan_push(state, b, c)?,
        19 => vlan_pop(state)?,
        23 => maps::redirect(state, args[0], b)?,
        26 => packet_load(state, b, c, d)?,
        34 => Ok(u64::from(state.context_field(68)))?,
        38 => change_tail(state, b)?,
        39 => 0,
        40 => b & 0xffff_ffff,
        41 => super::UNDEFINED,
        43 => change_head(state, b)?,
        44 => adjusted(state, |p| p.adjust_head(b as i32).then_some(()).ok_or(EINVAL))?,
        48 => set_hash(state, b)?,
        50 => adjust_room(state, b as i32, c)?,
        54 => adjusted(state, |p| p.adjust_meta(b as i32))?,
        65 => adjusted(state, |p| p.adjust_tail(b as i32).then_some(()).ok_or(EINVAL))?,
        68 => packet_load_relative(state, b, c, d, e)?,
        69 => fib_lookup(state, b, c, d)?,
        152 => redirect_to(state, RedirectTarget::Neighbour { ifindex: args[0] as u32 })?,
        155 => redirect_to(state, RedirectTarget::Peer { ifindex: args[0] as u32 })?,
        163 => check_mtu(state, c, d)?,
        188 => state.packet.bytes().len() as u64,
        189 => xdp_load(state, b, c, d)?,
        190 => packet_store(state, b, c, d)?,
        _ => return Ok(None),
    }))
}

/// Runs a change of the packet's bounds and renews the context's fields.
fn adjusted(
    state: &mut MachineState,
    change: impl FnOnce(&mut crate::PacketBuffer) -> std::result::Result<(), i64>,
) -> Result {
    let done = change(&mut state.packet);
    state.sync_context();
    errno(done.err().unwrap_or(0))
}

/// The packet's bytes at an offset; `None` beyond its end.
fn packet_part(state: &mut MachineState, offset: u64, len: u64) -> Option<&mut [u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    state.packet.bytes_mut().get_mut(start..end)
}

/// `bpf_skb_load_bytes`: zeroes the target where it fails.
fn packet_load(state: &mut MachineState, offset: u64, to: u64, len: u64) -> Result {
    let offset = u64::from(offset as u32);
    let found = packet_part(state, offset, len).map(|bytes| bytes.to_vec());
    match found {
        Some(bytes) => {
            helpers::fill(state, to, &bytes)?;
            Ok(0)
        }
        None => {
            state.bytes(to, len, true)?.fill(0);
            errno(EFAULT)
        }
    }
}

fn packet_load_relative(state: &mut MachineState, offset: u64, to: u64, len: u64, from: u64) -> Result {
    let base = if from == 1 { ETH_HLEN as u64 } else { 0 };
    packet_load(state, offset + base, to, len)
}

/// `bpf_xdp_load_bytes`: leaves the target alone where it fails.
fn xdp_load(state: &mut MachineState, offset: u64, to: u64, len: u64) -> Result {
    let offset = u64::from(offset as u32);
    if offset > MAX_ACCESS || len > MAX_ACCESS {
        return errno(EFAULT);
    }
    let found = packet_part(state, offset, len).map(|bytes| bytes.to_vec());
    match found {
        Some(bytes) => {
            helpers::fill(state, to, &bytes)?;
            Ok(0)
        }
        None => errno(EINVAL),
    }
}

/// `bpf_skb_store_bytes` and `bpf_xdp_store_bytes`.
fn packet_store(state: &mut MachineState, offset: u64, from: u64, len: u64) -> Result {
    let bytes = helpers::copy(state, from, len)?;
    let xdp = state.context_kind() == ContextKind::Xdp;
    match packet_part(state, u64::from(offset as u32), len) {
        Some(part) => {
            part.copy_from_slice(&bytes);
            Ok(0)
        }
        None => errno(if xdp { EINVAL } else { EFAULT }),
    }
}

/// The 16-bit checksum field at an offset.
fn checksum_field(state: &mut MachineState, offset: u64) -> Option<&mut [u8; 2]> {
    if offset > MAX_ACCESS || offset & 1 != 0 {
        return None;
    }
    packet_part(state, offset, 2)?.first_chunk_mut()
}

fn l3_csum_replace(state: &mut MachineState, offset: u64, from: u64, to: u64, flags: u64) -> Result {
    let offset = u64::from(offset as u32);
    if flags & !0xf != 0 {
        return errno(EINVAL);
    }
    let order = state.byte_order();
    let Some(field) = checksum_field(state, offset) else { return errno(EFAULT) };
    let old = order.number(field) as u16;
    let new = match flags & 0xf {
        0 if from == 0 => csum::replace_by_diff(old, to as u32),
        2 => csum::replace2(old, from as u16, to as u16),
        4 => csum::replace4(old, from as u32, to as u32),
        _ => return errno(EINVAL),
    };
    *field = order.bytes_of_u16(new);
    Ok(0)
}

fn l4_csum_replace(state: &mut MachineState, offset: u64, from: u64, to: u64, flags: u64) -> Result {
    let offset = u64::from(offset as u32);
    // Bit 7 is BPF_F_IPV6.
    if flags & !(L4_FLAGS | 0x80) != 0 {
        return errno(EINVAL);
    }
    let (mangled, enforce) = (flags & 0x20 != 0, flags & 0x40 != 0);
    let order = state.byte_order();
    let Some(field) = checksum_field(state, offset) else { return errno(EFAULT) };
    let old = order.number(field) as u16;
    if mangled && !enforce && old == 0 {
        return Ok(0);
    }
    let new = match flags & 0xf {
        0 if from == 0 => csum::replace_by_diff(old, to as u32),
        2 => csum::replace2(old, from as u16, to as u16),
        4 => csum::replace4(old, from as u32, to as u32),
        _ => return errno(EINVAL),
    };
    let new = if mangled && new == 0 { 0xffff } else { new };
    *field = order.bytes_of_u16(new);
    Ok(0)
}

fn clone_redirect(state: &mut MachineState, ifindex: u64) -> Result {
    let data = state.packet.bytes().to_vec();
    state.env.events.push(SideEffect::Clone { ifindex: ifindex as u32, data });
    Ok(0)
}

/// Pushes a tag; the one that was there, kept beside the packet, goes into it.
fn vlan_push(state: &mut MachineState, proto: u64, tci: u64) -> Result {
    if state.context_field(20) != 0 {
        let (tag, protocol) = (state.context_field(24) as u16, state.context_field(28) as u16);
        if !state.packet.insert(12, 4) {
            return errno(crate::errno::ENOSPC);
        }
        let order = state.byte_order();
        if let Some(field) = packet_part(state, 12, 4) {
            field[..2].copy_from_slice(&order.bytes_of_u16(protocol));
            field[2..].copy_from_slice(&tag.to_be_bytes());
        }
    }
    let default = state.byte_order().number(&ETH_P_8021Q.to_be_bytes());
    let proto = if proto as u16 == 0 { default as u16 } else { proto as u16 };
    set_vlan(state, Some((u32::from(proto), tci as u32 & 0xffff)));
    state.sync_context();
    Ok(0)
}

/// Pops the tag beside the packet, or the one in it.
fn vlan_pop(state: &mut MachineState) -> Result {
    if state.context_field(20) != 0 {
        set_vlan(state, None);
    } else if packet_part(state, 12, 2).is_some_and(|p| p == ETH_P_8021Q.to_be_bytes() || p == [0x88, 0xa8]) {
        state.packet.remove(12, 4);
    }
    state.sync_context();
    Ok(0)
}

/// Sets `vlan_present`, `vlan_tci` and `vlan_proto` of the context.
fn set_vlan(state: &mut MachineState, tag: Option<(u32, u32)>) {
    let (proto, tci) = tag.unwrap_or((0, 0));
    state.set_context_field(20, u32::from(tag.is_some()));
    state.set_context_field(24, tci);
    state.set_context_field(28, proto);
}

fn set_hash(state: &mut MachineState, hash: u64) -> Result {
    state.set_context_field(68, hash as u32);
    Ok(0)
}

fn change_tail(state: &mut MachineState, len: u64) -> Result {
    if len < ETH_HLEN as u64 || len > MAX_ACCESS {
        return errno(EINVAL);
    }
    state.packet.resize(len as usize);
    state.sync_context();
    Ok(0)
}

fn change_head(state: &mut MachineState, len: u64) -> Result {
    let done = state.packet.insert(0, len as usize);
    state.sync_context();
    errno(if done { 0 } else { crate::errno::ENOSPC })
}

/// `bpf_skb_adjust_room`: after the Ethernet header (mode 1) or the IP header (mode 0).
fn adjust_room(state: &mut MachineState, delta: i32, mode: u64) -> Result {
    let at = match mode {
        1 => ETH_HLEN,
        0 => ETH_HLEN + if state.packet.bytes().get(12..14) == Some(&[0x86, 0xdd]) { 40 } else { 20 },
        _ => return errno(EINVAL),
    };
    let len = delta.unsigned_abs() as usize;
    let done = if delta >= 0 { state.packet.insert(at, len) } else { state.packet.remove(at, len) };
    state.sync_context();
    errno(if done { 0 } else { crate::errno::ENOSPC })
}

fn fib_lookup(state: &mut MachineState, params: u64, len: u64, flags: u64) -> Result {
    let mut bytes = helpers::copy(state, params, len)?;
    if bytes.len() < 64 {
        return errno(EINVAL);
    }
    let result = state.env.hooks.fib_lookup(&mut bytes, flags);
    helpers::fill(state, params, &bytes)?;
    errno(result)
}

fn redirect_to(state: &mut MachineState, redirect: RedirectTarget) -> Result {
    state.env.redirect = Some(redirect);
    Ok(7)
}

/// `bpf_check_mtu` of an Ethernet interface of 1,500.
fn check_mtu(state: &mut MachineState, len: u64, delta: u64) -> Result {
    let asked = helpers::copy(state, len, 4)?;
    let asked = state.byte_order().number(&asked);
    let size = if asked != 0 { asked as usize + ETH_HLEN } else { state.packet.bytes().len() };
    let size = size as i64 + i64::from(delta as i32);
    helpers::fill(state, len, &state.byte_order().bytes_of_u32(1500))?;
    Ok(u64::from(size > 1500 + ETH_HLEN as i64))
}

/// A legacy packet load: the value in host order, or `None` where the program ends with 0.
///
/// # Errors
/// None here; the type is that of the machine's other accesses.
pub(crate) fn legacy_load(
    state: &mut MachineState,
    offset: i64,
    size: millstream_isa::Size,
) -> std::result::Result<Option<u64>, Fault> {
    /// `SKF_NET_OFF`: relative to the network header.
    const NET: i64 = -0x10_0000;
    /// `SKF_LL_OFF`: relative to the link layer header.
    const LINK: i64 = -0x20_0000;
    let offset = match i64::from(offset as i32) {
        at @ 0.. => at,
        at if at >= NET => at - NET + ETH_HLEN as i64,
        at => at - LINK,
    };
    let found =
        u64::try_from(offset).ok().and_then(|offset| packet_part(state, offset, u64::from(size.bytes())));
    Ok(found.map(|bytes| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))))
}

/// `bpf_csum_diff`.
pub(super) fn csum_diff(state: &mut MachineState, [from, from_size, to, to_size, seed]: [u64; 5]) -> Result {
    let (from_size, to_size) = (u64::from(from_size as u32), u64::from(to_size as u32));
    if (from_size | to_size) & 3 != 0 {
        return errno(EINVAL);
    }
    let (from, to) = (helpers::copy(state, from, from_size)?, helpers::copy(state, to, to_size)?);
    Ok(u64::from(csum::diff(&from, &to, seed as u32, state.byte_order())))
}

/// `bpf_perf_event_output`, with the part of the packet that the flags ask for.
pub(super) fn perf_event_output(
    state: &mut MachineState,
    map: u64,
    flags: u64,
    data: u64,
    size: u64,
) -> Result {
    let map = helpers::map_arg(state, 25, map)?;
    if flags & !0x000f_ffff_ffff_ffff != 0 {
        return errno(EINVAL);
    }
    let mut data = helpers::copy(state, data, size)?;
    let extra = flags >> 32;
    match packet_part(state, 0, extra) {
        Some(part) => data.extend_from_slice(part),
        None => return errno(EFAULT),
    }
    let slots = state.maps.spec(map).map_or(0, |spec| spec.max_entries);
    let index = flags as u32;
    if index != u32::MAX && index >= slots {
        return errno(crate::errno::E2BIG);
    }
    state.env.events.push(SideEffect::Perf { map, index, data });
    Ok(0)
}

/// A lookup of a socket: there are none.
pub(super) fn no_socket() -> Result {
    Ok(0)
}

/// `bpf_sk_assign` and the like: there is nothing to act on.
pub(super) fn no_such_object() -> Result {
    errno(ENOENT)
}
