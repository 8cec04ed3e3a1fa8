//! Helpers on maps, and on the records of ring buffers.

use super::{CallbackCaller, E2BIG, EINVAL, ENOENT, MAX_LOOPS, Result, errno};
use crate::env::{RedirectTarget, SideEffect};
use crate::machine::DynamicObject;
use crate::maps::MapKind;
use crate::packet::ContextKind;
use crate::{Fault, MachineState, MapId};

const XDP_REDIRECT: u64 = 4;
/// `BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS`
const BROADCAST_FLAGS: u64 = 8 | 16;

impl MachineState {
    /// The helpers of this file; `None` for any other.
    pub(super) fn map_helper(
        &mut self,
        id: i32,
        args: [u64; 5],
        caller: &mut dyn CallbackCaller,
    ) -> Result<Option<u64>> {
        let [a, b, c, d, _] = args;
        Ok(Some(match id {
            1 => self.map_lookup(a, b, self.env.cpu)?,
            2 => self.map_update(a, b, c, d)?,
            3 => self.map_delete(a, b)?,
            51 => self.redirect_map(a, b, c)?,
            87 => self.map_push(a, b, c)?,
            88 => self.map_pop(88, a, b, true)?,
            89 => self.map_pop(89, a, b, false)?,
            130 => self.ringbuf_output(a, b, c)?,
            131 => self.ringbuf_reserve(a, b, c)?,
            132 => self.ringbuf_finish(132, a, true)?,
            133 => self.ringbuf_finish(133, a, false)?,
            134 => self.ringbuf_query(a, b)?,
            164 => self.for_each(a, b, c, d, caller)?,
            195 => self.map_lookup(a, b, c as u32)?,
            _ => return Ok(None),
        }))
    }

    fn key(&mut self, map: MapId, addr: u64) -> Result<Vec<u8>> {
        let size = self.maps.spec(map).map_or(0, |spec| spec.key_size);
        self.copy(addr, u64::from(size))
    }

    fn value(&mut self, map: MapId, addr: u64) -> Result<Vec<u8>> {
        let size = self.maps.spec(map).map_or(0, |spec| spec.value_size);
        self.copy(addr, u64::from(size))
    }

    fn map_lookup(&mut self, map: u64, key: u64, cpu: u32) -> Result {
        let map = self.map_arg(1, map)?;
        let key = self.key(map, key)?;
        let kind = self.maps.spec(map).map(|spec| spec.kind);
        if kind.is_some_and(MapKind::is_map_of_maps) {
            return Ok(self.maps.inner(map, &key).map_or(0, MachineState::map_address));
        }
        let offset = self.maps.lookup(map, &key, cpu);
        Ok(offset.map_or(0, |offset| MachineState::value_address(map, offset)))
    }

    fn map_update(&mut self, map: u64, key: u64, value: u64, flags: u64) -> Result {
        let map = self.map_arg(2, map)?;
        let (key, value) = (self.key(map, key)?, self.value(map, value)?);
        let cpu = self.env.cpu;
        errno(self.maps.update(map, &key, &value, flags, Some(cpu)))
    }

    fn map_delete(&mut self, map: u64, key: u64) -> Result {
        let map = self.map_arg(3, map)?;
        let key = self.key(map, key)?;
        errno(self.maps.delete(map, &key))
    }

    fn map_push(&mut self, map: u64, value: u64, flags: u64) -> Result {
        let map = self.map_arg(87, map)?;
        let value = self.value(map, value)?;
        errno(self.maps.push(map, &value, flags))
    }

    fn map_pop(&mut self, id: i32, map: u64, out: u64, remove: bool) -> Result {
        let map = self.map_arg(id, map)?;
        let spec = self.maps.spec(map);
        if spec.is_some_and(|spec| spec.kind == MapKind::BloomFilter) {
            let value = self.value(map, out)?;
            return errno(if self.maps.bloom_has(map, &value) { 0 } else { ENOENT });
        }
        let size = spec.map_or(0, |spec| spec.value_size) as usize;
        let value = self.maps.pop(map, remove);
        self.fill(out, value.as_deref().unwrap_or(&vec![0; size]))?;
        errno(if value.is_some() { 0 } else { ENOENT })
    }

    /// The verdict of `bpf_redirect_map`: redirect, or the low bits of the flags where there is no target.
    fn redirect_map(&mut self, map: u64, key: u64, flags: u64) -> Result {
        let map = self.map_arg(51, map)?;
        let kind = self.maps.spec(map).map(|spec| spec.kind).filter(|kind| kind.is_redirect_target());
        let kind = kind.ok_or(Fault::Argument { id: 51, why: "no map to redirect to" })?;
        let device = matches!(kind, MapKind::Devmap | MapKind::DevmapHash);
        let allowed = if device { 3 | BROADCAST_FLAGS } else { 3 };
        if flags & !allowed != 0 {
            return Ok(0);
        }
        let broadcast = flags & 8 != 0;
        let index = self.byte_order().bytes_of_u32(key as u32);
        let present = self.maps.get(map, &index).is_some();
        if !present && !broadcast {
            self.env.redirect = None;
            return Ok(flags & 3);
        }
        self.env.redirect = Some(RedirectTarget::Map { map, key, flags });
        Ok(XDP_REDIRECT)
    }

    fn ringbuf_output(&mut self, map: u64, data: u64, size: u64) -> Result {
        let map = self.map_arg(130, map)?;
        let data = self.copy(data, size)?;
        self.env.events.push(SideEffect::Ringbuf { map, data });
        Ok(0)
    }

    fn ringbuf_reserve(&mut self, map: u64, size: u64, flags: u64) -> Result {
        let map = self.map_arg(131, map)?;
        let room = self.maps.spec(map).map_or(0, |spec| spec.max_entries);
        if flags != 0 || size > u64::from(room) {
            return Ok(0);
        }
        Ok(self.add_extra(DynamicObject { bytes: vec![0; size as usize], ringbuf: Some(map), live: true }))
    }

    fn ringbuf_finish(&mut self, id: i32, record: u64, submit: bool) -> Result {
        let extra = self.extra_at(record).filter(|extra| extra.ringbuf.is_some());
        let extra = extra.ok_or(Fault::Argument { id, why: "not a reserved record" })?;
        extra.live = false;
        let data = std::mem::take(&mut extra.bytes);
        if let (Some(map), true) = (extra.ringbuf, submit) {
            self.env.events.push(SideEffect::Ringbuf { map, data });
        }
        Ok(super::UNDEFINED)
    }

    /// As if the consumer had read everything.
    fn ringbuf_query(&mut self, map: u64, what: u64) -> Result {
        let map = self.map_arg(134, map)?;
        let size = self.maps.spec(map).map_or(0, |spec| spec.max_entries);
        Ok(if what == 1 { u64::from(size) } else { 0 })
    }

    fn for_each(
        &mut self,
        map: u64,
        callback: u64,
        context: u64,
        flags: u64,
        caller: &mut dyn CallbackCaller,
    ) -> Result {
        let id = self.map_arg(164, map)?;
        if flags != 0 {
            return errno(EINVAL);
        }
        let mut done = 0;
        let cpu = self.env.cpu;
        for key in self.maps.keys(id) {
            let Some(offset) = self.maps.lookup(id, &key, cpu) else { continue };
            let value = MachineState::value_address(id, offset);
            let key = self.add_memory(key);
            done += 1;
            if caller.call(self, callback, [map, key, value, context, 0])? != 0 {
                break;
            }
        }
        Ok(done)
    }

    /// `bpf_loop`.
    pub(super) fn bpf_loop(
        &mut self,
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
            if caller.call(self, callback, [i, context, 0, 0, 0])? != 0 {
                return Ok(i + 1);
            }
        }
        Ok(count)
    }

    /// `bpf_redirect`.
    pub(super) fn redirect(&mut self, ifindex: u64, flags: u64) -> Result {
        let (allowed, refused, accepted) = match self.context_kind() {
            ContextKind::Xdp => (0, 0, XDP_REDIRECT),
            _ => (1, 2, 7),
        };
        if flags & !allowed != 0 {
            return Ok(refused);
        }
        self.env.redirect = Some(RedirectTarget::Interface { ifindex: ifindex as u32, flags });
        Ok(accepted)
    }
}
