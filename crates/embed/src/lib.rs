//! The runtime as a library of C, with the interface of the header of an object file
//! (`millstream_built::header`).
//!
//! Packets are copied into the buffers of a batch, which code can reach by 32-bit addresses; packets that
//! leave are lent from there.
//!
//! Invariant: pointers are as the header describes them. Everything else is checked: no content of a program
//! or its tables makes this panic, and a panic would end the process.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use millstream_built::printing::PrintOutput;
use millstream_built::{PayloadKind, ProgramPayload, fill, handlers};
use millstream_native::{ExportTable, LinkedCode, NativeEngine, NativeMap, PacketBatch};

/// `ENOENT`, `E2BIG` and `EINVAL` of Linux.
const ENOENT: c_int = -2;
const E2BIG: c_int = -7;
const EINVAL: c_int = -22;
/// The largest batch.
const MOST: u32 = 4096;
/// Copies for each packet of a batch, on average, before copying fails.
const COPIES: usize = 16;
/// Maximum number of copies in a batch, if a configuration makes more of a packet.
const MOST_COPIES: usize = 1 << 18;
/// `enum xdp_action`, and the verdict of packets that the program has not seen.
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
const UNFIT: u32 = u32::MAX;
/// Reasons for dropping packets that an XDP program does not send, by verdict; then those of other verdicts.
const REASONS: [&str; 7] = ["aborted", "drop", "pass", "", "no_target", "no_verdict", "size"];
const NO_VERDICT: usize = 5;
const SIZE: usize = 6;

/// A packet: `struct millstream_packet`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Packet {
    data: *const c_void,
    length: u32,
    port: u32,
    verdict: u32,
    target: u32,
    number: u64,
}

/// Totals of all packets: `struct millstream_account`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Account {
    received: u64,
    copies: u64,
    sent: u64,
    dropped: u64,
}

/// A program that was opened: `struct millstream`.
struct EmbeddedProgram {
    engine: NativeEngine,
    kind: PayloadKind,
    batch: PacketBatch,
    /// Indexes of the batch's packets among the caller's.
    numbers: Vec<u64>,
    /// Of a configuration, except for the packets that elements drop.
    account: Account,
    /// Packets of an XDP program by reason to drop them; of a configuration those of no size for a buffer.
    dropped: [u64; REASONS.len()],
}

impl EmbeddedProgram {
    fn new(table: *const ExportTable, most: u32) -> Result<EmbeddedProgram, String> {
        if !(1..=MOST).contains(&most) {
            return Err(format!("batches have 1 to {MOST} packets"));
        }
        // SAFETY: by the module's invariant it is a table that was linked in. Either it is not open now, or
        // opening fails below, where its maps find their places taken.
        let linked = unsafe { LinkedCode::open(table) }.map_err(|e| e.to_string())?;
        let ProgramPayload { kind, image, entries } =
            ProgramPayload::of_bytes(linked.description).map_err(|e| e.to_string())?;
        let mut engine = NativeEngine::of_linked(&image, &linked).map_err(|e| e.to_string())?;
        fill(&mut engine, &entries).map_err(|e| e.to_string())?;
        if let PayloadKind::Click { program, .. } = &kind {
            let printing = PrintOutput::open(program).map_err(|e| e.to_string())?;
            engine.listen(printing.listener());
        }
        let most = most as usize;
        let batch = match &kind {
            PayloadKind::Click { program, .. } => {
                let copies = most * COPIES.max(program.copies as usize);
                PacketBatch::with_copies(most, copies.min(MOST_COPIES).max(most * COPIES))
            }
            PayloadKind::Native { .. } => PacketBatch::new(most),
        };
        let mut batch = batch.map_err(|e: io::Error| e.to_string())?;
        batch.expect(engine.layout());
        let (numbers, account, dropped) = (Vec::new(), Account::default(), [0; REASONS.len()]);
        Ok(EmbeddedProgram { engine, kind, batch, numbers, account, dropped })
    }

    fn is_graph(&self) -> bool {
        matches!(self.kind, PayloadKind::Click { .. })
    }

    fn run(&mut self, packets: &mut [Packet]) -> c_int {
        if packets.len() > self.batch.capacity() {
            return E2BIG;
        }
        let graph = self.is_graph();
        self.batch.clear();
        self.numbers.clear();
        for (packet, number) in packets.iter_mut().zip(0..) {
            let bytes: &[u8] = match packet.length {
                0 => &[],
                // SAFETY: by the module's invariant there are so many bytes.
                length => unsafe { from_raw_parts(packet.data.cast(), length as usize) },
            };
            let taken = match graph {
                true => self.batch.push_open(bytes, packet.port),
                false => self.batch.push(bytes, packet.port),
            };
            match taken {
                true => self.numbers.push(number),
                false => {
                    packet.verdict = UNFIT;
                    self.dropped[SIZE] += 1;
                }
            }
        }
        self.account.received += packets.len() as u64;
        match graph {
            true => {
                self.engine.run_graph(&mut self.batch);
                self.account.copies += self.batch.copies() as u64;
                self.account.sent += self.batch.sent_len() as u64;
            }
            false => {
                self.engine.run(&mut self.batch);
                self.settle(packets);
            }
        }
        // Events are not used.
        self.engine.take_events();
        0
    }

    /// Records the verdicts of an XDP program on its packets.
    fn settle(&mut self, packets: &mut [Packet]) {
        for (at, &number) in self.numbers.iter().enumerate() {
            let (bytes, packet) = (self.batch.bytes(at), &mut packets[number as usize]);
            (packet.data, packet.length) = (bytes.as_ptr().cast(), bytes.len() as u32);
            (packet.verdict, packet.target) = (self.batch.verdict(at), self.batch.target(at));
            match packet.verdict {
                XDP_TX => self.account.sent += 1,
                XDP_REDIRECT if packet.target != 0 => self.account.sent += 1,
                verdict => self.dropped[(verdict as usize).min(NO_VERDICT)] += 1,
            }
        }
    }

    /// Reasons to drop packets, and how many were.
    fn drops(&mut self) -> Vec<(String, u64)> {
        let own = REASONS.iter().zip(self.dropped).map(|(reason, count)| ((*reason).to_owned(), count));
        let mut all: Vec<(String, u64)> = own.collect();
        if let PayloadKind::Click { program, .. } = &self.kind {
            let state = handlers::state(&mut self.engine);
            let of = |d: &millstream_click::DropCounter| {
                (format!("{} {}", d.element, d.reason).trim().to_owned(), handlers::number(&state, d.offset))
            };
            all.extend(program.drops.iter().map(of));
        }
        all.retain(|(_, count)| *count > 0);
        all
    }

    fn account(&mut self) -> Account {
        let dropped = self.drops().iter().map(|(_, count)| count).sum();
        let mut account = Account { dropped, ..self.account };
        if let PayloadKind::Click { program, .. } = &self.kind {
            // Copies that failed were dropped.
            account.copies += handlers::number(&handlers::state(&mut self.engine), program.uncloned);
        }
        account
    }

    /// Calls a function on a map whose values others may see.
    fn with_map(&mut self, name: &str, act: impl FnOnce(&mut NativeMap) -> c_int) -> c_int {
        match self.engine.map(name) {
            None => ENOENT,
            Some(map) if map.holds_addresses() => EINVAL,
            Some(map) => act(map),
        }
    }
}

/// The program behind a pointer.
fn open<'o>(program: *mut EmbeddedProgram) -> &'o mut EmbeddedProgram {
    // SAFETY: by the module's invariant it was opened, was not closed, and is used by this thread alone.
    unsafe { &mut *program }
}

fn text<'t>(text: *const c_char) -> &'t str {
    // SAFETY: by the module's invariant it is a C string. One that is no UTF-8 is no name here.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("\u{fffd}")
}

fn bytes<'b>(at: *const c_void, len: u32) -> &'b [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by the module's invariant a key or a value is as long as its map says.
    unsafe { from_raw_parts(at.cast(), len as usize) }
}

/// Writes a text into a buffer of so many bytes, with a 0 behind it.
fn put(said: &str, to: *mut c_char, room: usize) {
    if to.is_null() || room == 0 {
        return;
    }
    let kept = said.len().min(room - 1);
    // SAFETY: by the module's invariant there is room.
    let to: &mut [u8] = unsafe { from_raw_parts_mut(to.cast(), room) };
    to[..kept].copy_from_slice(&said.as_bytes()[..kept]);
    to[kept] = 0;
}

/// `millstream_open`.
#[unsafe(no_mangle)]
extern "C" fn millstream_open(
    table: *const ExportTable,
    most: u32,
    why: *mut c_char,
    room: usize,
) -> *mut EmbeddedProgram {
    match EmbeddedProgram::new(table, most) {
        Ok(open) => Box::into_raw(Box::new(open)),
        Err(said) => {
            put(&said, why, room);
            null_mut()
        }
    }
}

/// `millstream_close`.
#[unsafe(no_mangle)]
extern "C" fn millstream_close(program: *mut EmbeddedProgram) {
    if !program.is_null() {
        // SAFETY: it came from `millstream_open`, and is not used any more.
        drop(unsafe { Box::from_raw(program) });
    }
}

/// `millstream_run`.
#[unsafe(no_mangle)]
extern "C" fn millstream_run(program: *mut EmbeddedProgram, packets: *mut Packet, count: usize) -> c_int {
    if count == 0 {
        return open(program).run(&mut []);
    }
    // SAFETY: by the module's invariant there are so many packets.
    open(program).run(unsafe { from_raw_parts_mut(packets, count) })
}

/// `millstream_sent`.
#[unsafe(no_mangle)]
extern "C" fn millstream_sent(program: *mut EmbeddedProgram, at: usize, packet: *mut Packet) -> c_int {
    let open = open(program);
    let Some((bytes, output, number)) = open.batch.sent_at(at) else { return ENOENT };
    let number = open.numbers.get(number).copied().unwrap_or(0);
    let (data, length, port) = (bytes.as_ptr().cast(), bytes.len() as u32, output as u32);
    // SAFETY: by the module's invariant there is room for a packet.
    unsafe { packet.write(Packet { data, length, port, verdict: 0, target: 0, number }) };
    0
}

/// `millstream_account`.
#[unsafe(no_mangle)]
extern "C" fn millstream_account(program: *mut EmbeddedProgram, account: *mut Account) {
    // SAFETY: by the module's invariant there is room for it.
    unsafe { account.write(open(program).account()) };
}

/// `millstream_dropped`.
#[unsafe(no_mangle)]
extern "C" fn millstream_dropped(
    program: *mut EmbeddedProgram,
    at: usize,
    reason: *mut c_char,
    room: usize,
    packets: *mut u64,
) -> c_int {
    let all = open(program).drops();
    let Some((said, count)) = all.get(at) else { return ENOENT };
    put(said, reason, room);
    // SAFETY: by the module's invariant there is room for a number.
    unsafe { packets.write(*count) };
    0
}

/// `millstream_map_get`.
#[unsafe(no_mangle)]
extern "C" fn millstream_map_get(
    program: *mut EmbeddedProgram,
    map: *const c_char,
    key: *const c_void,
    value: *mut c_void,
) -> c_int {
    open(program).with_map(text(map), |map| {
        let Some(found) = map.get(bytes(key, map.spec().key_size)) else { return ENOENT };
        if !found.is_empty() {
            // SAFETY: by the module's invariant there is room for a value.
            unsafe { from_raw_parts_mut(value.cast(), found.len()) }.copy_from_slice(&found);
        }
        0
    })
}

/// `millstream_map_set`.
#[unsafe(no_mangle)]
extern "C" fn millstream_map_set(
    program: *mut EmbeddedProgram,
    map: *const c_char,
    key: *const c_void,
    value: *const c_void,
    flags: u64,
) -> c_int {
    open(program).with_map(text(map), |map| {
        let spec = map.spec();
        map.update(bytes(key, spec.key_size), bytes(value, spec.value_size), flags, None) as c_int
    })
}

/// `millstream_map_delete`.
#[unsafe(no_mangle)]
extern "C" fn millstream_map_delete(
    program: *mut EmbeddedProgram,
    map: *const c_char,
    key: *const c_void,
) -> c_int {
    open(program).with_map(text(map), |map| map.delete(bytes(key, map.spec().key_size)) as c_int)
}

/// `millstream_map_each`.
#[unsafe(no_mangle)]
extern "C" fn millstream_map_each(
    program: *mut EmbeddedProgram,
    map: *const c_char,
    visit: extern "C" fn(*mut c_void, *const c_void, *const c_void) -> c_int,
    context: *mut c_void,
) -> c_int {
    open(program).with_map(text(map), |map| {
        for key in map.keys() {
            let Some(value) = map.get(&key) else { continue };
            let said = visit(context, key.as_ptr().cast(), value.as_ptr().cast());
            if said != 0 {
                return said;
            }
        }
        0
    })
}

/// `millstream_read`.
#[unsafe(no_mangle)]
extern "C" fn millstream_read(
    program: *mut EmbeddedProgram,
    handler: *const c_char,
    to: *mut c_char,
    room: usize,
) -> i64 {
    let open = open(program);
    let PayloadKind::Click { program, .. } = &open.kind else { return i64::from(ENOENT) };
    let Ok(said) = handlers::read(program, &mut open.engine, text(handler)) else { return i64::from(ENOENT) };
    put(&said, to, room);
    said.len() as i64
}

/// `millstream_write`.
#[unsafe(no_mangle)]
extern "C" fn millstream_write(program: *mut EmbeddedProgram, handler: *const c_char) -> c_int {
    let open = open(program);
    let PayloadKind::Click { program, .. } = &open.kind else { return ENOENT };
    match handlers::write(program, &mut open.engine, text(handler)) {
        Ok(()) => 0,
        Err(handlers::HandlerError::Unfit { .. }) => EINVAL,
        Err(_) => ENOENT,
    }
}
