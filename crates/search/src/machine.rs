//! Runs windows on plain integers: tests that reject most wrong candidates at once.
//!
//! A test gives the registers values that agree with the known facts, in some tests with the addresses of one
//! space close together. Memory that nobody wrote holds bytes from a hash of the address. Execution continues
//! after an exit whether it is taken or not, and all live values there are compared, as in the prover.

use std::hash::{Hash, Hasher};

use millstream_isa::semantics::eval;
use millstream_isa::{Insn, Operand, Pseudo, Size};
use millstream_prove::window::{AddressSpace, EntryFact, InitialValues, LiveOut, WindowStep};

use crate::facts::RegisterKind;
use crate::window::InsnWindow;

/// A generator of pseudorandom numbers (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub(crate) struct SearchRng(u64);

impl SearchRng {
    pub(crate) fn new(seed: u64) -> SearchRng {
        SearchRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A random number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 32) as usize * n) >> 32
    }

    /// A random number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The upper end of the frame in tests.
const FRAME: u64 = 0x7fff_0000_1000;

/// Initial state of a window.
#[derive(Clone, Debug)]
pub(crate) struct WindowTest {
    regs: [u64; 11],
    seed: u64,
    /// Given bytes of memory, by address.
    given: Vec<(u64, u8)>,
}

/// Value of an undefined register.
const UNDEFINED: u64 = 0x5bad_5bad_5bad_5bad;

impl WindowTest {
    /// A random test that agrees with the known facts; every fourth one has addresses of one space close
    /// together.
    pub(crate) fn random(window: &InsnWindow, number: usize, random: &mut SearchRng) -> WindowTest {
        let mut test = WindowTest { regs: [UNDEFINED; 11], seed: random.next(), given: Vec::new() };
        let salt = random.next();
        for (n, known) in window.place.entry.regs.iter().enumerate() {
            test.regs[n] = value(known, salt, number);
        }
        for (&at, &byte) in &window.place.entry.bytes {
            test.given.push((FRAME.wrapping_add(at as i64 as u64), byte));
        }
        for (&at, known) in &window.place.entry.spills {
            let v = value(known, salt, number);
            test.spill(at, v);
        }
        test
    }

    /// The test that a solver's counterexample describes, completed by a random one.
    pub(crate) fn refuting(window: &InsnWindow, v: &InitialValues, random: &mut SearchRng) -> WindowTest {
        let mut test = WindowTest::random(window, 1, random);
        for (n, known) in window.place.entry.regs.iter().enumerate() {
            if let (Some(x), false) =
                (v.regs[n], matches!(known, EntryFact::Address(AddressSpace::Stack, ..)))
            {
                test.regs[n] = x;
            }
        }
        let mut give = |at: u64, byte: u8| {
            test.given.retain(|g| g.0 != at);
            test.given.push((at, byte));
        };
        for (&at, &byte) in &v.stack {
            if !window.place.entry.bytes.contains_key(&at) {
                give(FRAME.wrapping_add(at as i64 as u64), byte);
            }
        }
        for &(_, at, byte) in &v.memory {
            give(at, byte);
        }
        test
    }

    /// Initial values of a window: its registers, and the bytes that it accesses; [`None`] if it accesses
    /// some through an address that it only computes.
    pub(crate) fn valuation(&self, window: &InsnWindow) -> Option<InitialValues> {
        let mut out = InitialValues::default();
        let mut machine = WindowMachine::default();
        machine.start(self);
        for (n, known) in window.place.entry.regs.iter().enumerate() {
            let given = !matches!(known, EntryFact::Nothing | EntryFact::Address(AddressSpace::Stack, ..));
            out.regs[n] = given.then_some(self.regs[n]);
        }
        for (space, id, bytes, _) in window.accesses.iter().filter(|a| !a.3) {
            let AddressSpace::Other(s) = *space else {
                let byte =
                    |at: &i64| Some((i16::try_from(*at).ok()?, machine.byte(FRAME.wrapping_add(*at as u64))));
                out.stack.extend(bytes.iter().filter_map(byte));
                continue;
            };
            let base = window.state.regs.iter().zip(self.regs).find_map(|(fact, r)| match fact.kind {
                RegisterKind::Address(own, at) if own == *space && fact.id == *id => {
                    Some(r.wrapping_sub(at as u64))
                }
                _ => None,
            })?;
            let byte =
                |at: &i64| (base.wrapping_add(*at as u64), machine.byte(base.wrapping_add(*at as u64)));
            out.memory.extend(bytes.iter().map(byte).map(|(at, byte)| (s, at, byte)));
        }
        Some(out)
    }

    fn spill(&mut self, at: i16, v: u64) {
        for i in 0..8 {
            let place = FRAME.wrapping_add((i64::from(at) + i) as u64);
            self.given.retain(|g| g.0 != place);
            self.given.push((place, (v >> (8 * i)) as u8));
        }
    }
}

/// A value that agrees with a fact, the same for the same name in one test.
fn value(known: &EntryFact, salt: u64, number: usize) -> u64 {
    match known {
        EntryFact::Nothing => UNDEFINED,
        EntryFact::Value(n) => mix(salt, u64::from(*n)) & 0xffff_ffff_fff8,
        EntryFact::Address(AddressSpace::Stack, _, at) => FRAME.wrapping_add(*at as u64),
        EntryFact::Address(AddressSpace::Other(s), n, at) => {
            let region = 0x1000_0000_0000 + (u64::from(*s) << 36);
            let place = match number % 4 {
                3 => mix(salt, u64::from(*n)) % 24,
                _ => (u64::from(*n) + 1) << 24 | mix(salt, u64::from(*n)) & 0xffff0,
            };
            (region + place).wrapping_add(*at as u64)
        }
        EntryFact::Number(s, n) => {
            let r = mix(salt, u64::from(*n) ^ 0xabcd);
            let (min, max) = s.unsigned();
            let shaped = match number % 8 {
                0 => min,
                1 => max,
                2 => r & 0xff,
                3 => r | 0xffff_ffff_0000_0000,
                4 => 1 << (r % 64),
                5 => (1u64 << (r % 64)).wrapping_sub(1),
                _ => r,
            };
            let fit = |x: u64| x & s.bits().mask() | s.bits().value();
            let within = |x: u64| if max - min == u64::MAX { x } else { min + x % (max - min + 1) };
            [fit(shaped), fit(r), within(r), fit(within(r)), min, s.signed().0 as u64]
                .into_iter()
                .find(|x| s.contains(*x))
                .unwrap_or(max)
        }
    }
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// State of a machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowMachine {
    pub(crate) regs: [u64; 11],
    seed: u64,
    /// Bytes written, searched from the last to the first, after the given ones.
    memory: Vec<(u64, u8)>,
    given: usize,
}

/// Live values at an exit or at the end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ExitState {
    taken: bool,
    regs: [u64; 11],
    stack: Vec<u8>,
    memory: Vec<(u64, u8)>,
}

impl WindowMachine {
    /// Starts a test.
    pub(crate) fn start(&mut self, test: &WindowTest) {
        self.regs = test.regs;
        self.seed = test.seed;
        self.memory.clear();
        self.memory.extend_from_slice(&test.given);
        self.given = test.given.len();
    }

    fn byte(&self, at: u64) -> u8 {
        match self.memory.iter().rev().find(|(a, _)| *a == at) {
            Some((_, b)) => *b,
            None => self.untouched(at),
        }
    }

    fn untouched(&self, at: u64) -> u8 {
        mix(self.seed, at) as u8
    }

    fn load(&self, at: u64, size: Size) -> u64 {
        let n = u64::from(size.bytes());
        (0..n).rev().fold(0, |v, i| v << 8 | u64::from(self.byte(at.wrapping_add(i))))
    }

    fn store(&mut self, at: u64, size: Size, value: u64) {
        for i in 0..u64::from(size.bytes()) {
            let (place, byte) = (at.wrapping_add(i), (value >> (8 * i)) as u8);
            match self.memory[self.given..].iter_mut().find(|(a, _)| *a == place) {
                Some(slot) => slot.1 = byte,
                None => self.memory.push((place, byte)),
            }
        }
    }

    fn operand(&self, o: Operand) -> u64 {
        match o {
            Operand::Reg(r) => self.regs[r.index()],
            Operand::Imm(i) => i as i64 as u64,
        }
    }

    /// Runs one instruction; returns true if a branch is taken.
    pub(crate) fn step(&mut self, step: &WindowStep) -> bool {
        let at = |base: u64, off: i16| base.wrapping_add(off as i64 as u64);
        match *step {
            WindowStep::Do(insn) => match insn {
                Insn::Alu { width, op, dst, src } => {
                    self.regs[dst.index()] = eval::alu(op, width, self.regs[dst.index()], self.operand(src));
                }
                Insn::Mov { width, dst, src } => self.regs[dst.index()] = eval::mov(width, self.operand(src)),
                Insn::MovSx { width, bits, dst, src } => {
                    self.regs[dst.index()] = eval::movsx(width, u32::from(bits), self.regs[src.index()]);
                }
                Insn::Neg { width, dst } => self.regs[dst.index()] = eval::neg(width, self.regs[dst.index()]),
                Insn::Swap { kind, bits, dst } => {
                    self.regs[dst.index()] = eval::swap(kind, u32::from(bits), self.regs[dst.index()]);
                }
                Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm, .. } => self.regs[dst.index()] = imm,
                Insn::Load { size, sext, dst, src, off } => {
                    let v = self.load(at(self.regs[src.index()], off), size);
                    let spare = 64 - size.bits();
                    self.regs[dst.index()] = if sext { ((v << spare) as i64 >> spare) as u64 } else { v };
                }
                Insn::Store { size, dst, off, src } => {
                    self.store(at(self.regs[dst.index()], off), size, self.operand(src));
                }
                Insn::Atomic { op, size, dst, src, off, .. } => {
                    let place = at(self.regs[dst.index()], off);
                    let (old, v) = (self.load(place, size), self.regs[src.index()]);
                    let mut concrete = millstream_isa::semantics::ConcreteDomain;
                    let new = millstream_isa::semantics::atomic(&mut concrete, op, size, &old, &v, &0);
                    self.store(place, size, new.memory);
                }
                _ => {}
            },
            WindowStep::Opaque(n, Insn::LoadImm64 { dst, .. }) => {
                self.regs[dst.index()] = mix(self.seed, u64::from(n)) | 1 << 47;
            }
            WindowStep::Exit(_, Insn::Branch { width, cond, dst, src, .. }) => {
                return eval::cond(cond, width, self.regs[dst.index()], self.operand(src));
            }
            _ => {}
        }
        false
    }

    /// Returns true if an address is on the stack.
    fn on_stack(at: u64) -> bool {
        at.wrapping_sub(FRAME - 0x1000) < 0x1000
    }

    /// Live values in the current state.
    pub(crate) fn exit_state(&self, live: &LiveOut, taken: bool) -> ExitState {
        let mut seen = ExitState { taken, ..ExitState::default() };
        for n in 0..11 {
            seen.regs[n] = self.regs[n] & live.regs[n];
        }
        seen.stack = live.stack.iter().map(|at| self.byte(FRAME.wrapping_add(*at as i64 as u64))).collect();
        let outside = self.memory[self.given..].iter().filter(|(at, _)| !WindowMachine::on_stack(*at));
        seen.memory = outside.copied().collect();
        seen
    }

    /// Distance of the state from the expected values, as the number of bits (or the size of the difference)
    /// by which they differ.
    pub(crate) fn error(
        &self,
        live: &LiveOut,
        taken: bool,
        want: &ExitState,
        measure: DistanceMetric,
    ) -> u64 {
        let mut error = if taken == want.taken { 0 } else { 16 };
        for n in 0..10 {
            error += measure.of(self.regs[n] & live.regs[n], want.regs[n]);
        }
        for (at, byte) in live.stack.iter().zip(&want.stack) {
            let mine = self.byte(FRAME.wrapping_add(*at as i64 as u64));
            error += u64::from((mine ^ byte).count_ones());
        }
        for (at, byte) in &want.memory {
            error += u64::from((self.byte(*at) ^ byte).count_ones());
        }
        for (at, byte) in self.memory[self.given..].iter().filter(|(at, _)| !WindowMachine::on_stack(*at)) {
            if *byte != self.untouched(*at) && !want.memory.iter().any(|w| w.0 == *at) {
                error += 8;
            }
        }
        error
    }

    /// The registers with wrong values, and true if memory is wrong.
    pub(crate) fn wrong(&self, live: &LiveOut, want: &ExitState) -> (u16, bool) {
        let differs = |n: &usize| self.regs[*n] & live.regs[*n] != want.regs[*n];
        let regs = (0..10).filter(differs).fold(0, |set, n| set | 1 << n);
        let stack = live.stack.iter().zip(&want.stack);
        let stack = stack.into_iter().any(|(at, b)| self.byte(FRAME.wrapping_add(*at as i64 as u64)) != *b);
        let memory = stack || want.memory.iter().any(|(at, b)| self.byte(*at) != *b);
        (regs, memory || self.writes_elsewhere(want))
    }

    fn writes_elsewhere(&self, want: &ExitState) -> bool {
        let outside = self.memory[self.given..].iter().filter(|(at, _)| !WindowMachine::on_stack(*at));
        outside
            .into_iter()
            .any(|(at, b)| *b != self.untouched(*at) && !want.memory.iter().any(|w| w.0 == *at))
    }

    /// Adds the state of the machine to a hash.
    pub(crate) fn print(&self, h: &mut impl Hasher) {
        self.regs.hash(h);
        self.memory.hash(h);
    }

    /// Returns true if all live values are as expected.
    pub(crate) fn agrees(&self, live: &LiveOut, taken: bool, want: &ExitState) -> bool {
        taken == want.taken
            && (0..10).all(|n| self.regs[n] & live.regs[n] == want.regs[n])
            && self.error(live, taken, want, DistanceMetric::Bits) == 0
    }
}

/// Measure of the distance of two values (K2, section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DistanceMetric {
    /// Bits that differ.
    Bits,
    /// The absolute difference, in bits.
    Distance,
}

impl DistanceMetric {
    fn of(self, a: u64, b: u64) -> u64 {
        match self {
            DistanceMetric::Bits => u64::from((a ^ b).count_ones()),
            // Not the difference itself, which for two numbers far apart would dwarf all others.
            DistanceMetric::Distance => {
                let d = a.abs_diff(b).min(a.wrapping_sub(b)).min(b.wrapping_sub(a));
                u64::from(64 - d.leading_zeros())
            }
        }
    }
}

/// Tests of a window, with its results in each.
#[derive(Clone, Debug)]
pub(crate) struct TestSuite {
    pub(crate) tests: Vec<(WindowTest, Vec<ExitState>)>,
}

impl TestSuite {
    pub(crate) fn new(window: &InsnWindow, count: usize, random: &mut SearchRng) -> TestSuite {
        let mut suite = TestSuite { tests: Vec::new() };
        for n in 0..count {
            suite.add(window, WindowTest::random(window, n, random));
        }
        suite
    }

    pub(crate) fn add(&mut self, window: &InsnWindow, test: WindowTest) {
        let mut machine = WindowMachine::default();
        machine.start(&test);
        let mut seen = Vec::new();
        let mut looks = window.live_outs();
        for step in &window.steps {
            let taken = machine.step(step);
            if matches!(step, WindowStep::Exit(..)) {
                seen.extend(looks.next().map(|l| machine.exit_state(l, taken)));
            }
        }
        seen.push(machine.exit_state(&window.place.end, true));
        self.tests.push((test, seen));
    }

    /// Returns true if a candidate passes all tests.
    pub(crate) fn passes(
        &self,
        window: &InsnWindow,
        steps: &[WindowStep],
        machine: &mut WindowMachine,
    ) -> bool {
        self.failed(window, steps, machine).is_none()
    }

    /// The first test that a candidate fails.
    pub(crate) fn failed(
        &self,
        window: &InsnWindow,
        steps: &[WindowStep],
        machine: &mut WindowMachine,
    ) -> Option<usize> {
        self.tests.iter().position(|(test, want)| {
            machine.start(test);
            let mut n = 0;
            for step in steps {
                let taken = machine.step(step);
                if matches!(step, WindowStep::Exit(..)) {
                    if !machine.agrees(&window.place.exits[n], taken, &want[n]) {
                        return true;
                    }
                    n += 1;
                }
            }
            n != window.place.exits.len() || !machine.agrees(&window.place.end, true, &want[n])
        })
    }

    /// The error of a candidate over all tests, and the number of tests that it fails; stops counting above
    /// `most`.
    pub(crate) fn error(
        &self,
        window: &InsnWindow,
        steps: &[WindowStep],
        machine: &mut WindowMachine,
        measure: DistanceMetric,
        most: u64,
    ) -> (u64, u64) {
        let (mut sum, mut wrong) = (0, 0);
        for (test, want) in &self.tests {
            machine.start(test);
            let (mut n, before) = (0, sum);
            for step in steps {
                let taken = machine.step(step);
                if matches!(step, WindowStep::Exit(..)) {
                    sum += machine.error(&window.place.exits[n], taken, &want[n], measure);
                    n += 1;
                }
            }
            sum += machine.error(&window.place.end, true, &want[n], measure);
            wrong += u64::from(sum != before);
            if sum > most {
                break;
            }
        }
        (sum, wrong)
    }
}
