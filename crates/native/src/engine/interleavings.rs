//! One worker looks up while another changes the table, in every order of their steps.
//!
//! The tested code is the one that users run: the machine code of a look-up, and the runtime's change. The
//! processor's trap flag stops a change after each instruction. A change is run once in this way, and all its
//! stores into lock, index and elements are recorded in order. Then a look-up is run again and again: at each
//! of its instructions some number of these stores is made, from none to all; when it calls the runtime, which
//! waits for the lock, the rest is made first. This covers all interleavings with one switch between the two,
//! and a sample of those with two.
//!
//! A look-up is stopped by breakpoints at the instructions that may be next, the first at its entry: virtual
//! machines handle them themselves, while each use of the trap flag leaves the guest. The flag is used where
//! the next instruction is known to the processor only.
//!
//! Reordering by the processor itself (stores in its buffer) is not covered: a look-up stores nothing but
//! marks of use, and the stores of a change become visible in order. Fences in `runtime::sharing` order the
//! beginning of a batch and the check for it.
#![allow(unsafe_code)]

use std::arch::asm;
use std::io;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use millstream_interp::MapKind;
use millstream_ir::{Function, KeyPiece, Linkage, MapDecl, MemFlags, Op, Prov, Size, Type};

use super::code::XDP;
use super::*;
use millstream_native_runtime::hash::HashLayout;
use millstream_native_runtime::hash_function::hash;
use millstream_native_runtime::index::{OTHER, ProbingScheme, WAYS};
use millstream_native_runtime::maps::InlineLookup;

#[path = "../../tests/common/mod.rs"]
mod common;

/// Offset in the packet for the value found.
const FOUND: usize = 64;
const FACTOR: u64 = 0x9e37_79b9;
/// The worker that looks up; the other is 0.
const READER: u32 = 1;
/// Elements that are watched in addition to those of the entries.
const SPARE: u64 = 8;
/// Number of interleavings with two switches that are tried for each key.
const SAMPLED: usize = 400;
/// The trap flag.
const TRAP: i64 = 0x100;

/// Words of memory: addresses, and their contents or stores to them.
type Words = Vec<(usize, u64)>;

/// Action at each step.
enum Doing {
    /// Records words that have changed.
    Recording,
    /// At the instruction of code numbered by the first component of a switch, makes stores up to the second
    /// component; outside of code, makes all of them.
    Replaying { switches: [(usize, usize); 2], made: usize },
}

struct Stepper {
    doing: Doing,
    /// Addresses of watched words, and their last seen contents.
    words: Words,
    stores: Words,
    code: Range<usize>,
    /// Instructions of code executed so far.
    steps: usize,
    breakpoints: [Option<Breakpoint>; 2],
}

/// A breakpoint and the byte that it replaces.
struct Breakpoint {
    address: usize,
    byte: u8,
}

impl Breakpoint {
    /// `int3`.
    const CODE: u8 = 0xcc;

    fn set(address: usize) -> Breakpoint {
        // SAFETY: the address is that of the engine's code, which is writable; nobody else runs any of it now.
        unsafe {
            let byte = (address as *const u8).read_volatile();
            (address as *mut u8).write_volatile(Breakpoint::CODE);
            Breakpoint { address, byte }
        }
    }

    fn clear(&self) {
        // SAFETY: as in `set`.
        unsafe { (self.address as *mut u8).write_volatile(self.byte) }
    }
}

/// Makes code writable, for breakpoints.
fn make_writable(code: &Range<usize>) {
    let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: the code is the engine's, at the beginning of a mapping; nobody runs it now.
    let done = unsafe { libc::mprotect(code.start as *mut libc::c_void, code.len(), access) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

static STEPPER: AtomicPtr<Stepper> = AtomicPtr::new(null_mut());
/// Serializes the use of the signal and of the fixed addresses.
static ALONE: Mutex<()> = Mutex::new(());

fn load(address: usize) -> u64 {
    // SAFETY: watched words lie in regions of the engine, which is alive.
    unsafe { (address as *const u64).read_volatile() }
}

fn store(address: usize, value: u64) {
    // SAFETY: as in `load`; nobody has a reference into the region while native code runs or waits.
    unsafe { (address as *mut u64).write_volatile(value) }
}

impl Stepper {
    fn make(stores: &[(usize, u64)]) {
        stores.iter().for_each(|&(address, value)| store(address, value));
    }

    /// Handles the trap in front of an instruction; returns true to continue step by step.
    fn step(&mut self, next: usize) -> bool {
        match &mut self.doing {
            Doing::Recording => {
                for (address, seen) in &mut self.words {
                    let now = load(*address);
                    if now != *seen {
                        *seen = now;
                        self.stores.push((*address, now));
                    }
                }
                true
            }
            Doing::Replaying { switches, made } => {
                if self.code.contains(&next) {
                    self.steps += 1;
                    for (at, to) in *switches {
                        if at == self.steps {
                            Stepper::make(&self.stores[*made..to]);
                            *made = to;
                        }
                    }
                    return true;
                }
                Stepper::make(&self.stores[*made..]);
                false
            }
        }
    }

    fn clear_breakpoints(&mut self) {
        self.breakpoints.iter_mut().filter_map(Option::take).for_each(|breakpoint| breakpoint.clear());
    }

    /// Sets breakpoints at all instructions that may follow one; returns false if they are not known.
    fn stop_after(&mut self, at: usize) -> bool {
        if !self.code.contains(&at) {
            return false;
        }
        // SAFETY: the code is alive, and no breakpoint is in it.
        let code = unsafe { std::slice::from_raw_parts(at as *const u8, self.code.end - at) };
        let instruction = Decoder::with_ip(64, code, at as u64, DecoderOptions::NONE).decode();
        let (next, target) = (instruction.next_ip() as usize, instruction.near_branch_target() as usize);
        let follow = match instruction.flow_control() {
            FlowControl::Next => [next, next],
            FlowControl::ConditionalBranch => [next, target],
            FlowControl::UnconditionalBranch => [target, target],
            _ => return false,
        };
        let is_usable = |to: &usize| *to != at && self.code.contains(to);
        if instruction.has_rep_prefix() || instruction.has_repne_prefix() || !follow.iter().all(is_usable) {
            return false;
        }
        let [first, second] = follow;
        self.breakpoints = [Some(Breakpoint::set(first)), (first != second).then(|| Breakpoint::set(second))];
        true
    }
}

extern "C" fn trapped(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives the thread's own context, and the stepper is that of the trapping thread,
    // which waits.
    let (stepper, registers) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        (&mut *STEPPER.load(Ordering::Relaxed), &mut context.uc_mcontext.gregs)
    };
    let rip = &mut registers[libc::REG_RIP as usize];
    let is_breakpoint =
        stepper.breakpoints.iter().flatten().any(|breakpoint| *rip as usize == breakpoint.address + 1);
    if is_breakpoint {
        *rip -= 1;
    }
    stepper.clear_breakpoints();
    let next = *rip as usize;
    if !stepper.step(next) || stepper.stop_after(next) {
        registers[libc::REG_EFL as usize] &= !TRAP;
    } else if is_breakpoint {
        // Behind the flag's own trap it is still set, unless that instruction has cleared it.
        registers[libc::REG_EFL as usize] |= TRAP;
    }
}

/// Runs a closure step by step: from its first instruction on, or from the first breakpoint.
fn stepped(stepper: &mut Stepper, act: impl FnOnce()) {
    STEPPER.store(stepper, Ordering::Relaxed);
    // SAFETY: the handler accesses only the stepper; the flag is cleared below.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = trapped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, null_mut()), 0);
        if stepper.breakpoints[0].is_none() {
            asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
        }
    }
    act();
    stepper.clear_breakpoints();
    // SAFETY: as above.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -257", "popfq") };
}

/// A table that two workers use, and the code of its look-ups.
struct Table {
    engine: NativeEngine,
    code: Range<usize>,
    /// Address of the first instruction of the program.
    entry: usize,
    layout: HashLayout,
    entries: u32,
}

fn value_of(key: u32) -> [u8; 8] {
    u64::from(key).wrapping_mul(FACTOR).to_le_bytes()
}

impl Table {
    fn new(kind: MapKind, template: HashTemplate, entries: u32) -> Table {
        let (kind, name) = (kind as u32, "table".to_owned());
        let (key_size, value_size, max_entries) = (4, 8, entries);
        let table =
            MapDecl { name, kind, key_size, value_size, max_entries, flags: 0, global: None, inner: None };
        let (mut module, func) = common::look_up(table, |at, packet, value| {
            let word = common::word(at, value);
            let store = Op::Store { size: Size::Dw, offset: FOUND as i32, flags: MemFlags::default() };
            at.effect(store, [packet, word], []);
            at.iconst(2)
        });
        // Some function changes it.
        let map = module.maps.keys().next().expect("the table");
        let mut other = Function::new("other", Linkage::Program { prog_type: XDP });
        let entry = other.add_block();
        other.add_param(entry, Type::Ptr(Prov::Ctx));
        let mut at = other.at_end(entry);
        let one = at.iconst(1);
        let key = [KeyPiece { offset: 0, size: Size::W }].into_iter().collect();
        let gone = at.value(Op::MapDelete { map, key }, [one], Type::I64);
        at.effect(Op::Return {}, [gone], []);
        module.funcs.push(other);
        let tables = vec![("table".to_owned(), template)];
        let options = NativeOptions { workers: 2, passes: false, tables, ..NativeOptions::default() };
        let image = NativeEngine::build_module(module, func, &options).expect("compiled");
        let mut engine = NativeEngine::of_image(&image).expect("loaded");
        let entry = engine.program.address();
        let base = entry - image.places[0] as usize;
        let code = base..base + image.code().len();
        make_writable(&code);
        let Some(InlineLookup::Hash(layout)) = engine.map("table").expect("there").inline() else {
            panic!("a hash")
        };
        Table { engine, code, entry, layout, entries }
    }

    fn with<R>(&self, act: impl FnOnce(&mut NativeMap) -> R) -> R {
        self.engine.maps[0].as_ref().expect("the table").with(act)
    }

    fn put(&self, key: u32) {
        assert_eq!(self.with(|map| map.update(&key.to_le_bytes(), &value_of(key), 0, Some(0))), 0);
    }

    fn index(&self) -> Range<usize> {
        let places = match self.layout.template.search() {
            ProbingScheme::Open | ProbingScheme::RobinHood => self.layout.mask + 1,
            ProbingScheme::Cuckoo => (self.layout.mask + 1) * WAYS,
        };
        let base = self.layout.index as usize;
        base..base + (self.layout.template.place() * places) as usize
    }

    /// All words that a look-up reads: lock, index, elements.
    fn words(&self) -> Words {
        let lock = self.engine.maps[0].as_ref().expect("the table").address() as usize;
        let elements = self.layout.elements as usize;
        let bytes = (u64::from(self.entries) + SPARE) * self.layout.stride;
        let all = [lock].into_iter().chain(self.index().step_by(8));
        all.chain((elements..elements + bytes as usize).step_by(8)).map(|at| (at, load(at))).collect()
    }

    /// Makes a change after the reader has begun a batch; returns the words before it, and its stores in
    /// order.
    fn record(&self, change: impl FnOnce(&mut NativeMap)) -> (Words, Words) {
        let before = self.words();
        let mut stepper = Stepper {
            doing: Doing::Recording,
            words: before.clone(),
            // The handler must not allocate.
            stores: Vec::with_capacity(1 << 12),
            code: 0..0,
            steps: 0,
            breakpoints: [None, None],
        };
        self.engine.epochs.begin(READER);
        stepped(&mut stepper, || self.with(change));
        self.engine.epochs.end(READER);
        (before, stepper.stores)
    }

    /// The key whose entry has moved to another place of the index, if there is one.
    fn moved(&self, before: &[(usize, u64)], stores: &[(usize, u64)]) -> Option<u32> {
        let index = self.index();
        // A watched word has one place or two.
        let bits = 8 * self.layout.template.place();
        let places = |(at, word): (usize, u64)| {
            let shifts = (0..64).step_by(bits as usize);
            shifts.map(move |shift| ((at, shift), word << (64 - bits - shift) >> (64 - bits)))
        };
        let within = |words: &[(usize, u64)]| -> Vec<((usize, u32), u64)> {
            words.iter().filter(|(at, _)| index.contains(at)).flat_map(|&word| places(word)).collect()
        };
        let were = within(before);
        let is_moved = |&&(place, word): &&((usize, u32), u64)| {
            word != 0
                && were.iter().any(|&(at, was)| was == word && at != place)
                && !were.contains(&(place, word))
        };
        let (_, word) = *within(stores).iter().find(is_moved)?;
        if self.layout.template.has_keys() {
            return Some((word >> 32) as u32);
        }
        let slot = (word & 0xffff_ffff) - 1;
        let key = self.layout.elements + slot * self.layout.stride + self.layout.key;
        Some(load(key as usize) as u32)
    }

    /// Looks a key up in every order of steps; returns the values found, unordered, and the number of
    /// interleavings.
    fn look(&self, key: u32, before: &[(usize, u64)], stores: &[(usize, u64)]) -> (Vec<Option<u64>>, usize) {
        let mut lane = self.engine.worker_state(READER);
        lane.worker.clock = ClockSource::Fixed(1);
        let mut batch = PacketBatch::new(1).expect("memory");
        let mut frame = key.to_le_bytes().to_vec();
        frame.resize(FOUND + 8, 0);
        let mut found = Vec::new();
        let mut run = |switches: [(usize, usize); 2], made: usize| {
            Stepper::make(before);
            Stepper::make(&stores[..made]);
            batch.clear();
            assert!(batch.push(&frame, 1));
            let mut stepper = Stepper {
                doing: Doing::Replaying { switches, made },
                words: Vec::new(),
                stores: stores.to_vec(),
                code: self.code.clone(),
                steps: 0,
                breakpoints: [Some(Breakpoint::set(self.entry)), None],
            };
            stepped(&mut stepper, || self.engine.run_by(&mut lane, &mut batch));
            let word = || u64::from_le_bytes(batch.bytes(0)[FOUND..].try_into().expect("eight bytes"));
            let value = (batch.verdict(0) == 2).then(word);
            if !found.contains(&value) {
                found.push(value);
            }
            stepper.steps
        };
        let all = stores.len();
        // The states before and after the change.
        let (steps, mut ways) = (run([(0, 0); 2], 0).max(run([(0, 0); 2], all)), 2);
        assert_ne!(steps, 0, "the code runs from its first instruction on");
        for at in 1..=steps {
            for to in 1..=all {
                run([(at, to), (0, 0)], 0);
            }
            ways += all;
        }
        // A look-up that begins in the middle of a change waits for its end.
        for made in 1..all {
            run([(1, all), (0, 0)], made);
        }
        let mut seed = 1u64;
        let mut below = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        for _ in 0..SAMPLED {
            let (a, b) = (1 + below(steps), 1 + below(steps));
            let (c, d) = (1 + below(all), 1 + below(all));
            run([(a.min(b), c.min(d)), (a.max(b), c.max(d))], 0);
        }
        Stepper::make(before);
        Stepper::make(stores);
        (found, ways + SAMPLED)
    }

    /// Checks the look-ups of a key that is there throughout.
    fn is_always_there(&self, key: u32, before: &[(usize, u64)], stores: &[(usize, u64)]) {
        let (found, ways) = self.look(key, before, stores);
        assert_eq!(found, [Some(u64::from_le_bytes(value_of(key)))], "key {key}, {ways} ways");
    }

    /// Checks the look-ups of a key that comes or goes.
    fn is_there_or_not(&self, key: u32, before: &[(usize, u64)], stores: &[(usize, u64)]) {
        let (mut found, _) = self.look(key, before, stores);
        found.sort_unstable();
        assert_eq!(found, [None, Some(u64::from_le_bytes(value_of(key)))], "key {key}");
    }
}

/// Buckets of a key's hash.
fn buckets(table: &Table, key: u32) -> [u32; 2] {
    let (hash, mask) = (hash(table.layout.seed, &key.to_le_bytes()), table.layout.mask);
    let first = hash & mask;
    [first, first ^ (hash.wrapping_mul(OTHER) >> mask.leading_zeros() | 1)]
}

#[test]
fn entries_that_move_between_buckets_are_found_wherever_they_are() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for template in [HashTemplate::Cuckoo, HashTemplate::CuckooKeys, HashTemplate::CuckooSlots] {
        move_between_buckets(&Table::new(MapKind::Hash, template, 32));
    }
}

fn move_between_buckets(table: &Table) {
    // Eight keys that may be in bucket 1 or 2, then as many for 0 or 1 as these have room for, and one more.
    let of = |pair: [u32; 2], count| {
        let fits = |key: &u32| {
            let mut buckets = buckets(table, *key);
            buckets.sort_unstable();
            buckets == pair
        };
        (1..u32::MAX).filter(fits).take(count).collect::<Vec<_>>()
    };
    let keys = [of([1, 2], 8), of([0, 1], 13)].concat();
    for (at, &key) in keys.iter().enumerate() {
        let (before, stores) = table.record(|map| {
            assert_eq!(map.update(&key.to_le_bytes(), &value_of(key), 0, Some(0)), 0);
        });
        let Some(moved) = table.moved(&before, &stores) else { continue };
        assert_ne!(moved, key);
        table.is_always_there(moved, &before, &stores);
        table.is_always_there(keys[at / 2], &before, &stores);
        table.is_there_or_not(key, &before, &stores);
        return;
    }
    panic!("no entry had to move");
}

#[test]
fn entries_that_are_removed_are_there_or_not_and_their_neighbours_stay() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for template in HashTemplate::ALL {
        let table = Table::new(MapKind::Hash, template, 24);
        (1..=24).for_each(|key| table.put(key));
        let home = |key: u32| hash(table.layout.seed, &key.to_le_bytes()) & table.layout.mask;
        // An entry in a place that another one wanted: removing it moves that one back.
        let pair =
            (1..=24).flat_map(|a| (1..=24).map(move |b| (a, b))).find(|&(a, b)| a < b && home(a) == home(b));
        let (gone, neighbour) = pair.expect("24 keys in 64 places");
        let (before, stores) = table.record(|map| assert_eq!(map.delete(&gone.to_le_bytes()), 0));
        table.is_always_there(neighbour, &before, &stores);
        table.is_there_or_not(gone, &before, &stores);
    }
}

#[test]
fn entries_that_are_replaced_or_evicted_are_never_seen_half() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for template in
        [HashTemplate::Open, HashTemplate::OpenKeys, HashTemplate::CuckooKeys, HashTemplate::RobinHoodSlots]
    {
        replaced_or_evicted(&Table::new(MapKind::LruHash, template, 8));
    }
}

fn replaced_or_evicted(table: &Table) {
    (1..=8).for_each(|key| table.put(key));
    let there = |table: &Table| table.with(|map| map.keys());
    let had = there(table);
    let (before, stores) = table.record(|map| {
        assert_eq!(map.update(&9u32.to_le_bytes(), &value_of(9), 0, Some(0)), 0);
    });
    let has = there(table);
    let evicted = had.iter().find(|key| !has.contains(key)).expect("one had to go");
    table.is_there_or_not(u32::from_le_bytes(evicted[..].try_into().expect("four bytes")), &before, &stores);
    table.is_there_or_not(9, &before, &stores);
    let (before, stores) = table.record(|map| {
        assert_eq!(map.update(&9u32.to_le_bytes(), &value_of(10), 0, Some(0)), 0);
    });
    let (mut found, _) = table.look(9, &before, &stores);
    found.sort_unstable();
    assert_eq!(found, [9, 10].map(|key| Some(u64::from_le_bytes(value_of(key)))));
}
