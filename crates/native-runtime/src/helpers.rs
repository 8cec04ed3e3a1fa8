//! The helper functions, as native code calls them.
//!
//! Each takes the worker and the five argument registers, and returns the result register. Properties of a
//! program's calls that the kernel's verifier proves are trusted here, as the kernel's own helpers trust
//! them: that a map argument is a map's address; that a key, a value, a buffer of a stated length is that
//! long; that a callback is a function of the program.
//!
//! Invariants: `worker` is the address of the one [`Worker`] of this thread, whose `current` is the packet
//! that the program runs on; map addresses are those of the engine's [`SeqlockMap`] maps. While a helper
//! runs, the code that called it waits, and nobody else holds a reference to the worker or the packet, nor to
//! a map while the helper is `with` it; a helper that calls back into the program holds none of them
//! meanwhile.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::size_of;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use millstream_interp::{MapKind, encrypt_aes_128_ctr};
use millstream_isa::helpers::id;

use super::csum;
use super::maps::{E2BIG, EINVAL, ENOENT, NativeMap, is_of_addresses};
use super::packet::{DescriptorField, PacketDescriptor};
use super::sharing::SeqlockMap;
use super::worker::{ClockSource, ProgramEvent, Worker};

/// A helper in native code.
pub(crate) type HelperFn = extern "C" fn(*mut Worker, u64, u64, u64, u64, u64) -> u64;

const XDP_REDIRECT: u64 = 4;
const MAX_TAIL_CALLS: u32 = 33;
const MAX_LOOPS: u64 = 8 << 20;
const EFAULT: i64 = -(libc::EFAULT as i64);

/// Helpers: number, symbol, function.
pub const TABLE: &[(i32, &str, HelperFn)] = &[
    (1, "ms_map_lookup", map_lookup),
    (2, "ms_map_update", map_update),
    (3, "ms_map_delete", map_delete),
    (5, "ms_ktime", ktime),
    (6, "ms_trace", trace),
    (7, "ms_random", random),
    (8, "ms_cpu", cpu),
    (12, "ms_tail_call", tail_call),
    (23, "ms_redirect", redirect),
    (25, "ms_perf_output", perf_output),
    (28, "ms_csum_diff", csum_diff),
    (42, "ms_numa_node", zero),
    (44, "ms_adjust_head", adjust_head),
    (51, "ms_redirect_map", redirect_map),
    (54, "ms_adjust_meta", adjust_meta),
    (65, "ms_adjust_tail", adjust_tail),
    (87, "ms_map_push", map_push),
    (88, "ms_map_pop", map_pop),
    (89, "ms_map_peek", map_peek),
    (93, "ms_spin_lock", spin_lock),
    (94, "ms_spin_unlock", spin_unlock),
    (118, "ms_jiffies", jiffies),
    (125, "ms_ktime_boot", ktime_boot),
    (130, "ms_ringbuf_output", ringbuf_output),
    (131, "ms_ringbuf_reserve", ringbuf_reserve),
    (132, "ms_ringbuf_submit", ringbuf_submit),
    (133, "ms_ringbuf_discard", ringbuf_discard),
    (160, "ms_ktime_coarse", ktime_coarse),
    (164, "ms_for_each", for_each),
    (181, "ms_loop", bpf_loop),
    (188, "ms_packet_length", packet_length),
    (189, "ms_load_bytes", load_bytes),
    (190, "ms_store_bytes", store_bytes),
    (208, "ms_ktime_tai", ktime_tai),
    (id::AES_128_CTR, "ms_aes_128_ctr", aes_128_ctr),
];

/// Operations on packets that graphs use: symbol, function.
pub(crate) const INTRINSICS: &[(&str, HelperFn)] =
    &[("ms_clone", clone_packet), ("ms_hold", hold_packet), ("ms_pull", pull_packet)];

/// Functions of the C library that a compiler calls implicitly.
fn library() -> [(&'static str, usize); 4] {
    [
        ("memcpy", libc::memcpy as *const () as usize),
        ("memmove", libc::memmove as *const () as usize),
        ("memset", libc::memset as *const () as usize),
        ("memcmp", libc::memcmp as *const () as usize),
    ]
}

/// Symbols and addresses of all functions that native code calls.
pub fn symbols() -> Vec<(&'static str, usize)> {
    let helpers = TABLE.iter().map(|(_, symbol, f)| (*symbol, *f as usize));
    helpers.chain(INTRINSICS.iter().map(|(symbol, f)| (*symbol, *f as usize))).collect()
}

/// The address of a function that code compiled ahead of time calls.
pub fn address(symbol: &str) -> Option<usize> {
    symbols().into_iter().chain(library()).find(|(name, _)| *name == symbol).map(|(_, address)| address)
}

/// The worker behind the first argument.
fn worker<'a>(worker: *mut Worker) -> &'a mut Worker {
    // SAFETY: see the module's invariants.
    unsafe { &mut *worker }
}

/// Runs a closure with the map behind an argument.
fn with<R>(address: u64, act: impl FnOnce(&mut NativeMap) -> R) -> R {
    // SAFETY: see the module's invariants.
    unsafe { &*(address as *const SeqlockMap) }.with(act)
}

/// The current packet.
fn packet<'a>(w: *mut Worker) -> PacketDescriptor<'a> {
    let worker = worker(w);
    descriptor(worker, worker.current)
}

/// The packet with this descriptor.
fn descriptor<'a>(worker: &Worker, at: *mut u32) -> PacketDescriptor<'a> {
    let (layout, buffer) = (worker.layout, worker.buffer);
    // SAFETY: see the module's invariants; descriptors are as long as the layout of the program says, by
    // which the batch is laid out (`PacketBatch::conform`).
    PacketDescriptor { layout, words: unsafe { from_raw_parts_mut(at, layout.words()) }, buffer }
}

/// Memory behind an argument, for reading.
fn bytes<'a>(address: u64, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: see the module's invariants.
    unsafe { from_raw_parts(address as *const u8, len) }
}

/// Memory behind an argument, for writing.
fn bytes_mut<'a>(address: u64, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: see the module's invariants.
    unsafe { from_raw_parts_mut(address as *mut u8, len) }
}

/// Calls a function of the program.
fn call(w: *mut Worker, callback: u64, args: [u64; 5]) -> u64 {
    // SAFETY: the verifier has seen that it is a function of the program, and native code gives addresses of
    // functions of this type.
    let callback = unsafe { std::mem::transmute::<usize, HelperFn>(callback as usize) };
    let [a, b, c, d, e] = args;
    callback(w, a, b, c, d, e)
}

fn errno(error: i64) -> u64 {
    error as u64
}

extern "C" fn map_lookup(w: *mut Worker, m: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    let number = worker(w).number;
    with(m, |map| {
        let key = bytes(key, map.spec().key_size as usize);
        let Some(address) = map.lookup(key, number) else { return 0 };
        if !is_of_addresses(map.spec().kind) {
            return address;
        }
        // The value is an inner map's address.
        let value = bytes(address, size_of::<u64>());
        value.first_chunk().map_or(0, |value| u64::from_ne_bytes(*value))
    })
}

extern "C" fn map_update(w: *mut Worker, m: u64, key: u64, value: u64, flags: u64, _: u64) -> u64 {
    let number = worker(w).number;
    errno(with(m, |map| {
        let key = bytes(key, map.spec().key_size as usize);
        map.update(key, bytes(value, map.value_size()), flags, Some(number))
    }))
}

extern "C" fn map_delete(_: *mut Worker, m: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    errno(with(m, |map| map.delete(bytes(key, map.spec().key_size as usize))))
}

extern "C" fn map_push(_: *mut Worker, m: u64, value: u64, flags: u64, _: u64, _: u64) -> u64 {
    errno(with(m, |map| map.push(bytes(value, map.value_size()), flags)))
}

extern "C" fn map_pop(_: *mut Worker, m: u64, out: u64, _: u64, _: u64, _: u64) -> u64 {
    errno(with(m, |map| map.pop(bytes_mut(out, map.value_size()), true)))
}

extern "C" fn map_peek(_: *mut Worker, m: u64, out: u64, _: u64, _: u64, _: u64) -> u64 {
    errno(with(m, |map| map.pop(bytes_mut(out, map.value_size()), false)))
}

extern "C" fn for_each(w: *mut Worker, m: u64, callback: u64, context: u64, flags: u64, _: u64) -> u64 {
    if flags != 0 {
        return errno(EINVAL);
    }
    let number = worker(w).number;
    let mut done = 0;
    for mut key in with(m, |map| map.keys()) {
        let Some(value) = with(m, |map| map.lookup(&key, number)) else { continue };
        done += 1;
        if call(w, callback, [m, key.as_mut_ptr() as u64, value, context, 0]) != 0 {
            break;
        }
    }
    done
}

extern "C" fn bpf_loop(w: *mut Worker, count: u64, callback: u64, context: u64, flags: u64, _: u64) -> u64 {
    let count = u64::from(count as u32);
    if flags != 0 {
        return errno(EINVAL);
    }
    if count > MAX_LOOPS {
        return errno(E2BIG);
    }
    for i in 0..count {
        if call(w, callback, [i, context, 0, 0, 0]) != 0 {
            return i + 1;
        }
    }
    count
}

/// The function to continue with, or 0 if the program itself continues.
extern "C" fn tail_call(w: *mut Worker, _: u64, m: u64, index: u64, _: u64, _: u64) -> u64 {
    let worker = worker(w);
    let find = |map: &mut NativeMap| match map.spec().kind {
        MapKind::ProgArray => map.lookup(&(index as u32).to_ne_bytes(), 0),
        _ => None,
    };
    let Some(address) = with(m, find).filter(|_| worker.tail_calls < MAX_TAIL_CALLS) else { return 0 };
    worker.tail_calls += 1;
    bytes(address, size_of::<u64>()).first_chunk().map_or(0, |value| u64::from_ne_bytes(*value))
}

/// The lock behind an argument, 32 bits of a map's value.
fn lock<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: the verifier has checked that it is a lock in a value, which programs do not read or write.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

extern "C" fn spin_lock(_: *mut Worker, address: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    while lock(address).swap(1, Ordering::Acquire) != 0 {
        std::thread::yield_now();
    }
    0
}

extern "C" fn spin_unlock(_: *mut Worker, address: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    lock(address).store(0, Ordering::Release);
    0
}

extern "C" fn zero(_: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

fn now(worker: &Worker, id: libc::clockid_t) -> u64 {
    if let ClockSource::Fixed(now) = worker.clock {
        return now;
    }
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which is live and exclusive.
    unsafe { libc::clock_gettime(id, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Updates the coarse clock.
pub fn tick(worker: &mut Worker) {
    worker.coarse = now(worker, libc::CLOCK_MONOTONIC_COARSE);
}

extern "C" fn ktime(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    now(worker(w), libc::CLOCK_MONOTONIC)
}

extern "C" fn ktime_boot(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    now(worker(w), libc::CLOCK_BOOTTIME)
}

extern "C" fn ktime_coarse(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    worker(w).coarse
}

extern "C" fn ktime_tai(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    now(worker(w), libc::CLOCK_TAI)
}

/// Jiffies at 250 Hz.
extern "C" fn jiffies(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    worker(w).coarse / 4_000_000
}

extern "C" fn random(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    u64::from(worker(w).random())
}

extern "C" fn cpu(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    u64::from(worker(w).number)
}

extern "C" fn trace(w: *mut Worker, format: u64, len: u64, _: u64, _: u64, _: u64) -> u64 {
    let text = bytes(format, len as u32 as usize).split(|b| *b == 0).next().unwrap_or_default();
    worker(w).stream.events.push(ProgramEvent::Trace(String::from_utf8_lossy(text).into_owned()));
    text.len() as u64
}

extern "C" fn redirect(w: *mut Worker, ifindex: u64, flags: u64, _: u64, _: u64, _: u64) -> u64 {
    if flags != 0 {
        return 0;
    }
    packet(w).set(DescriptorField::Target, ifindex as u32);
    XDP_REDIRECT
}

/// Returns redirect, or the low bits of the flags if there is no target. Broadcast to all targets is not
/// supported: it is rejected like unknown flags.
extern "C" fn redirect_map(w: *mut Worker, m: u64, key: u64, flags: u64, _: u64, _: u64) -> u64 {
    if flags & !3 != 0 {
        return 0;
    }
    let target = with(m, |map| {
        let value = map.lookup(&(key as u32).to_ne_bytes(), 0)?;
        Some(bytes(value, map.value_size()).first_chunk().map_or(0, |target| u32::from_ne_bytes(*target)))
    });
    let Some(target) = target else { return flags & 3 };
    packet(w).set(DescriptorField::Target, target);
    XDP_REDIRECT
}

/// Encrypts memory in place.
extern "C" fn aes_128_ctr(_: *mut Worker, data: u64, len: u64, key: u64, counter: u64, _: u64) -> u64 {
    let (Some(key), Some(counter)) = (bytes(key, 16).first_chunk(), bytes(counter, 16).first_chunk()) else {
        return errno(EINVAL);
    };
    encrypt_aes_128_ctr(key, counter, bytes_mut(data, len as usize));
    0
}

extern "C" fn csum_diff(_: *mut Worker, from: u64, from_len: u64, to: u64, to_len: u64, seed: u64) -> u64 {
    let (from_len, to_len) = (from_len as u32 as usize, to_len as u32 as usize);
    if (from_len | to_len) & 3 != 0 {
        return errno(EINVAL);
    }
    u64::from(csum::diff(bytes(from, from_len), bytes(to, to_len), seed as u32))
}

extern "C" fn adjust_head(w: *mut Worker, _: u64, delta: u64, _: u64, _: u64, _: u64) -> u64 {
    let mut packet = packet(w);
    let Some(data) = packet.head_moved(delta as i32) else { return errno(EINVAL) };
    let (meta, (old, _)) = (packet.meta(), packet.bounds());
    let len = (old - meta) as usize;
    let moved = bytes(meta.into(), len).to_vec();
    let meta = data - len as u32;
    bytes_mut(meta.into(), len).copy_from_slice(&moved);
    packet.set_head(meta, data);
    0
}

extern "C" fn adjust_tail(w: *mut Worker, _: u64, delta: u64, _: u64, _: u64, _: u64) -> u64 {
    let mut packet = packet(w);
    let Some(end) = packet.tail_moved(delta as i32) else { return errno(EINVAL) };
    let (_, old) = packet.bounds();
    bytes_mut(old.into(), end.saturating_sub(old) as usize).fill(0);
    packet.set(DescriptorField::End, end);
    0
}

extern "C" fn adjust_meta(w: *mut Worker, _: u64, delta: u64, _: u64, _: u64, _: u64) -> u64 {
    packet(w).adjust_meta(delta as i32).map_or_else(errno, |()| 0)
}

extern "C" fn packet_length(w: *mut Worker, _: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let (data, end) = packet(w).bounds();
    u64::from(end - data)
}

/// Address of a part of the packet, if all of it is there.
fn packet_part(w: *mut Worker, offset: u64, len: u64) -> Option<u64> {
    let (data, end) = packet(w).bounds();
    let (offset, len) = (u64::from(offset as u32), u64::from(len as u32));
    (offset + len <= u64::from(end - data)).then_some(u64::from(data) + offset)
}

extern "C" fn load_bytes(w: *mut Worker, _: u64, offset: u64, to: u64, len: u64, _: u64) -> u64 {
    let Some(part) = packet_part(w, offset, len) else { return errno(EINVAL) };
    let len = len as u32 as usize;
    bytes_mut(to, len).copy_from_slice(bytes(part, len));
    0
}

extern "C" fn store_bytes(w: *mut Worker, _: u64, offset: u64, from: u64, len: u64, _: u64) -> u64 {
    let Some(part) = packet_part(w, offset, len) else { return errno(EINVAL) };
    let len = len as u32 as usize;
    bytes_mut(part, len).copy_from_slice(bytes(from, len));
    0
}

fn record(w: *mut Worker, m: u64, data: Vec<u8>) {
    let map = with(m, |map| map.name().to_owned());
    let listener = worker(w).stream.listener.clone().filter(|listener| listener.map == map);
    match listener {
        Some(listener) => (listener.take)(&data, arrived(w)),
        None => worker(w).stream.events.push(ProgramEvent::Record { map, data }),
    }
}

/// Arrival time of the current packet, or of the original of a copy; the worker's clock if unknown.
fn arrived(w: *mut Worker) -> u64 {
    let worker = worker(w);
    let at = (worker.current as usize).wrapping_sub(worker.stream.first) / worker.layout.stride();
    let origin =
        if at < worker.stream.capacity { at } else { packet(w).get(DescriptorField::Origin) as usize };
    let known = worker.stream.arrivals.get(origin).and_then(|arrival| arrival.time);
    known.unwrap_or_else(|| now(worker, libc::CLOCK_REALTIME))
}

/// Includes the part of the packet that the flags ask for.
extern "C" fn perf_output(w: *mut Worker, _: u64, m: u64, flags: u64, data: u64, len: u64) -> u64 {
    if flags & !0x000f_ffff_ffff_ffff != 0 {
        return errno(EINVAL);
    }
    let extra = flags >> 32;
    let index = flags as u32;
    if index != u32::MAX && index >= with(m, |map| map.spec().max_entries) {
        return errno(E2BIG);
    }
    let Some(part) = packet_part(w, 0, extra) else { return errno(EFAULT) };
    let mut data = bytes(data, len as usize).to_vec();
    data.extend_from_slice(bytes(part, extra as usize));
    record(w, m, data);
    0
}

extern "C" fn ringbuf_output(w: *mut Worker, m: u64, data: u64, len: u64, _: u64, _: u64) -> u64 {
    if !with(m, |map| map.reserve(len)) {
        return errno(-i64::from(libc::EAGAIN));
    }
    record(w, m, bytes(data, len as usize).to_vec());
    0
}

extern "C" fn ringbuf_reserve(w: *mut Worker, m: u64, len: u64, flags: u64, _: u64, _: u64) -> u64 {
    if flags != 0 || !with(m, |map| map.reserve(len)) {
        return 0;
    }
    // Words, so that the record is aligned as the kernel's are.
    let mut record = vec![0u8; len as usize].into_boxed_slice();
    let address = record.as_mut_ptr() as u64;
    worker(w).stream.records.push((m, record));
    address
}

/// Takes a reserved record back.
fn reserved(w: *mut Worker, address: u64) -> Option<(u64, Box<[u8]>)> {
    let records = &mut worker(w).stream.records;
    let at = records.iter().position(|(_, record)| record.as_ptr() as u64 == address)?;
    Some(records.swap_remove(at))
}

extern "C" fn ringbuf_submit(w: *mut Worker, address: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    if let Some((m, data)) = reserved(w, address) {
        record(w, m, data.into_vec());
    }
    0
}

extern "C" fn ringbuf_discard(w: *mut Worker, address: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    if reserved(w, address).is_none() {
        return errno(ENOENT);
    }
    0
}

/// A copy of a packet, or null where there is no buffer left.
extern "C" fn clone_packet(w: *mut Worker, original: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let worker = worker(w);
    if worker.copies.spares == 0 {
        return 0;
    }
    worker.copies.spares -= 1;
    let address = worker.copies.spare;
    worker.copies.spare = worker.copies.spare.wrapping_add(worker.layout.words());
    // Both are descriptors of the batch; the spare one is nobody else's.
    let (mut copy, original) = (descriptor(worker, address), descriptor(worker, original as *mut u32));
    let (from, to, len) = copy.become_copy(&original);
    bytes_mut(u64::from(to), len).copy_from_slice(bytes(u64::from(from), len));
    address as u64
}

/// Puts a packet at an end of a queue.
extern "C" fn hold_packet(w: *mut Worker, packet: u64, queue: u64, front: u64, _: u64, _: u64) -> u64 {
    let worker = worker(w);
    let queue = worker.queues.entry(queue).or_default();
    match front {
        0 => queue.push_back(packet as *mut u32),
        _ => queue.push_front(packet as *mut u32),
    }
    worker.held += 1;
    0
}

/// Takes the packet at the front of a queue, or null.
extern "C" fn pull_packet(w: *mut Worker, queue: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let worker = worker(w);
    let packet = worker.queues.get_mut(&queue).and_then(VecDeque::pop_front);
    worker.held -= u64::from(packet.is_some());
    // The current packet, for helpers.
    worker.current = packet.unwrap_or(worker.current);
    packet.map_or(0, |packet| packet as u64)
}
