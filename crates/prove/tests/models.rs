//! Pairs of small programs that must be proven, and pairs that must not: one for each modelled feature that
//! does not occur in the data planes, and programs that are too large to be compared as a whole.

mod written;

use std::fmt::Write as _;
use std::time::Duration;

use millstream_btf::{Btf, BtfBuilder, Composite, CoreKind, Member, TypeKind};
use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_object::{
    CoreRelo, Extern, ExternId, ExternKind, FuncId, MapId, Object, ProgramType, Reloc, RelocKind,
};
use millstream_prove::{ProofAblation, ProofLimits, ProofResult, ProofVerdict, Solver, prove};
use written::object;

fn proof(kind: ProgramType, a: &str, b: &str, limits: &ProofLimits) -> ProofResult {
    let ((a, f), (b, g)) = (object(kind, a), object(kind, b));
    prove((&a, f), (&b, g), None, limits)
}

fn equivalent(kind: ProgramType, a: &str, b: &str, limits: &ProofLimits) -> bool {
    proof(kind, a, b, limits).verdict == ProofVerdict::Equivalent
}

#[test]
fn packet_loads_through_the_kernel_end_the_program_beyond_the_packet() {
    let kind = ProgramType::SOCKET_FILTER;
    let limits = ProofLimits::default();
    let twice = "r6 = r1\nr0 = *(u8 *)skb[12]\nr7 = r0\nr0 = *(u8 *)skb[12]\nr0 += r7\nexit";
    let once = "r6 = r1\nr0 = *(u8 *)skb[12]\nr1 = r0\nr0 += r1\nexit";
    assert!(equivalent(kind, twice, once, &limits));
    assert!(!equivalent(kind, twice, &once.replace("12", "13"), &limits));
    assert!(!equivalent(kind, twice, &once.replace("u8", "u16"), &limits));
    // The second load may be beyond the end, and then the result is 0.
    let both = "r6 = r1\nr0 = *(u8 *)skb[12]\nr7 = r0\nr0 = *(u8 *)skb[40]\nr0 = r7\nexit";
    let first = "r6 = r1\nr0 = *(u8 *)skb[12]\nexit";
    assert!(!equivalent(kind, both, first, &limits));
}

#[test]
fn a_budget_is_spent_at_the_same_round_in_both() {
    let kind = ProgramType::XDP;
    let limits = ProofLimits::default();
    let rounds =
        |test: &str| format!("r0 = 0\nagain:\nmay_goto out\nr0 += 1\nif r0 {test} goto again\nout:\nexit");
    assert!(equivalent(kind, &rounds("< 4"), &rounds("!= 4"), &limits));
    assert!(!equivalent(kind, &rounds("< 4"), &rounds("< 5"), &limits));
    // Without a test, the last round may be another.
    let silent = rounds("< 4").replace("may_goto out\n", "");
    assert!(!equivalent(kind, &rounds("< 4"), &silent, &limits));
}

/// Tests of `count` bytes of the packet one after the other, each of which changes the result. The second
/// form inverts every test; byte `odd` is counted differently.
fn tests_of_bytes(count: usize, turned: bool, odd: Option<usize>) -> String {
    let mut out = format!(
        "r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr5 = 1\nr4 = r2\nr4 += {count}\nif r4 > r3 goto out\n"
    );
    for n in 0..count {
        let step = if odd == Some(n) { 2 } else { 1 };
        let _ = writeln!(out, "r4 = *(u8 *)(r2 + {n})");
        if turned {
            let _ = writeln!(out, "r6 = r4\nif r6 >= 100 goto high{n}\nr5 += {step}\ngoto on{n}");
            let _ = writeln!(out, "high{n}:\nr5 *= r6\non{n}:");
        } else {
            let _ = writeln!(out, "if r4 < 100 goto low{n}\nr5 *= r4\ngoto on{n}");
            let _ = writeln!(out, "low{n}:\nr5 += {step}\non{n}:");
        }
    }
    out + "out:\nr0 = r5\nexit"
}

#[test]
fn large_programs_are_proven_region_by_region() {
    let kind = ProgramType::XDP;
    let limits = ProofLimits { terms: 8_000, time: Duration::from_secs(60), ..ProofLimits::default() };
    let straight = tests_of_bytes(60, false, None);
    let proof = proof(kind, &straight, &tests_of_bytes(60, true, None), &limits);
    assert!(proof.verdict == ProofVerdict::Equivalent && proof.regions > 1, "{proof:?}");
    for odd in [0, 31, 59] {
        assert!(!equivalent(kind, &straight, &tests_of_bytes(60, true, Some(odd)), &limits), "byte {odd}");
    }
}

#[test]
fn what_is_left_out_makes_no_false_proof() {
    let kind = ProgramType::XDP;
    let (a, same) = (tests_of_bytes(4, false, None), tests_of_bytes(4, true, None));
    let other = tests_of_bytes(4, true, Some(2));
    assert!(equivalent(kind, &a, &same, &ProofLimits::default()));
    for left_out in ProofAblation::ALL {
        let limits =
            ProofLimits { without: vec![left_out], time: Duration::from_secs(10), ..ProofLimits::default() };
        assert!(!equivalent(kind, &a, &other, &limits), "without {}", left_out.name());
    }
}

/// Without a comparison as a whole.
fn by_steps() -> ProofLimits {
    ProofLimits {
        without: vec![ProofAblation::Whole],
        time: Duration::from_secs(10),
        ..ProofLimits::default()
    }
}

#[test]
fn loops_of_any_number_of_rounds_are_proven_step_by_step() {
    let kind = ProgramType::XDP;
    // As many rounds as a field of the context says.
    let rounds = |before: &str, body: &str| {
        format!(
            "r2 = *(u32 *)(r1 + 12)\nr0 = 0\nr3 = 3\n{before}again:\nif r2 == 0 goto out\n\
             {body}r2 += -1\ngoto again\nout:\nexit"
        )
    };
    let plain = rounds("", "r0 += 3\n");
    for same in
        [rounds("", "r0 += 1\nr0 += 2\n"), rounds("", "r0 += r3\n"), rounds("r4 = r3\n", "r0 += r4\n")]
    {
        assert!(equivalent(kind, &plain, &same, &by_steps()), "{same}");
        assert!(equivalent(kind, &same, &plain, &by_steps()), "{same}");
    }
    let others = [
        rounds("", "r0 += 4\n"),
        rounds("r0 = 1\n", "r0 += 3\n"),
        // Only from the second round on, or the fourth.
        rounds("", "r0 += r3\nr3 = 4\n"),
        rounds("r4 = 0\n", "r0 += 3\nr4 += 1\nif r4 != 4 goto on\nr0 += 1\non:\n"),
        rounds("", "r0 += 3\nr2 &= 7\n"),
    ];
    for other in others {
        assert!(!equivalent(kind, &plain, &other, &by_steps()), "{other}");
        assert!(!equivalent(kind, &other, &plain, &by_steps()), "{other}");
    }
}

#[test]
fn ways_that_meet_elsewhere_are_proven_step_by_step() {
    let kind = ProgramType::XDP;
    let straight = tests_of_bytes(60, false, None);
    assert!(equivalent(kind, &straight, &tests_of_bytes(60, true, None), &by_steps()));
    for odd in [0, 31, 59] {
        let other = tests_of_bytes(60, true, Some(odd));
        assert!(!equivalent(kind, &straight, &other, &by_steps()), "byte {odd}");
    }
    // A value set on two ways and tested at the merge point, and the same without the test.
    let start = "r2 = *(u32 *)(r1 + 12)\nr3 = *(u32 *)(r1 + 16)\nr0 = r3\n";
    let asked = format!(
        "{start}r4 = 0\nif r2 < 7 goto on\nr4 = 1\nr0 += r2\non:\nr0 ^= 5\nif r4 == 0 goto out\nr0 *= r3\nout:\nexit"
    );
    let known = format!("{start}if r2 < 7 goto on\nr0 += r2\nr0 ^= 5\nr0 *= r3\nexit\non:\nr0 ^= 5\nexit");
    assert!(equivalent(kind, &asked, &known, &by_steps()));
    assert!(!equivalent(kind, &asked, &known.replace("< 7", "< 8"), &by_steps()));
    let swapped = known.replace("r0 += r2\nr0 ^= 5", "r0 ^= 5\nr0 += r2");
    assert!(!equivalent(kind, &asked, &swapped, &by_steps()));
}

#[test]
fn bytes_of_the_packet_that_an_earlier_check_covers_need_not_be_checked() {
    let kind = ProgramType::XDP;
    // Bytes behind an offset that the packet says, and then as many rounds as a field of the context says.
    let checked = |check: &str, bad: &str| {
        format!(
            "r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr6 = *(u32 *)(r1 + 12)\nr0 = 0\nr4 = r2\nr4 += 1\n\
             if r4 > r3 goto out\nr5 = *(u8 *)(r2 + 0)\nr2 += r5\nr4 = r2\nr4 += 6\nif r4 > r3 goto out\n{check}\
             r0 = *(u8 *)(r2 + 4)\nagain:\nif r6 == 0 goto out\nr0 += 3\nr6 += -1\ngoto again\nout:\nexit\n{bad}"
        )
    };
    let again =
        |bytes: u32| checked(&format!("r4 = r2\nr4 += {bytes}\nif r4 > r3 goto bad\n"), "bad:\nr0 = 7\nexit");
    let once = checked("", "");
    for bytes in [1, 5, 6] {
        assert!(equivalent(kind, &again(bytes), &once, &by_steps()), "{bytes}");
    }
    assert!(!equivalent(kind, &again(7), &once, &by_steps()));
}

#[test]
fn what_earlier_comparisons_decide_need_not_be_asked() {
    let kind = ProgramType::XDP;
    let asked = |last: &str| {
        format!(
            "r2 = *(u32 *)(r1 + 12)\nr3 = r2\nr3 += -4\nr0 = 9\nif r2 s> 5 goto out\nif r3 s< 0 goto out\nr0 = 1\n\
             if r2 == 4 goto out\nr0 = 2\n{last}out:\nexit"
        )
    };
    let all = asked("if r2 == 5 goto out\nr0 = 3\n");
    assert!(equivalent(kind, &all, &asked(""), &by_steps()));
    for (from, to) in [("s> 5", "s> 6"), ("== 4", "== 3"), ("+= -4", "+= -3")] {
        let (all, less) = (all.replace(from, to), asked("").replace(from, to));
        assert!(!equivalent(kind, &all, &less, &by_steps()), "{to}");
    }
    // In a loop only the facts that hold in each round count.
    let rounds = |body: &str| {
        format!(
            "r2 = *(u32 *)(r1 + 12)\nr3 = *(u32 *)(r1 + 16)\nr0 = 0\nagain:\n{body}r0 += 1\n\
             if r0 != r3 goto again\nout:\nexit"
        )
    };
    let test = "if r2 > 7 goto out\nif r2 > 8 goto out\n";
    assert!(equivalent(kind, &rounds(test), &rounds("if r2 > 7 goto out\n"), &by_steps()));
    let changed = format!("{test}r2 += 1\n");
    assert!(!equivalent(kind, &rounds(&changed), &rounds(test), &by_steps()));
    let later = rounds("if r2 > 7 goto out\nr2 += 1\nif r2 > 8 goto out\n");
    assert!(equivalent(kind, &later, &rounds("if r2 > 7 goto out\nr2 += 1\n"), &by_steps()));
    assert!(!equivalent(kind, &later, &rounds("r2 += 1\nif r2 > 8 goto out\n"), &by_steps()));
}

#[test]
fn sums_of_few_bits_are_the_same_at_any_width() {
    let kind = ProgramType::XDP;
    let sum = |mask: u32, rest: &str| {
        format!("r0 = *(u32 *)(r1 + 12)\nr0 &= {mask}\nr0 <<= 2\nr0 += 14\n{rest}r0 += 20\nexit")
    };
    for cut in ["r0 &= 255\n", "r0 <<= 48\nr0 >>= 48\n", "r0 <<= 32\nr0 s>>= 32\n"] {
        assert!(equivalent(kind, &sum(15, cut), &sum(15, ""), &ProofLimits::default()), "{cut}");
    }
    assert!(!equivalent(kind, &sum(63, "r0 &= 255\n"), &sum(63, ""), &ProofLimits::default()));
    assert!(!equivalent(kind, &sum(15, "r0 &= 63\n"), &sum(15, ""), &ProofLimits::default()));
}

/// An object with one program that calls an external function wherever it calls a kernel function, and that
/// uses a map wherever it loads a constant of 64 bits: the map of that number.
fn calling(name: &str, text: &str) -> (Object, FuncId) {
    let (mut object, func) = object(ProgramType::XDP, text);
    let id = ExternId(object.externs.len() as u32);
    object.externs.push(Extern { name: name.to_owned(), kind: ExternKind::Unknown, weak: false });
    let maps = object.maps.len();
    let f = &mut object.functions[func.0 as usize];
    for (at, raw) in f.insns.iter_mut().enumerate() {
        let kind = match (raw.code, raw.src) {
            (0x85, 2) => RelocKind::Extern(id),
            (0x18, 0) if (raw.imm as usize) < maps => {
                RelocKind::Map(MapId(std::mem::take(&mut raw.imm) as u32))
            }
            _ => continue,
        };
        f.relocs.push(Reloc { insn: at as u32, kind });
    }
    (object, func)
}

/// Returns true if two programs are proven equivalent, both of which may call a function of this name.
fn judged(name: &str, a: &str, b: &str) -> bool {
    let ((a, f), (b, g)) = (calling(name, a), calling(name, b));
    prove((&a, f), (&b, g), None, &ProofLimits::default()).verdict == ProofVerdict::Equivalent
}

#[test]
fn functions_of_the_c_library_do_what_c_says() {
    // Memory above the bytes that are set keeps its contents.
    let set = |at: i32, count: u32| {
        format!(
            "r6 = *(u32 *)(r1 + 12)\n*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 16) = r6\nr1 = r10\nr1 += {at}\nr2 = 7\n\
             r3 = {count}\ncall kernel-function#0\nr0 = *(u32 *)(r10 - 16)\nr1 = *(u32 *)(r10 - 8)\nr0 += r1\nexit"
        )
    };
    let by_hand = "r6 = *(u32 *)(r1 + 12)\nr0 = 0x07070707\nr0 += r6\nexit";
    assert!(judged("memset", &set(-16, 8), by_hand));
    assert!(judged("memset", &set(-8, 4), by_hand));
    for other in [set(-16, 3), set(-16, 12), set(-12, 4)] {
        assert!(!judged("memset", &other, by_hand), "{other}");
    }
    assert!(!judged("memfrob", &set(-16, 8), by_hand));
    let copied = "r6 = *(u32 *)(r1 + 12)\n*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 16) = 1\n\
                  r1 = r10\nr1 += -16\nr2 = r10\n\
                  r2 += -8\nr3 = 4\ncall kernel-function#0\nr0 = *(u32 *)(r0 + 0)\nexit";
    let loaded = "r0 = *(u32 *)(r1 + 12)\nexit";
    assert!(judged("memcpy", copied, loaded));
    assert!(judged("memmove", copied, loaded));
    assert!(!judged("memcpy", copied, &loaded.replace("12", "16")));
}

#[test]
fn a_limit_of_terms_ends_a_proof_wherever_it_is_reached() {
    // A call with one of two maps: the path alone does not tell which once there is no room for terms.
    let text = "r6 = *(u32 *)(r1 + 12)\nr1 = 0 ll\nif r6 == 7 goto on\nr1 = 1 ll\non:\n*(u32 *)(r10 - 4) = 0\n\
                r2 = r10\nr2 += -4\ncall map_lookup_elem\nif r0 == 0 goto out\nr0 = *(u8 *)(r0 + 0)\nout:\nexit";
    let ((a, f), (b, g)) = (calling("", text), calling("", &text.replace("== 7", "== 8")));
    for terms in (0..400).step_by(7) {
        let limits = ProofLimits { terms, tries: 0, ..ProofLimits::default() };
        assert!(
            matches!(prove((&a, f), (&b, g), None, &limits).verdict, ProofVerdict::Unknown { .. }),
            "{terms}"
        );
    }
}

#[test]
fn a_call_depends_on_whether_it_is_given_null() {
    let zeros: String = [32, 24, 16, 8].map(|at| format!("*(u64 *)(r10 - {at}) = 0\n")).concat();
    // A value found under a key, or null; if `test` is given, null if that holds, too.
    let given = |test: &str, call: &str| {
        format!(
            "r6 = *(u32 *)(r1 + 12)\nr7 = r1\nr1 = 1 ll\n{zeros}*(u32 *)(r10 - 32) = r6\nr2 = r10\nr2 += -32\n\
             call map_lookup_elem\n{test}\nr8 = r0\n{call}\nr0 = 0\nexit"
        )
    };
    let kernel = "r1 = r8\ncall kernel-function#0";
    let storage = "r1 = 2 ll\nr2 = r7\nr3 = r8\nr4 = 1\ncall sk_storage_get";
    let null = "if r6 != 7 goto on\nr0 = 0\non:";
    for call in [kernel, storage] {
        assert!(judged("given", &given("", call), &given("r5 = r6", call)), "{call}");
        assert!(judged("given", &given(null, call), &given(&null.replace("r6", "w6"), call)), "{call}");
        assert!(!judged("given", &given("", call), &given(null, call)), "{call}");
        assert!(!judged("given", &given(null, call), &given(&null.replace('7', "8"), call)), "{call}");
    }
    let cookie = |given: &str| format!("r1 = {given}\ncall get_netns_cookie\nexit");
    assert!(judged("", &cookie("r1"), &cookie("r1\nr2 = 5")));
    assert!(!judged("", &cookie("r1"), &cookie("0")));
    // One of several maps, where another way would have none: not the first of them.
    let lookup = |map: &str| {
        format!(
            "r6 = *(u32 *)(r1 + 12)\nr1 = 0\nif r6 == 9 goto on\n{map}on:\n{zeros}r2 = r10\nr2 += -32\n\
             call map_lookup_elem\nif r0 == 0 goto out\nr0 = *(u8 *)(r0 + 0)\nout:\nexit"
        )
    };
    let several = lookup("r1 = 0 ll\nif r6 == 1 goto on\nr1 = 1 ll\nif r6 == 2 goto on\nr1 = 2 ll\n");
    for map in ["0", "1", "2"] {
        assert!(!judged("", &several, &lookup(&format!("r1 = {map} ll\n"))), "{map}");
    }
}

#[test]
fn exceptions_and_memory_behind_a_dynptr_are_not_modelled() {
    // Instructions after an exception do not run.
    let set = "r1 = r6\nr2 = 0\n*(u32 *)(r1 + 12) = r2\n";
    let call = "r1 = 5\ncall kernel-function#0\n";
    let (before, after) = (format!("r6 = r1\n{set}{call}exit"), format!("r6 = r1\n{call}{set}exit"));
    assert!(!judged("bpf_throw", &before, &after));
    // A packet that is written through a pointer into the stack.
    let loaded = |first: &str, second: &str| {
        format!(
            "r6 = *(u32 *)(r1 + 0)\n*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 8) = 0\n{first}r1 = r10\nr1 += -16\n\
             call kernel-function#0\n{second}r0 = r7\nexit"
        )
    };
    let load = "r7 = *(u8 *)(r6 + 0)\n";
    assert!(!judged("bpf_dynptr_memset", &loaded(load, ""), &loaded("", load)));
}

#[test]
fn what_a_way_says_of_bits_holds_for_all_that_is_made_of_them() {
    let kind = ProgramType::XDP;
    let start = "r2 = *(u32 *)(r1 + 12)\nr3 = *(u32 *)(r1 + 16)\nr0 = 3\n";
    // If all bits are zero, so are some of them; bits from a mask are not tested again.
    let again = |first: u32, second: u32| {
        format!(
            "{start}r4 = r2\nr4 &= {first}\nif r4 != 0 goto set\nr4 = r2\nr4 &= {second}\n\
             if r4 != 0 goto more\ngoto out\nset:\nr0 = 4\ngoto out\nmore:\nr0 = 5\nout:\nr0 += r3\nexit"
        )
    };
    let once = |mask: u32| format!("{start}r2 &= {mask}\nif r2 == 0 goto out\nr0 = 4\nout:\nr0 += r3\nexit");
    assert!(equivalent(kind, &again(0x3f, 0x1f), &once(0x3f), &by_steps()));
    assert!(!equivalent(kind, &again(0x3f, 0x7f), &once(0x3f), &by_steps()));
    // A number with one possible value, and that value.
    let stored = |value: u32, put: &str| {
        format!(
            "{start}r4 = 0\nif r2 == 7 goto on\nr4 = 1\non:\nif r3 == 11 goto out\n\
             if r4 == {value} goto out\nr0 = {put}\nif r3 == 9 goto out\nr0 += r3\nout:\nexit"
        )
    };
    assert!(equivalent(kind, &stored(1, "r4"), &stored(1, "0"), &by_steps()));
    assert!(!equivalent(kind, &stored(0, "r4"), &stored(0, "0"), &by_steps()));
    // A number above 43, minus 20, is not below 2: the upper bits alone tell.
    let less = |least: u32, test: &str| {
        format!("{start}if r2 <= {least} goto out\nr4 = r2\nr4 += -20\nr5 = 2\n{test}r0 = 4\nout:\nexit")
    };
    let below = "if r5 > r4 goto out\n";
    assert!(equivalent(kind, &less(43, below), &less(43, ""), &by_steps()));
    assert!(!equivalent(kind, &less(20, below), &less(20, ""), &by_steps()));
}

#[test]
fn quotients_are_the_same_as_products_where_they_are() {
    let kind = ProgramType::XDP;
    let divided = "r0 = *(u16 *)(r1 + 12)\nr0 /= 0x7fff\nexit";
    let product = |size: u32, factor: u32, shift: u32| {
        format!("r0 = *(u{size} *)(r1 + 12)\nr0 *= {factor}\nr0 >>= {shift}\nexit")
    };
    assert!(equivalent(kind, divided, &product(16, 0x10003, 31), &ProofLimits::default()));
    for (factor, shift) in [(0x10002, 31), (0x10003, 32), (0x20003, 31)] {
        assert!(
            !equivalent(kind, divided, &product(16, factor, shift), &ProofLimits::default()),
            "{factor:#x}"
        );
    }
    let wide = divided.replace("u16", "u32");
    assert!(!equivalent(kind, &wide, &product(32, 0x10003, 31), &ProofLimits::default()));
}

#[test]
fn a_call_depends_on_the_arguments_that_its_format_asks_for() {
    // `first` and `second` are in the registers of the first two arguments of the format.
    let printed = |format: &[u8; 8], first: u32, second: u32| {
        let format = u64::from_le_bytes(*format);
        format!(
            "r6 = {format:#x} ll\n*(u64 *)(r10 - 8) = r6\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = {first}\nr4 = {second}\n\
             call trace_printk\nr0 = 0\nexit"
        )
    };
    let same = |format: &[u8; 8], a: (u32, u32), b: (u32, u32)| {
        judged("", &printed(format, a.0, a.1), &printed(format, b.0, b.1))
    };
    for format in [b"rate %d\0", b"%d%% of\0", b"%d\0%d%d\0"] {
        assert!(same(format, (1, 2), (1, 3)));
        assert!(!same(format, (1, 2), (4, 2)));
    }
    assert!(same(b"all 99%%", (1, 2), (4, 3)));
    for format in [b"%d of %d", b"%d%%%d \0"] {
        assert!(!same(format, (1, 2), (1, 3)));
    }
}

#[test]
fn what_is_read_may_be_on_the_stack_or_elsewhere() {
    let read = |test: u32, byte: u32| {
        format!(
            "r6 = *(u32 *)(r1 + 12)\nr3 = *(u32 *)(r1 + 16)\n*(u64 *)(r10 - 8) = {byte}\n*(u64 *)(r10 - 16) = 0\n\
             if r6 == {test} goto on\nr3 = r10\nr3 += -8\non:\nr1 = r10\nr1 += -16\nr2 = 8\ncall probe_read_kernel\n\
             r0 = *(u32 *)(r10 - 16)\nexit"
        )
    };
    assert!(judged("", &read(7, 5), &read(7, 5).replace("if r6", "r8 = r6\nif r8")));
    assert!(!judged("", &read(7, 5), &read(7, 6)));
    assert!(!judged("", &read(7, 5), &read(8, 5)));
    assert!(!judged("", &read(7, 5), &read(7, 5).replace("r1 + 16", "r1 + 20")));
}

#[test]
fn loops_that_count_are_followed_round_by_round() {
    let kind = ProgramType::XDP;
    // Too few terms for the whole. Beside an array that is filled at offsets that vary lies a pointer.
    let limits = ProofLimits { terms: 2_000, ..by_steps() };
    let filled = |pointer: i32, array: i32, last: &str, read: i32| {
        let zeros: String = (0..6).map(|n| format!("*(u64 *)(r10 - {}) = 0\n", array - 8 * n)).collect();
        format!(
            "r2 = *(u32 *)(r1 + 12)\n*(u64 *)(r10 - {pointer}) = r1\n{zeros}r6 = 0\nagain:\nr3 = r10\n\
             r3 += -{array}\nr3 += r6\nr4 = r2\nr4 &= 1\nif r4 == 0 goto on\n*(u64 *)(r3 + 0) = r2\non:\nr2 >>= 1\n\
             r6 += 8\nif r6 {last} goto again\nr1 = *(u64 *)(r10 - {pointer})\nr0 = *(u32 *)(r1 + 16)\n\
             r5 = *(u64 *)(r10 - {read})\nr0 += r5\nexit"
        )
    };
    let plain = filled(56, 48, "!= 48", 24);
    assert!(equivalent(kind, &plain, &filled(64, 56, "< 48", 32), &limits));
    for other in [filled(64, 56, "< 24", 32), filled(64, 56, "< 16", 32), filled(64, 56, "< 48", 24)] {
        assert!(!equivalent(kind, &plain, &other, &limits), "{other}");
        assert!(!equivalent(kind, &other, &plain, &limits), "{other}");
    }
}

#[test]
fn a_read_at_a_varying_place_of_the_stack_may_be_of_what_was_never_put_there() {
    let kind = ProgramType::XDP;
    let read = |bits: u32, more: &str| {
        format!(
            "r2 = *(u32 *)(r1 + 12)\nr3 = *(u32 *)(r1 + 16)\n*(u64 *)(r10 - 16) = r3\nr2 &= {bits}\n{more}r4 = r10\n\
             r4 += -16\nr4 += r2\nr0 = *(u8 *)(r4 + 0)\nexit"
        )
    };
    let limits = ProofLimits::default();
    assert!(equivalent(kind, &read(7, ""), &read(7, "r5 = 1\n"), &limits));
    // Bytes put elsewhere lie among others that were not.
    assert!(!equivalent(kind, &read(15, ""), &read(15, "").replace("r10 - 16", "r10 - 24"), &limits));
    // Unless a comparison shows that it is not read.
    let below = "if r2 < 8 goto on\nr2 = 3\non:\n";
    assert!(equivalent(kind, &read(15, below), &read(15, &below.replace("< 8", "<= 7")), &limits));
    assert!(!equivalent(kind, &read(15, below), &read(15, &below.replace("< 8", "<= 8")), &limits));
}

#[test]
fn what_was_put_on_one_way_is_there_where_that_was_taken() {
    let kind = ProgramType::XDP;
    let read = |place: i32, flag: u32, asked: u32| {
        format!(
            "r2 = *(u32 *)(r1 + 12)\nr3 = *(u32 *)(r1 + 16)\nr4 = 0\nif r2 < 7 goto on\n*(u64 *)(r10 - {place}) = r3\n\
             r4 = {flag}\non:\nr0 = 0\nif r4 == {asked} goto out\nr0 = *(u32 *)(r10 - {place})\nout:\nexit"
        )
    };
    for limits in [ProofLimits::default(), by_steps()] {
        let (plain, flag) = (read(8, 1, 0), read(16, 8, 0));
        assert!(equivalent(kind, &plain, &flag, &limits));
        for other in [flag.replace("< 7", "< 8"), flag.replace("r10 - 16) = r3", "r10 - 16) = r2")] {
            assert!(!equivalent(kind, &plain, &other, &limits), "{other}");
        }
        // On the other way an unknown value is there: the same each time, wherever the two keep it.
        for (a, b) in [(read(8, 1, 2), read(16, 8, 2)), (read(8, 1, 1), read(16, 8, 8))] {
            assert!(equivalent(kind, &a, &b, &limits), "{a}\n{b}");
            assert!(equivalent(kind, &b, &a, &limits), "{b}\n{a}");
        }
        assert!(!equivalent(kind, &read(8, 1, 2), &flag, &limits));
        assert!(!equivalent(kind, &flag, &read(8, 1, 2), &limits));
    }
}

#[test]
fn a_byte_of_the_stack_that_was_never_written_is_any_but_one() {
    let kind = ProgramType::XDP;
    let byte = |a: i32, b: i32, op: &str| {
        format!("r0 = *(u8 *)(r10 - {a})\nr2 = *(u8 *)(r10 - {b})\nr2 *= 3\nr0 {op}= r2\nexit")
    };
    let one_way = |at: i32, value: u32, other: i32| {
        format!(
            "r2 = *(u32 *)(r1 + 12)\nif r2 < 7 goto on\n*(u8 *)(r10 - {at}) = {value}\non:\nr0 = *(u8 *)(r10 - {at})\n\
             r2 = *(u8 *)(r10 - {other})\nr0 ^= r2\nexit"
        )
    };
    for limits in [ProofLimits::default(), by_steps()] {
        let same = [
            (byte(8, 7, "-"), byte(40, 23, "-")),
            // A cycle: each is the former value of another.
            (byte(8, 7, "-"), byte(7, 8, "-")),
            (byte(8, 8, "^"), byte(3, 3, "^")),
            (one_way(8, 5, 16), one_way(24, 5, 1)),
        ];
        for (a, b) in same {
            assert!(equivalent(kind, &a, &b, &limits), "{a}\n{b}");
            assert!(equivalent(kind, &b, &a, &limits), "{b}\n{a}");
        }
        let others = [
            // Two bytes are more than one twice.
            (byte(8, 7, "-"), byte(8, 8, "-")),
            (byte(8, 7, "-"), byte(7, 7, "-")),
            (byte(8, 7, "-"), byte(8, 7, "+")),
            (one_way(8, 5, 16), one_way(8, 6, 16)),
            (one_way(8, 5, 16), one_way(16, 5, 16)),
            (one_way(8, 5, 16), one_way(8, 5, 8)),
        ];
        for (a, b) in others {
            assert!(!equivalent(kind, &a, &b, &limits), "{a}\n{b}");
            assert!(!equivalent(kind, &b, &a, &limits), "{b}\n{a}");
        }
    }
    // A called function finds unknown bytes, fresh ones each time.
    let twice = |between: &str| {
        format!(
            "goto main\nbody:\nr0 = *(u8 *)(r10 - 8)\nexit\nmain:\ncall body\nr6 = r0\n\
             {between}call body\nr0 -= r6\nexit"
        )
    };
    assert!(!equivalent(kind, &twice(""), &twice("r7 = 1\n"), &ProofLimits::default()));
    assert!(!equivalent(kind, &twice(""), "r0 = 0\nexit", &ProofLimits::default()));
}

#[test]
fn a_call_that_sees_the_same_bytes_gives_the_same() {
    let Some(solver) = Solver::discover() else {
        assert!(std::env::var("CI").is_err(), "no solver");
        eprintln!("skipped: no solver");
        return;
    };
    let proven = |a: &str, b: &str| {
        let ((a, f), (b, g)) = (calling("looks", a), calling("looks", b));
        prove((&a, f), (&b, g), Some(&solver), &ProofLimits::default()).verdict == ProofVerdict::Equivalent
    };
    let with = |store: &str| {
        format!(
            "r7 = r1\nr2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr4 = r2\nr4 += 64\nr0 = 0\nif r4 > r3 goto out\n\
             r5 = *(u32 *)(r1 + 12)\nr6 = *(u32 *)(r1 + 16)\nr8 = *(u32 *)(r1 + 20)\nr5 &= 31\nr6 &= 31\nr4 = r2\n\
             {store}r1 = r7\ncall kernel-function#0\nout:\nexit"
        )
    };
    let twice = with(
        "if r8 < 7 goto other\nr4 += r5\n*(u8 *)(r4 + 0) = 9\ngoto on\nother:\nr4 += r6\n*(u8 *)(r4 + 0) = 9\non:\n",
    );
    let once = |test: &str| {
        with(&format!(
            "if r8 {test} goto other\nr4 += r5\ngoto on\nother:\nr4 += r6\non:\n*(u8 *)(r4 + 0) = 9\n"
        ))
    };
    assert!(proven(&twice, &once("< 7")));
    assert!(!proven(&twice, &once("< 8")));
    assert!(!proven(&twice, &once("< 7").replace("+ 0) = 9", "+ 1) = 9")));
    // Two stores that may be at one place: the last counts.
    let both =
        |a: u32, b: u32| with(&format!("r4 += r5\n*(u8 *)(r4 + 0) = {a}\nr2 += r6\n*(u8 *)(r2 + 0) = {b}\n"));
    let turned =
        |a: u32, b: u32| with(&format!("r2 += r6\n*(u8 *)(r2 + 0) = {b}\nr4 += r5\n*(u8 *)(r4 + 0) = {a}\n"));
    assert!(proven(&both(9, 9), &turned(9, 9)));
    assert!(!proven(&both(9, 8), &turned(9, 8)));
}

#[test]
fn a_call_may_read_beyond_a_gap_in_what_was_put_on_the_stack() {
    let Some(solver) = Solver::discover() else {
        assert!(std::env::var("CI").is_err(), "no solver");
        eprintln!("skipped: no solver");
        return;
    };
    let given = |value: &str| {
        format!(
            "r6 = *(u32 *)(r1 + 12)\nr7 = *(u32 *)(r1 + 16)\nr1 = r10\nr1 += -8\n*(u8 *)(r1 + 0) = 1\n\
             *(u32 *)(r1 + 4) = {value}\nr2 = 0\nr3 = 0\nr4 = 0\nr5 = 0\ncall kernel-function#0\nexit"
        )
    };
    let proven = |a: &str, b: &str| {
        let ((a, f), (b, g)) = (calling("looks", a), calling("looks", b));
        prove((&a, f), (&b, g), Some(&solver), &ProofLimits::default()).verdict == ProofVerdict::Equivalent
    };
    assert!(proven(&given("r6"), &given("r6").replace("r2 = 0\nr3 = 0", "r3 = 0\nr2 = r3")));
    assert!(!proven(&given("r6"), &given("r7")));
    assert!(!proven(&given("r6"), &given("r6").replace("r1 + 4", "r1 + 3")));
}

/// A program with the address of its function at slot 1.
fn placed(text: &str) -> String {
    let whole = encode_all(&assemble(&text.replace("FUNCTION", "0")).expect("our own text"));
    let at = whole.iter().position(|raw| raw.code == 0x18 && raw.src == 4).expect("the function") as i32;
    text.replace("FUNCTION", &(-at).to_string())
}

#[test]
fn loops_over_functions_that_are_given_the_stack_are_run_round_by_round() {
    // The rounds, and the stack afterwards, which begins with a number from outside.
    let looped = |count: &str, at: u32, body: &str| {
        placed(&format!(
            "goto main\nbody:\n{body}exit\nmain:\nr6 = *(u32 *)(r1 + 12)\n*(u64 *)(r10 - {at}) = r6\nr1 = {count}\n\
             r3 = r10\nr3 += -{at}\nr4 = 0\nr2 = subprog[FUNCTION]\ncall loop\nr1 = *(u64 *)(r10 - {at})\nr0 *= 256\n\
             r0 += r1\nr0 += r6\nexit"
        ))
    };
    let plain = |rounds: u32, more: u32| {
        format!("r6 = *(u32 *)(r1 + 12)\nr0 = r6\nr0 += {}\nr0 += r6\nexit", 256 * rounds + more)
    };
    let adds = |then: &str| format!("r6 = *(u64 *)(r2 + 0)\nr6 += r1\n*(u64 *)(r2 + 0) = r6\n{then}");
    let all = adds("r0 = 0\n");
    let proven = |a: &str, b: &str| judged("", a, b);
    assert!(proven(&looped("4", 8, &all), &looped("4", 24, &all)));
    assert!(proven(&looped("4", 8, &all), &plain(4, 6)));
    assert!(proven(&looped("0", 8, &all), &plain(0, 0)));
    let to_two = adds("r0 = 0\nif r1 != 2 goto on\nr0 = 1\non:\n");
    assert!(proven(&looped("64", 8, &to_two), &plain(3, 3)));
    // The exit depends on an unknown value.
    let odd = adds("r0 = r6\nr0 &= 1\n");
    let other = odd.replace("r0 = r6\nr0 &= 1", "r0 = r6\nr0 <<= 63\nr0 >>= 63");
    assert!(proven(&looped("5", 8, &odd), &looped("5", 16, &other)));
    for (a, b) in [
        (looped("4", 8, &all), plain(4, 7)),
        (looped("4", 8, &all), plain(5, 6)),
        (looped("4", 8, &all), looped("5", 8, &all)),
        (looped("64", 8, &to_two), plain(2, 3)),
        (looped("5", 8, &odd), looped("5", 8, &all)),
        (looped("5", 8, &odd), looped("6", 8, &odd)),
    ] {
        assert!(!proven(&a, &b), "{a}\n{b}");
    }
    // Too many rounds, and their number is unknown: compared by the effect of an arbitrary round.
    for count in ["65", "r6"] {
        let same = other.replace("r0 <<= 63\nr0 >>= 63", "r0 &= 1");
        assert!(proven(&looped(count, 8, &all), &looped(count, 24, &all)));
        assert!(proven(&looped(count, 8, &odd), &looped(count, 24, &same)));
        for (a, b) in [
            (looped(count, 8, &all), looped(count, 8, &all.replace("r6 += r1", "r6 += 1"))),
            (looped(count, 8, &all), looped(count, 8, &odd)),
            (looped(count, 8, &all), looped("66", 8, &all)),
            // The initial contents.
            (
                looped(count, 8, &all),
                looped(count, 8, &all).replace("*(u64 *)(r10 - 8) = r6", "*(u64 *)(r10 - 8) = 6"),
            ),
            // Not at all changed.
            (looped(count, 8, &all), looped(count, 8, "r0 = 0\n")),
            // Other bytes of it.
            (looped(count, 8, &all), looped(count, 8, &all.replace("(u64 *)", "(u32 *)"))),
            // It may not go round.
            (
                looped(count, 8, "*(u64 *)(r2 + 0) = 5\nr0 = 0\n"),
                looped(count, 8, "*(u64 *)(r2 + 0) = 5\nr0 = 0\n").replace("= r6", "= 5"),
            ),
        ] {
            assert!(!proven(&a, &b), "{a}\n{b}");
        }
    }
}

#[test]
fn the_number_of_a_round_is_not_that_of_a_loop_within_it() {
    // The inner loop is given the number of the outer one's round.
    let nested = |inner: &str| {
        format!(
            "goto main\nr3 = r1\nr1 = 3\nr2 = subprog[5]\nr4 = 0\ncall loop\nr0 &= 1\nexit\n{inner}\nr0 &= 1\nexit\n\
             main:\nr1 = 5\nr3 = 0\nr2 = subprog[-14]\nr4 = 0\ncall loop\nexit"
        )
    };
    assert!(judged("", &nested("r0 = r1"), &nested("w0 = w1")));
    assert!(!judged("", &nested("r0 = r1"), &nested("r0 = r2")));
}

#[test]
fn a_function_that_is_given_the_stack_may_find_pointers_there() {
    // A pointer to the context, and a number behind it, which grows by a field of the program's context.
    let found = |at: u32, pointer: &str, body: &str| {
        placed(&format!(
            "goto main\nbody:\n{body}r0 = 0\nexit\nmain:\nr6 = *(u32 *)(r1 + 12)\nr7 = r1\n\
             *(u64 *)(r10 - {number}) = r6\n\
             *(u64 *)(r10 - 64) = r6\nr8 = {pointer}\n*(u64 *)(r10 - {at}) = r8\nr1 = r6\n\
             r3 = r10\nr3 += -{at}\nr4 = 0\n\
             r2 = subprog[FUNCTION]\ncall loop\nr1 = *(u64 *)(r10 - {number})\nr2 = *(u64 *)(r10 - 64)\n\
             r0 += r1\nr0 += r2\nexit",
            number = at - 8
        ))
    };
    let proven = |a: &str, b: &str| judged("", a, b);
    let grows = "r3 = *(u64 *)(r2 + 0)\nr3 = *(u32 *)(r3 + 16)\nr4 = *(u64 *)(r2 + 8)\nr4 += r3\n\
        *(u64 *)(r2 + 8) = r4\n";
    let other = grows.replace("r4 += r3", "r3 += r4\nr4 = r3");
    assert!(proven(&found(16, "r7", grows), &found(32, "r7", &other)));
    for (a, b) in [
        // Another field, by displacement and by pointer.
        (found(16, "r7", grows), found(16, "r7", &grows.replace("r3 + 16", "r3 + 12"))),
        (found(16, "r7", grows), found(16, "r7", grows).replace("r8 = r7", "r8 = r7\nr8 += 4")),
        // A pointer into the stack is not followed: it changes bytes that are not tracked.
        (
            found(16, "r10", "r3 = *(u64 *)(r2 + 0)\n*(u64 *)(r3 - 64) = 1\n"),
            found(16, "r10", "r3 = *(u64 *)(r2 + 0)\n*(u64 *)(r3 - 64) = 2\n"),
        ),
        (found(16, "r10", "r3 = *(u64 *)(r2 + 0)\n*(u64 *)(r3 - 64) = 1\n"), found(16, "r10", "")),
        // Nor is one that moves on from round to round.
        (
            found(16, "r7", &format!("{grows}r3 = *(u64 *)(r2 + 0)\nr3 += 4\n*(u64 *)(r2 + 0) = r3\n")),
            found(16, "r7", grows),
        ),
    ] {
        assert!(!proven(&a, &b), "{a}\n{b}");
    }
    // Bytes that were never put are unknown, and the same in both.
    let fresh = "*(u64 *)(r2 - 16) = 1\nr3 = *(u64 *)(r2 - 8)\n*(u64 *)(r2 + 8) = r3\n";
    assert!(proven(&found(16, "r7", fresh), &found(32, "r7", fresh)));
    assert!(!proven(&found(16, "r7", fresh), &found(32, "r7", &fresh.replace("r2 - 8", "r2 - 16"))));
}

#[test]
fn functions_that_are_called_for_each_entry_are_compared_on_any() {
    // A count over the values of a map, some of which are set.
    let each = |map: u32, at: u32, body: &str| {
        placed(&format!(
            "goto main\nbody:\n{body}r0 = 0\nexit\nmain:\nr6 = *(u32 *)(r1 + 12)\n\
             *(u64 *)(r10 - {at}) = r6\nr1 = {map} ll\n\
             r3 = r10\nr3 += -{at}\nr4 = 0\nr2 = subprog[FUNCTION]\ncall for_each_map_elem\n\
             r1 = *(u64 *)(r10 - {at})\nr0 += r1\nexit"
        ))
    };
    let proven = |a: &str, b: &str| judged("", a, b);
    let sums = "r6 = *(u32 *)(r3 + 0)\nr7 = *(u64 *)(r4 + 0)\nr7 += r6\n*(u64 *)(r4 + 0) = r7\n*(u8 *)(r3 + 1) = 7\n";
    let turned = sums.replace("r7 += r6", "r6 += r7\nr7 = r6");
    assert!(proven(&each(1, 8, sums), &each(1, 24, &turned)));
    let deletes = "r6 = *(u32 *)(r2 + 0)\nif r6 != 7 goto on\ncall map_delete_elem\non:\n";
    assert!(proven(
        &each(1, 8, deletes),
        &each(1, 16, &deletes.replace("if r6 != 7", "r7 = 7\nif r6 != r7"))
    ));
    for (a, b) in [
        (each(1, 8, sums), each(2, 8, sums)),
        (each(1, 8, sums), each(1, 8, &sums.replace("r3 + 0", "r2 + 0"))),
        (each(1, 8, sums), each(1, 8, &sums.replace("= 7", "= 8"))),
        (each(1, 8, sums), each(1, 8, &sums.replace("r3 + 1", "r3 + 2"))),
        (each(1, 8, sums), each(1, 8, &sums.replace("*(u64 *)(r4 + 0) = r7\n", ""))),
        (each(1, 8, sums), each(1, 8, &format!("{sums}r0 = 1\nexit\n"))),
        (each(1, 8, deletes), each(1, 8, &deletes.replace("7", "8"))),
        (each(1, 8, deletes), each(1, 8, "")),
    ] {
        assert!(!proven(&a, &b), "{a}\n{b}");
    }
    // Twice is not once, and a value read afterwards is not the earlier one.
    let looked_up = "*(u64 *)(r10 - 64) = 0\n*(u64 *)(r10 - 56) = 0\n*(u64 *)(r10 - 48) = 0\n\
         *(u64 *)(r10 - 40) = 0\nr1 = 1 ll\n\
         r2 = r10\nr2 += -64\ncall map_lookup_elem\nif r0 == 0 goto out\nr6 = *(u8 *)(r0 + 1)\n";
    let around = |first: &str, last: &str| {
        let a = each(1, 8, sums);
        let a =
            a.replace("r1 = 1 ll\nr3", &format!("{first}r1 = 1 ll\nr3")).replace("\nexit", "\nout:\nexit");
        let at = a.rfind("out:\nexit").expect("its end");
        format!("{}{last}r0 = r6\nout:\nexit", &a[..at].replace("out:\n", ""))
    };
    assert!(!proven(&around("", looked_up), &around(looked_up, "")));
    assert!(proven(&around("", looked_up), &around("", looked_up)));
}

#[test]
fn the_function_of_a_timer_is_part_of_what_a_program_does() {
    let zeros: String = [32, 24, 16, 8].map(|at| format!("*(u64 *)(r10 - {at}) = 0\n")).concat();
    let timed = |at: u32, body: &str| {
        placed(&format!(
            "goto main\nbody:\n{body}r0 = 0\nexit\nmain:\n{zeros}r1 = 1 ll\nr2 = r10\nr2 += -32\ncall map_lookup_elem\n\
             if r0 == 0 goto out\nr1 = r0\nr1 += {at}\nr2 = subprog[FUNCTION]\n\
             call timer_set_callback\nout:\nr0 = 2\nexit"
        ))
    };
    let proven = |a: &str, b: &str| judged("", a, b);
    let counts = "r4 = *(u32 *)(r3 + 0)\nr4 += 1\n*(u32 *)(r3 + 0) = r4\n";
    assert!(proven(&timed(0, counts), &timed(0, &counts.replace("r4 += 1", "r5 = 1\nr4 += r5"))));
    for (a, b) in [
        (timed(0, counts), timed(0, &counts.replace("r4 += 1", "r4 += 2"))),
        (timed(0, counts), timed(0, "")),
        (timed(0, counts), timed(8, counts)),
        (timed(0, counts), timed(0, counts).replace("call timer_set_callback\n", "")),
        (timed(0, counts), timed(0, &format!("call map_delete_elem\n{counts}"))),
    ] {
        assert!(!proven(&a, &b), "{a}\n{b}");
    }
}

#[test]
fn loops_over_functions_that_do_the_same_do_the_same() {
    let looked_up = |then: &str| {
        let zeros: String = [32, 24, 16, 8].map(|at| format!("*(u64 *)(r10 - {at}) = 0\n")).concat();
        format!("r1 = 1 ll\n{zeros}r2 = r10\nr2 += -32\ncall map_lookup_elem\nif r0 == 0 goto {then}")
    };
    let program = |before: &str, given: &str, body: &str| {
        format!(
            "goto main\nbody:\n{body}exit\nmain:\nr6 = *(u32 *)(r1 + 12)\n{before}r1 = r6\nr3 = {given}\nr4 = 0\n\
             r2 = subprog[FUNCTION]\ncall loop\nout:\nexit"
        )
    };
    let proven = |a: &str, b: &str| judged("", &placed(a), &placed(b));
    let plain = |given: &str, body: &str| program("", given, body);
    let zero = plain("0", "r0 = 0\n");
    assert!(proven(&zero, &plain("0", "w0 = 0\n")));
    assert!(proven(&plain("r6", "r0 = r2\nr0 &= 1\n"), &plain("r6", "r0 = r2\nr0 <<= 63\nr0 >>= 63\n")));
    let written = |value: u32| {
        plain(
            "0",
            &format!("{}*(u8 *)(r0 + 0) = {value}\nr0 = 0\nexit\nnone:\nr0 = 1\n", looked_up("none\n")),
        )
    };
    assert!(proven(&written(7), &written(7).replace("r0 = 0\nexit", "w0 = 0\nexit")));
    for (a, b) in [
        (zero.clone(), plain("0", "r0 = 1\n")),
        (zero.clone(), plain("0", "r0 = r1\nr0 &= 1\n")),
        (zero.clone(), zero.replace("r1 = r6", "r1 = 5")),
        (plain("r6", "r0 = r2\nr0 &= 1\n"), plain("0", "r0 = r2\nr0 &= 1\n")),
        (written(7), written(8)),
        (zero.clone(), written(7)),
    ] {
        assert!(!proven(&a, &b), "{a}\n{b}");
    }
    // Facts before the loop need not hold in its second round.
    let known = format!("{}r0 = *(u8 *)(r0 + 0)\nif r0 != 5 goto out\n", looked_up("out\n"));
    let asks = format!(
        "{}r1 = *(u8 *)(r0 + 0)\n*(u8 *)(r0 + 0) = 6\nr0 = 0\nif r1 == 5 goto done\nr0 = 1\n\
         done:\nexit\nnone:\nr0 = 0\n",
        looked_up("none\n")
    );
    let (asked, never) =
        (program(&known, "0", &asks), program(&known, "0", &asks.replace("r0 = 1\n", "r0 = 0\n")));
    assert!(!proven(&asked, &never));
    assert!(proven(&asked, &asked.replace("r4 = 0", "w4 = 0")));
}

#[test]
fn a_value_of_a_map_does_not_lie_on_the_stack() {
    let zeros: String = [64, 56, 48, 40].map(|at| format!("*(u64 *)(r10 - {at}) = 0\n")).concat();
    let asked = |other: &str| {
        format!(
            "r6 = *(u32 *)(r1 + 12)\n{zeros}r1 = 1 ll\nr2 = r10\nr2 += -64\ncall map_lookup_elem\nr7 = r0\n\
             *(u64 *)(r10 - 64) = r6\nr1 = 1 ll\nr2 = r10\nr2 += -64\ncall map_lookup_elem\nif r0 == 0 goto out\n\
             if r7 == 0 goto out\nr8 = r10\nr8 += -32\nr9 = {other}\nr0 = 3\nif r7 == r9 goto out\nr0 = 4\nout:\nexit"
        )
    };
    let never = asked("r8").replace("if r7 == r9 goto out\n", "");
    assert!(judged("", &asked("r8"), &never));
    assert!(judged("", &asked("r8"), &asked("r10").replace("r0 = 3", "r9 += -8\nr0 = 3")));
    // Another value may be the same, and nobody knows an address.
    for other in ["r0", "r6", "r7"] {
        assert!(!judged("", &asked(other), &never), "{other}");
    }
}

/// An object with one program whose last load has a displacement that a loader sets: the offset of the field
/// that `access` names, in an object of `count` words.
fn relocated(text: &str, access: &str, count: u32) -> (Object, FuncId) {
    let (mut object, func) = object(ProgramType::XDP, text);
    let mut btf = BtfBuilder::new();
    let (word, access) = (btf.int("word", 4, false), btf.string(access));
    let members = (0..count)
        .map(|n| Member { name: btf.string(&format!("f{n}")), ty: word, bit_offset: 32 * n, bit_size: 0 })
        .collect();
    let words = Composite { size: 4 * count, bit_fields: false, members };
    let type_id = btf.add("words", TypeKind::Struct(words));
    object.btf = Some(Btf::parse(&btf.write().expect("types")).expect("our own types"));
    let f = &mut object.functions[func.0 as usize];
    let insn = f.insns.iter().rposition(|raw| raw.code == 0x61).expect("a load of a word") as u32;
    f.core_relos.push(CoreRelo { insn, type_id, access, kind: CoreKind::FieldByteOffset });
    (object, func)
}

#[test]
fn a_relocated_load_of_the_stack_stays_within_its_object() {
    let read = |at: i32, first: u32, second: u32| {
        format!(
            "r{first} = *(u32 *)(r1 + 12)\nr{second} = *(u32 *)(r1 + 16)\n*(u64 *)(r10 - 8) = {at}\n\
             *(u32 *)(r10 - {}) = r2\n*(u32 *)(r10 - {at}) = r3\nr4 = r10\nr4 += -{at}\nr0 = *(u32 *)(r4 + 4)\nexit",
            at - 4
        )
    };
    let same = |a: &str, b: &str, [access, other]: [&str; 2], count: u32| {
        let ((a, f), (b, g)) = (relocated(a, access, count), relocated(b, other, count));
        prove((&a, f), (&b, g), None, &ProofLimits::default()).verdict == ProofVerdict::Equivalent
    };
    let (plain, moved, turned) = (read(16, 2, 3), read(24, 2, 3), read(24, 3, 2));
    assert!(same(&plain, &moved, ["0:1"; 2], 2));
    // Another field, an object that is not the first, an object of which half was never written.
    assert!(!same(&plain, &moved, ["0:1", "0:0"], 2));
    assert!(!same(&plain, &moved, ["1:1"; 2], 2));
    assert!(!same(&plain, &moved, ["0:1"; 2], 4));
    assert!(!same(&plain, &turned, ["0:1"; 2], 2));
    // If the object is not aligned, the field is.
    let odd = plain.replace("r4 += -16", "r4 += -18");
    assert!(same(&odd, &odd.replace("r4 +=", "r5 = 1\nr4 +="), ["0:1"; 2], 2));
    assert!(!same(&odd, &plain, ["0:1"; 2], 2));
}

#[test]
fn bits_that_were_found_to_be_zero_are_stored_as_zero() {
    let kind = ProgramType::XDP;
    let stored = |tested: u32, value: &str| {
        format!(
            "r8 = *(u32 *)(r1 + 12)\nr2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr4 = r2\nr4 += 64\nr0 = 0\n\
             if r4 > r3 goto out\nif r8 < 7 goto on\nr5 = *(u8 *)(r2 + 3)\nr6 = r5\nr6 &= 48\nr7 = r5\nr5 &= {tested}\n\
             if r5 != 0 goto out\n{value}*(u8 *)(r2 + 9) = r5\non:\nr0 = *(u8 *)(r2 + 9)\n\
             if r0 == 4 goto out\nr0 = 5\nout:\nexit"
        )
    };
    let plain = stored(32, "");
    assert!(equivalent(kind, &plain, &stored(32, "r5 = 0\n"), &by_steps()));
    for other in ["r5 = 1\n", "r5 = r6\n", "r5 = r7\n", "r5 = 32\n"] {
        assert!(!equivalent(kind, &plain, &stored(32, other), &by_steps()), "{other}");
    }
    assert!(!equivalent(kind, &plain, &stored(16, "r5 = 0\n"), &by_steps()));
}
