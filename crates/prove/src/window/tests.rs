use super::*;
use millstream_isa::absint::Tnum;
use millstream_isa::asm::assemble;

fn steps(text: &str) -> Vec<WindowStep> {
    assemble(text).expect("it assembles").into_iter().map(WindowStep::Do).collect()
}

fn place() -> WindowContext {
    let mut regs = [EntryFact::Nothing; 11];
    for (n, known) in regs.iter_mut().enumerate().take(6) {
        *known = EntryFact::Number(Scalar::UNKNOWN, n as u32);
    }
    regs[6] = EntryFact::Address(AddressSpace::Other(1), 6, 0);
    regs[7] = EntryFact::Address(AddressSpace::Other(1), 7, 0);
    regs[10] = EntryFact::Address(AddressSpace::Stack, 0, 0);
    let entry = WindowEntry { regs, bytes: BTreeMap::new(), spills: BTreeMap::new() };
    let mut live = LiveOut { regs: [0; 11], stack: (-8..0).collect() };
    live.regs[0] = u64::MAX;
    WindowContext { entry, exits: Vec::new(), end: live }
}

fn judge(place: &WindowContext, a: &str, b: &str) -> WindowVerdict {
    WindowProver::new(None, Duration::from_secs(1)).judge(place, &steps(a), &steps(b))
}

#[test]
fn what_is_not_looked_at_may_differ() {
    let a = "r1 = 0\n*(u32 *)(r10 - 4) = r1\nr0 = 7\n";
    assert_eq!(judge(&place(), a, "*(u32 *)(r10 - 4) = 0\nr0 = 7\n"), WindowVerdict::Equal);
    let mut looked = place();
    looked.end.regs[1] = u64::MAX;
    assert_ne!(judge(&looked, a, "*(u32 *)(r10 - 4) = 0\nr0 = 7\n"), WindowVerdict::Equal);
}

#[test]
fn known_bits_decide() {
    let mut known = place();
    known.entry.regs[3] = EntryFact::Number(Scalar::constant(0xffe0_0000), 3);
    let a = "r0 = r2\nr0 &= r3\nr0 >>= 21\n";
    let b = "w0 = w2\nr0 s>>= 21\n";
    assert_eq!(judge(&known, a, b), WindowVerdict::Equal);
    assert_ne!(judge(&place(), a, b), WindowVerdict::Equal);
    known.entry.regs[1] = EntryFact::Number(Scalar::known_bits(Tnum::new(0, 0xffff)), 1);
    assert_eq!(judge(&known, "r0 = r1\nr0 &= 65535\n", "r0 = r1\n"), WindowVerdict::Equal);
}

#[test]
fn stores_through_two_bases_may_meet() {
    let a = "r0 = *(u32 *)(r6 + 0)\n*(u32 *)(r7 + 0) = 5\n";
    let b = "*(u32 *)(r7 + 0) = 5\nr0 = *(u32 *)(r6 + 0)\n";
    assert_ne!(judge(&place(), a, b), WindowVerdict::Equal);
    let mut apart = place();
    apart.entry.regs[7] = EntryFact::Address(AddressSpace::Other(2), 7, 0);
    assert_eq!(judge(&apart, a, b), WindowVerdict::Equal);
}

#[test]
fn narrow_copies_are_one_wide_copy() {
    let a = "r1 = *(u16 *)(r6 + 0)\nr2 = *(u16 *)(r6 + 2)\n*(u16 *)(r6 + 8) = r1\n*(u16 *)(r6 + 10) = r2\nr0 = 0\n";
    let b = "r1 = *(u32 *)(r6 + 0)\n*(u32 *)(r6 + 8) = r1\nr0 = 0\n";
    assert_eq!(judge(&place(), a, b), WindowVerdict::Equal);
}

/// Completion of a sketch whose one register stands for a constant, given the results of a window for some
/// numbers.
fn completed(window: &str, lines: &[SketchLine], numbers: &[u64]) -> Option<SketchCompletion> {
    let mut prover = WindowProver::new(Some(Solver::new("z3")), Duration::from_secs(1));
    assert!(prover.begin_synthesis());
    let example = |n: &u64| {
        let mut v = InitialValues::default();
        v.regs[1] = Some(*n);
        v
    };
    let examples: Vec<InitialValues> = numbers.iter().map(example).collect();
    let sketch = InsnSketch {
        lines: lines.to_vec(),
        constants: vec![(Reg::R9, Scalar::signed_range(i64::from(i32::MIN), i64::from(i32::MAX)))],
    };
    prover.complete(&place(), &steps(window), &sketch, &examples).expect("an answer")
}

#[test]
fn a_sketch_is_completed_with_what_agrees_on_the_examples() {
    let insn = |text: &str| assemble(text).expect("it assembles")[0];
    let lines = [
        SketchLine::Only(insn("r0 = r1")),
        SketchLine::OneOf(Reg::R0, ["r0 += r9", "r0 *= r9", "r0 ^= r9"].map(insn).to_vec()),
    ];
    let window = "r0 = r1\nr0 *= 3\nr0 *= 7";
    let found = completed(window, &lines, &[1, 10, 1 << 60]).expect("there is one");
    assert_eq!((found.lines[1], found.constants.as_slice()), (insn("r0 *= r9"), &[21][..]));
    // One example says too little; for a number that is no multiple the solver says that there is no
    // completion.
    assert!(completed(window, &lines, &[1]).is_some());
    assert_eq!(completed("r0 = r1\nr0 *= 3\nr0 += 1", &lines, &[1, 10, 1 << 60]), None);
}
