//! Helpers on maps, and on the records of ring buffers.

use super::{CallbackCaller, E2BIG, EINVAL, ENOENT, MAX_LOOPS, Result, errno};
use crate::env::{RedirectTarget, SideEffect};
use crate::machine::DynamicObject;
use crate::maps::MapKind;
use crate::packet::ContextKind;
use crate::{Fault, MachineState, MapId, helpers};

const XDP_REDIRECT: u64 = 4;
/// `BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS`
const BROADCAST_FLAGS: u64 = 8 | 16;

/// The helpers of this file; `None` for any other.
pub(super) fn map_helper(
    state: &mut MachineState,
    id: i32,
    args: [u64; 5],
    caller: &mut dyn CallbackCaller,
) -> Result<Option<u64>> {
    let [a, b, c, d, _] = args;
    Ok(Some(match id {
        1 => map_lookup(state, a, b, state.env.cpu)?,
        2 => map_update(state, a, b, c, d)?,
        3 => map_delete(state, a, b)?,
        51 => redirect_map(state, a, b, c)?,
        87 => map_push(state, a, b, c)?,
        88 => map_pop(state, 88, a, b, true)?,
        89 => map_pop(state, 89, a, b, false)?,
        130 => ringbuf_output(state, a, b, c)?,
        131 => ringbuf_reserve(state, a, b, c)?,
        132 => ringbuf_finish(state, 132, a, true)?,
        133 => ringbuf_finish(state, 133, a, false)?,
        134 => ringbuf_query(state, a, b)?,
        164 => for_each(state, a, b, c, d, caller)?,
        195 => map_lookup(state, a, b, c as u32)?,
        _ => return Ok(None),
    }))
}

fn key_bytes(state: &mut MachineState, map: MapId, addr: u64) -> Result<Vec<u8>> {
    let size = state.maps.spec(map).map_or(0, |spec| spec.key_size);
    helpers::copy(state, addr, u64::from(size))
}

fn value_bytes(state: &mut MachineState, map: MapId, addr: u64) -> Result<Vec<u8>> {
    let size = state.maps.spec(map).map_or(0, |spec| spec.value_size);
    helpers::copy(state, addr, u64::from(size))
}

fn map_lookup(state: &mut MachineState, map: u64, key: u64, cpu: u32) -> Result {
    let map = helpers::map_arg(state, 1, map)?;
    let key = key_bytes(state, map, key)?;
    let kind = state.maps.spec(map).map(|spec| spec.kind);
    if kind.is_some_and(MapKind::is_map_of_maps) {
        return Ok(state.maps.inner(map, &key).map_or(0, MachineState::map_address));
    }
    let offset = state.maps.lookup(map, &key, cpu);
    Ok(offset.map_or(0, |offset| MachineState::value_address(map, offset)))
}

fn map_update(state: &mut MachineState, map: u64, key: u64, value: u64, flags: u64) -> Result {
    let map = helpers::map_arg(state, 2, map)?;
    let (key, value) = (key_bytes(state, map, key)?, value_bytes(state, map, value)?);
    let cpu = state.env.cpu;
    errno(state.maps.update(map, &key, &value, flags, Some(cpu)))
}

fn map_delete(state: &mut MachineState, map: u64, key: u64) -> Result {
    let map = helpers::map_arg(state, 3, map)?;
    let key = key_bytes(state, map, key)?;
    errno(state.maps.delete(map, &key))
}

fn map_push(state: &mut MachineState, map: u64, value: u64, flags: u64) -> Result {
    let map = helpers::map_arg(state, 87, map)?;
    let value = value_bytes(state, map, value)?;
    errno(state.maps.push(map, &value, flags))
}

fn map_pop(state: &mut MachineState, id: i32, map: u64, out: u64, remove: bool) -> Result {
    let map = helpers::map_arg(state, id, map)?;
    let spec = state.maps.spec(map);
    if spec.is_some_and(|spec| spec.kind == MapKind::BloomFilter) {
        let value = value_bytes(state, map, out)?;
        return errno(if state.maps.bloom_has(map, &value) { 0 } else { ENOENT });
    }
    let size = spec.map_or(0, |spec| spec.value_size) as usize;
    let value = state.maps.pop(map, remove);
    helpers::fill(state, out, value.as_deref().unwrap_or(&vec![0; size]))?;
    errno(if value.is_some() { 0 } else { ENOENT })
}

/// The verdict of `bpf_redirect_map`: redirect, or the low bits of the flags where there is no target.
fn redirect_map(state: &mut MachineState, map: u64, key: u64, flags: u64) -> Result {
    let map = helpers::map_arg(state, 51, map)?;
    let kind = state.maps.spec(map).map(|spec| spec.kind).filter(|kind| kind.is_redirect_target());
    let kind = kind.ok_or(Fault::Argument { id: 51, why: "no map to redirect to" })?;
    let device = matches!(kind, MapKind::Devmap | MapKind::DevmapHash);
    let allowed = if device { 3 | BROADCAST_FLAGS } else { 3 };
    if flags & !allowed != 0 {
        return Ok(0);
    }
    let broadcast = flags & 8 != 0;
    let index = state.byte_order().bytes_of_u32(key as u32);
    let present = state.maps.get(map, &index).is_some();
    if !present && !broadcast {
        state.env.redirect = None;
        return Ok(flags & 3);
    }
    state.env.redirect = Some(RedirectTarget::Map { map, key, flags });
    Ok(XDP_REDIRECT)
}

fn ringbuf_output(state: &mut MachineState, map: u64, data: u64, size: u64) -> Result {
    let map = helpers::map_arg(state, 130, map)?;
    let data = helpers::copy(state, data, size)?;
    state.env.events.push(SideEffect::Ringbuf { map, data });
    Ok(0)
}

fn ringbuf_reserve(state: &mut MachineState, map: u64, size: u64, flags: u64) -> Result {
    let map = helpers::map_arg(state, 131, map)?;
    let room = state.maps.spec(map).map_or(0, |spec| spec.max_entries);
    if flags != 0 || size > u64::from(room) {
        return Ok(0);
    }
    Ok(state.add_extra(DynamicObject { bytes: vec![0; size as usize], ringbuf: Some(map), live: true }))
}

fn ringbuf_finish(state: &mut MachineState, id: i32, record: u64, submit: bool) -> Result {
    let extra = state.extra_at(record).filter(|extra| extra.ringbuf.is_some());
    let extra = extra.ok_or(Fault::Argument { id, why: "not a reserved record" })?;
    extra.live = false;
    let data = std::mem::take(&mut extra.bytes);
    if let (Some(map), true) = (extra.ringbuf, submit) {
        state.env.events.push(SideEffect::Ringbuf { map, data });
    }
    Ok(super::UNDEFINED)
}

/// As if the consumer had read everything.
fn ringbuf_query(state: &mut MachineState, map: u64, what: u64) -> Result {
    let map = helpers::map_arg(state, 134, map)?;
    let size = state.maps.spec(map).map_or(0, |spec| spec.max_entries);
    Ok(if what == 1 { u64::from(size) } else { 0 })
}

fn for_each(
    state: &mut MachineState,
    map: u64,
    callback: u64,
    context: u64,
    flags: u64,
    caller: &mut dyn CallbackCaller,
) -> Result {
    let id = helpers::map_arg(state, 164, map)?;
    if flags != 0 {
        return errno(EINVAL);
    }
    let mut done = 0;
    let cpu = state.env.cpu;
    for key in state.maps.keys(id) {
        let Some(offset) = state.maps.lookup(id, &key, cpu) else { continue };
        let value = MachineState::value_address(id, offset);
        let key = state.add_memory(key);
        done += 1;
        if caller.call(state, callback, [map, key, value, context, 0])? != 0 {
            break;
        }
    }
    Ok(done)
}

/// `bpf_loop`.
pub(super) fn bpf_loop(
    state: &mut MachineState,
    count: u64,
    callback: u64,
    context: u64,
    flags: u64,
    caller: &mut dyn CallbackCaller,
) -> Result {
    let count = u64::from(count as u32);
    if flags != 0 {
        return errno(EINVAL);
    }
    if count > MAX_LOOPS {
        return errno(E2BIG);
    }
    for i in 0..count {
        if caller.call(state, callback, [i, context, 0, 0, 0])? != 0 {
            return Ok(i + 1);
        }
    }
    Ok(count)
}

/// `bpf_redirect`.
pub(super) fn redirect(state: &mut MachineState, ifindex: u64, flags: u64) -> Result {
    let (allowed, refused, accepted) = match state.context_kind() {
        ContextKind::Xdp => (0, 0, XDP_REDIRECT),
        _ => (1, 2, 7),
    };
    if flags & !allowed != 0 {
        return Ok(refused);
    }
    state.env.redirect = Some(RedirectTarget::Interface { ifindex: ifindex as u32, flags });
    Ok(accepted)
}
