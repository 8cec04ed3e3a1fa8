use std::sync::Arc;
use std::time::Duration;

use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram};
use millstream_interp::{ContextKind as Kind, MachineState as Host};
use millstream_isa::asm::assemble;
use millstream_isa::{Insn, MapType, decode_all, encode_all};
use millstream_object::{Linkage, NewFunction, ObjectFunction};

use crate::ablation::{SearchAblation, SearchEngine};
use crate::code::FunctionCode;
use crate::driver::{ImprovedFunction, Superoptimizer};
use crate::facts::{ContextType, FunctionContext, MapSizes};
use crate::machine::SearchRng;
use crate::options::{SearchBudget, SearchOptions};
use crate::rules::{PeepholeRule, PeepholeRuleSet};
use crate::window::{FunctionAnalysis, InsnWindow, WindowSpan, cut};
use millstream_bpf::cost::OptimizationGoal;
use millstream_prove::Solver;
use millstream_prove::window::{WindowProver, WindowVerdict};

/// Two pointers into a packet of 64 bytes that was checked, then the body.
const CHECKED: &str = "r2 = *(u32 *)(r1 +4)\nr6 = *(u32 *)(r1 +0)\nr3 = r6\nr3 += 64\nif r3 > r2 goto out\n";

fn code(body: &str) -> FunctionCode {
    let text = format!("{CHECKED}{body}\nexit\nout:\nr0 = 0\nexit\n");
    let insns = assemble(&text).expect("it assembles");
    function(&insns)
}

fn function(insns: &[Insn]) -> FunctionCode {
    let f = ObjectFunction {
        name: "f".into(),
        section: "xdp".into(),
        start: 0,
        linkage: Linkage::Global,
        subprogram: false,
        insns: encode_all(insns),
        relocs: Vec::new(),
        type_id: None,
        line_info: Vec::new(),
        core_relos: Vec::new(),
        removed: false,
        kept: None,
        hidden: false,
    };
    FunctionCode::new(&f).expect("it has blocks")
}

fn world() -> FunctionContext {
    let map = MapSizes { kind: MapType::HASH, key: 4, value: 8 };
    FunctionContext { context: ContextType::Xdp, program: true, maps: vec![map], found: Default::default() }
}

fn options(goal: OptimizationGoal, jobs: usize) -> SearchOptions {
    SearchOptions {
        goal,
        isa: 3,
        jobs,
        seed: 7,
        solver: None,
        without: Vec::new(),
        rules: Default::default(),
        learn: false,
        keep: 0,
    }
}

fn improve(code: &FunctionCode, goal: OptimizationGoal, rounds: usize) -> ImprovedFunction {
    let mut search = Superoptimizer::new(options(goal, 2));
    let budget = SearchBudget { rounds, ..SearchBudget::of(Duration::from_secs(120)) };
    search.improve_code(code.clone(), world(), &budget, &mut |_| true).expect("it can be read")
}

fn text(f: &NewFunction) -> Vec<String> {
    decode_all(&f.insns).expect("it decodes").into_iter().map(|(_, i)| i.to_string()).collect()
}

/// Result for a body after so many rounds.
fn becomes(body: &str, goal: OptimizationGoal, rounds: usize) -> (Vec<String>, ImprovedFunction) {
    let improved = improve(&code(body), goal, rounds);
    let lines = text(&improved.function);
    let body = lines[5..lines.len() - 3].to_vec();
    (body, improved)
}

#[test]
fn a_constant_is_stored_without_a_register() {
    let (body, _) = becomes("r1 = 0\n*(u32 *)(r6 +4) = r1\nr0 = 1", OptimizationGoal::Size, 1);
    assert_eq!(body.len(), 2, "{body:?}");
    assert!(body.iter().any(|l| l.starts_with("*(u32 *)(r6 +4) = 0")), "{body:?}");
}

#[test]
fn neighbouring_stores_become_one() {
    let body = "r4 = *(u16 *)(r6 +30)\n*(u8 *)(r6 +4) = r4\nr4 >>= 8\n*(u8 *)(r6 +5) = r4\nr0 = 1";
    let (body, _) = becomes(body, OptimizationGoal::Balanced, 3);
    // The code before it may become shorter, too, if the search addresses the packet by its end.
    assert!(body.len() <= 3, "{body:?}");
}

/// K2, appendix G: `memcpy` of six bytes, one by one.
#[test]
fn a_copy_of_six_bytes_takes_two_loads_and_two_stores() {
    let mut text = String::new();
    for at in [4, 2, 0] {
        text += &format!("r1 = *(u16 *)(r6 +{})\n*(u8 *)(r6 +{at}) = r1\n", at + 40);
        text += &format!("r1 >>= 8\n*(u8 *)(r6 +{}) = r1\n", at + 1);
    }
    let (body, _) = becomes(&(text + "r0 = 1"), OptimizationGoal::Size, 8);
    assert!(body.len() <= 7, "{body:?}");
}

/// K2, section 9: the known range of `r3` makes a mask a truncation.
#[test]
fn a_mask_that_is_known_goes() {
    let body = "r2 = *(u64 *)(r6 +0)\nr3 = 0xffe00000\nr0 = r2\nr0 &= r3\nr0 >>= 21";
    let (body, _) = becomes(body, OptimizationGoal::Size, 6);
    assert!(body.len() <= 3, "{body:?}");
}

#[test]
fn what_is_known_of_a_register_is_not_computed_again() {
    let (body, _) =
        becomes("r0 = *(u16 *)(r6 +0)\nr0 &= 65535\nr1 = r0\nr0 = r1", OptimizationGoal::Balanced, 2);
    assert_eq!(body, ["r0 = *(u16 *)(r6 +0)"]);
}

#[test]
fn upper_halves_that_nobody_looks_at_do_not_count() {
    let (body, _) =
        becomes("r0 = *(u32 *)(r6 +0)\nr0 <<= 32\nr0 >>= 32\nr0 += 3", OptimizationGoal::Balanced, 2);
    assert_eq!(body.len(), 2, "{body:?}");
}

/// A map's value: `r0` is not null where the window begins.
const VALUE: &str =
    "*(u32 *)(r10 -4) = 0\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\ncall map_lookup_elem#1\nif r0 == 0 goto out\n";

fn counter() -> FunctionCode {
    let text = format!("{VALUE}r1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\nout:\nr0 = 2\nexit\n");
    let insns = assemble(&text).expect("it assembles");
    let mut code = function(&insns);
    for line in code.blocks.iter_mut().flat_map(|b| &mut b.lines) {
        if matches!(line.insn, Insn::LoadImm64 { .. }) {
            line.reloc = Some(millstream_object::RelocKind::Map(millstream_object::MapId(0)));
        }
    }
    code
}

#[test]
fn an_atomic_sum_is_for_size_only() {
    let locked = |goal| {
        let improved = improve(&counter(), goal, 4);
        text(&improved.function).iter().any(|l| l.starts_with("lock"))
    };
    assert!(locked(OptimizationGoal::Size));
    assert!(!locked(OptimizationGoal::Balanced));
    assert!(!locked(OptimizationGoal::Latency));
}

#[test]
fn packets_are_not_summed_into_atomically() {
    let body = "r1 = *(u32 *)(r6 +0)\nr1 += 1\n*(u32 *)(r6 +0) = r1\nr0 = 1";
    let (body, _) = becomes(body, OptimizationGoal::Size, 4);
    assert!(body.iter().all(|l| !l.starts_with("lock")), "{body:?}");
}

#[test]
fn no_byte_is_read_that_was_not() {
    // One load of eight bytes would do, if the ninth byte on the way were known to be there.
    let body = "r1 = *(u8 *)(r6 +0)\nr2 = *(u8 *)(r6 +2)\nr2 <<= 16\nr1 |= r2\nr0 = r1";
    let (body, _) = becomes(body, OptimizationGoal::Size, 6);
    assert!(body.iter().all(|l| !l.contains("u32") && !l.contains("u64")), "{body:?}");
}

#[test]
fn the_stack_is_read_and_written_aligned() {
    let body = "r1 = *(u16 *)(r6 +0)\n*(u16 *)(r10 -6) = r1\nr1 = *(u16 *)(r6 +2)\n*(u16 *)(r10 -4) = r1\n\
                r0 = *(u16 *)(r10 -6)\nr2 = *(u16 *)(r10 -4)\nr0 += r2";
    let (body, _) = becomes(body, OptimizationGoal::Size, 5);
    for line in body.iter().filter(|l| l.contains("u32")) {
        assert!(!line.contains("r10 -6"), "{line}");
    }
}

#[test]
fn a_load_stays_behind_its_check() {
    let improved = improve(&code("r0 = *(u8 *)(r6 +63)"), OptimizationGoal::Size, 5);
    let lines = text(&improved.function);
    let check = lines.iter().position(|l| l.starts_with("if")).expect("the check stays");
    let load = lines.iter().position(|l| l.contains("+63")).expect("the load stays");
    assert!(check < load, "{lines:?}");
}

#[test]
fn pointers_are_compared_and_moved_in_64_bits() {
    let improved = improve(
        &code("r0 = *(u8 *)(r6 +1)\nr3 = r6\nr3 += 8\nr0 = *(u8 *)(r3 +0)"),
        OptimizationGoal::Size,
        5,
    );
    for line in text(&improved.function) {
        assert!(!line.contains("w6") && !line.contains("if w3"), "{line}");
    }
}

#[test]
fn a_branch_that_ends_a_window_is_made_shorter_but_for_old_kernels() {
    let body = "r0 = *(u16 *)(r6 +0)\nif r0 == 7 goto out";
    let (new, _) = becomes(body, OptimizationGoal::Balanced, 1);
    assert!(new.iter().any(|l| l.starts_with("if w0 == 0x7")), "{new:?}");
    let mut search = Superoptimizer::new(SearchOptions { isa: 2, ..options(OptimizationGoal::Balanced, 1) });
    let budget = SearchBudget { rounds: 1, ..SearchBudget::of(Duration::from_secs(60)) };
    let old = search.improve_code(code(body), world(), &budget, &mut |_| true).expect("it can be read");
    assert!(text(&old.function).iter().all(|l| !l.contains("if w")), "{:?}", text(&old.function));
}

const MIXED: &str = "r1 = *(u16 *)(r6 +0)\nr2 = *(u16 *)(r6 +6)\n*(u16 *)(r6 +0) = r2\nr2 = *(u16 *)(r6 +8)\n\
                     r3 = *(u16 *)(r6 +2)\n*(u16 *)(r6 +8) = r3\n*(u16 *)(r6 +2) = r2\nr4 = r1\nr4 &= 255\nr0 = r4\n\
                     *(u16 *)(r6 +6) = r1\nr0 += 0\nr0 <<= 2\nr0 >>= 1";

#[test]
fn the_same_seed_gives_the_same_result_with_any_number_of_threads() {
    let run = |jobs, seed| {
        let mut search = Superoptimizer::new(SearchOptions { seed, ..options(OptimizationGoal::Size, jobs) });
        let budget = SearchBudget { rounds: 6, ..SearchBudget::of(Duration::from_secs(120)) };
        let improved = search.improve_code(code(MIXED), world(), &budget, &mut |_| true);
        text(&improved.expect("it can be read").function)
    };
    assert_eq!(run(1, 3), run(2, 3));
    assert_eq!(run(2, 3), run(2, 3));
}

/// Engines that find something when some parts are switched off.
fn found_without(without: &[&str], body: &str, rounds: usize) -> Vec<SearchEngine> {
    let without = without.iter().map(|name| name.parse().expect("a part")).collect();
    let mut search = Superoptimizer::new(SearchOptions { without, ..options(OptimizationGoal::Size, 2) });
    let budget = SearchBudget { rounds, ..SearchBudget::of(Duration::from_secs(120)) };
    let improved = search.improve_code(code(body), world(), &budget, &mut |_| true).expect("it can be read");
    improved.found.iter().map(|f| f.engine).collect()
}

#[test]
fn each_engine_finds_something_by_itself() {
    let alone = [
        (SearchEngine::Neighbourhood, ["store", "enumeration", "chains"]),
        (SearchEngine::Enumeration, ["store", "neighbourhood", "chains"]),
        (SearchEngine::Chain, ["store", "neighbourhood", "enumeration"]),
    ];
    for (engine, others) in alone {
        let found = found_without(&others, MIXED, 8);
        assert!(!found.is_empty() && found.iter().all(|e| *e == engine), "{engine:?}: {found:?}");
    }
}

#[test]
fn what_was_found_is_found_again_in_the_store() {
    let like = |at: usize| format!("r1 = *(u16 *)(r6 +{at})\nr1 &= 65535\n*(u16 *)(r6 +{}) = r1\n", at + 2);
    // So far apart that they are not worked on at the same time.
    let between: String =
        (0..30).map(|n| format!("r0 = *(u8 *)(r6 +{n})\n*(u8 *)(r6 +{n}) = r0\n")).collect();
    let body = format!("{}{between}{}r0 = 1", like(80), like(90));
    assert!(found_without(&["chains"], &body, 2).contains(&SearchEngine::Store));
    assert!(!found_without(&["chains", "store"], &body, 2).contains(&SearchEngine::Store));
}

#[test]
fn a_chain_without_rules_finds_nothing() {
    let mut without = vec!["store", "neighbourhood", "enumeration"];
    without.extend(SearchAblation::RULES);
    assert!(found_without(&without, MIXED, 8).is_empty());
}

#[test]
fn what_the_caller_refuses_is_taken_back() {
    let mut search = Superoptimizer::new(options(OptimizationGoal::Size, 1));
    let budget = SearchBudget { rounds: 3, ..SearchBudget::of(Duration::from_secs(60)) };
    let mut refuses = |f: &NewFunction| text(f).iter().any(|l| l.contains("r1 = 0"));
    let body = "r1 = 0\n*(u32 *)(r6 +4) = r1\nr0 = *(u16 *)(r6 +8)\nr0 &= 65535";
    let improved = search.improve_code(code(body), world(), &budget, &mut refuses).expect("it can be read");
    let lines = text(&improved.function);
    assert!(lines.iter().any(|l| l.contains("r1 = 0")) && improved.tally.refused > 0, "{lines:?}");
    assert!(!lines.iter().any(|l| l.contains("65535")), "what is to blame goes, the rest stays: {lines:?}");
}

#[test]
fn nothing_is_done_without_time() {
    let mut search = Superoptimizer::new(options(OptimizationGoal::Size, 2));
    let improved = search
        .improve_code(code("r0 = 1\nr0 = 1"), world(), &SearchBudget::of(Duration::ZERO), &mut |_| true)
        .expect("it can be read");
    assert!(improved.found.is_empty() && improved.before == improved.after);
}

/// A line of a random body: on numbers, the packet, the stack.
fn random_line(r: &mut SearchRng) -> String {
    let reg = |r: &mut SearchRng| ["r0", "r1", "r2", "r4", "r5"][r.below(5)];
    let half = |r: &mut SearchRng| ["w0", "w1", "w2", "w4", "w5"][r.below(5)];
    let op = ["+=", "-=", "&=", "|=", "^=", "*="][r.below(6)];
    let shift = ["<<=", ">>=", "s>>="][r.below(3)];
    let imm = [0, 1, 2, 7, 8, 255, 65535, -1, 16][r.below(9)];
    let size = ["u8", "u16", "u32", "u64"][r.below(4)];
    match r.below(10) {
        0 => format!("{} = {}", reg(r), reg(r)),
        1 => format!("{} = {imm}", reg(r)),
        2 => format!("{} {op} {imm}", reg(r)),
        3 => format!("{} {op} {}", half(r), half(r)),
        4 => format!("{} {shift} {}", reg(r), r.below(64)),
        5 => format!("{} {op} {}", reg(r), reg(r)),
        6 => format!("{} = *({size} *)(r6 +{})", reg(r), r.below(4) * 2),
        7 => format!("*({size} *)(r6 +{}) = {}", r.below(4) * 2, reg(r)),
        8 => format!("*(u32 *)(r10 -{}) = {}", 4 + 4 * r.below(2), reg(r)),
        _ => format!("{} = *(u32 *)(r10 -{})", reg(r), 4 + 4 * r.below(2)),
    }
}

fn run(insns: &[millstream_isa::RawInsn], packet: &[u8]) -> (u64, Vec<u8>) {
    let program = DecodedProgram::new(insns).expect("it decodes");
    let mut host = Host::new(Kind::Xdp);
    host.reset(packet);
    let result = BytecodeInterpreter::new(&[program]).run_context(&mut host, 0).expect("it runs");
    let at = host.packet_address();
    let bytes = host.bytes(at, packet.len() as u64, false).expect("the packet is there").to_vec();
    (result & 0xffff_ffff, bytes)
}

/// 100,000 runs of random code before and after, by an interpreter that shares nothing with the search except
/// the description of instructions.
#[test]
fn random_code_does_what_it_did() {
    let mut r = SearchRng::new(99);
    let mut changed = 0;
    for n in 0..50 {
        let mut body = String::from(
            "r0 = 1\nr1 = 2\nr2 = *(u64 *)(r6 +8)\nr4 = *(u32 *)(r6 +16)\nr5 = 5\n*(u64 *)(r10 -8) = r5\n",
        );
        for _ in 0..12 {
            body += &random_line(&mut r);
            body.push('\n');
        }
        let before = code(&(body.clone() + "r0 += r4\nr0 ^= r2"));
        let improved = improve(&before, OptimizationGoal::ALL[n % 4], 3);
        changed += usize::from(!improved.found.is_empty());
        let old = before.function().insns;
        for _ in 0..2000 {
            let packet: Vec<u8> = (0..64)
                .map(|_| if r.below(3) == 0 { r.next() as u8 } else { 0xff * (r.below(2) as u8) })
                .collect();
            assert_eq!(
                run(&old, &packet),
                run(&improved.function.insns, &packet),
                "{body}\n{:#?}",
                improved.found
            );
        }
    }
    assert!(changed > 40, "only {changed} were changed");
}

#[test]
fn the_control_block_of_a_socket_buffer_is_cleared_in_wide_stores() {
    for value in ["r0", "0"] {
        let mut body = "r6 = r1\nr0 = 0\n".to_owned();
        for at in [48, 52, 56, 60, 64] {
            body += &format!("*(u32 *)(r6 +{at}) = {value}\n");
        }
        let code = function(&assemble(&(body + "exit")).expect("it assembles"));
        let mut search = Superoptimizer::new(options(OptimizationGoal::Size, 2));
        let budget = SearchBudget { rounds: 4, ..SearchBudget::of(Duration::from_secs(60)) };
        let world = FunctionContext { context: ContextType::Skb, ..world() };
        let improved = search.improve_code(code, world, &budget, &mut |_| true).expect("it can be read");
        let lines = text(&improved.function);
        assert!(lines.len() <= 6, "{lines:?}");
    }
}

/// A store of rules written by hand.
fn store(rules: &str) -> PeepholeRuleSet {
    PeepholeRuleSet::parse_unsealed("s", &format!("; millstream window rules, format 1\n{rules}\n"))
        .expect("rules")
}

/// A body after the rules alone, and the rules that were applied.
fn by_rules(rules: &str, body: &str) -> (Vec<String>, Vec<String>) {
    let rules = store(rules);
    let without =
        SearchAblation::all().filter(|p| *p != SearchAblation::Engine(SearchEngine::Rules)).collect();
    let options = SearchOptions { rules: Arc::new(rules), without, ..options(OptimizationGoal::Balanced, 1) };
    let budget = SearchBudget { rounds: 1, ..SearchBudget::of(Duration::from_secs(60)) };
    let improved = Superoptimizer::new(options).improve_code(code(body), world(), &budget, &mut |_| true);
    let improved = improved.expect("it can be read");
    assert!(improved.found.iter().all(|f| f.engine == SearchEngine::Rules));
    let lines = text(&improved.function);
    (lines[5..lines.len() - 3].to_vec(), improved.found.into_iter().filter_map(|f| f.rule).collect())
}

/// Two stores of one number become one of twice the size, at any place and with any constant.
const PAIR: &str = "*(u32 *)(r0 +0) = {a}; *(u32 *)(r0 +4) = 0 => *(u64 *)(r0 +0) = {a} @ a:[0x0,0x7fffffff] \
    r0:p0.0+0 @ r0 @ here, fires 0";

#[test]
fn a_rule_is_applied_with_other_registers_constants_and_displacements() {
    let (body, fired) = by_rules(PAIR, "*(u32 *)(r6 +24) = 77\n*(u32 *)(r6 +28) = 0\nr0 = 1");
    assert_eq!(body, ["*(u64 *)(r6 +24) = 77", "r0 = 1"]);
    assert_eq!(fired, [PAIR]);
    for other in [
        "*(u32 *)(r6 +24) = -77\n*(u32 *)(r6 +28) = 0\nr0 = 1",
        "*(u32 *)(r6 +24) = 77\n*(u32 *)(r6 +32) = 0\nr0 = 1",
        "*(u32 *)(r6 +24) = 77\n*(u32 *)(r6 +28) = 1\nr0 = 1",
    ] {
        assert!(by_rules(PAIR, other).1.is_empty(), "{other}");
    }
}

#[test]
fn a_rule_is_applied_only_where_what_it_needs_is_known_and_what_it_breaks_is_not_looked_at() {
    let rule = "r0 &= 255; w1 = w0 => w1 = w0 @ r0:n0[0x0,0xff] @ r1 @ here, fires 0";
    let known = "r0 = *(u8 *)(r6 +0)\nr0 &= 255\nw1 = w0\nr0 = r1";
    assert_eq!(by_rules(rule, known).1.len(), 1);
    assert!(by_rules(rule, &known.replace("u8", "u16")).1.is_empty(), "less is known");
    assert!(by_rules(rule, &known.replace("r0 = r1", "r0 += r1")).1.is_empty(), "r0 is looked at");
}

#[test]
fn a_wrong_rule_changes_nothing_and_is_not_proven() {
    let rule = PAIR.replace("= 0 =>", "= 1 =>");
    assert!(by_rules(&rule, "*(u32 *)(r6 +24) = 77\n*(u32 *)(r6 +28) = 1\nr0 = 1").1.is_empty());
    let rules = store(&rule);
    let mut prover = WindowProver::new(None, Duration::from_secs(1));
    assert_ne!(rules.rules()[0].prove(&mut prover), WindowVerdict::Equal);
}

#[test]
fn what_is_no_rule_is_refused_with_its_line() {
    for line in [
        "r0 = {b} =>  @ a:[0x0,0x1] @ r0 @ x, fires 0",
        "r0 = {a + 1} => r0 = {a + 1} @ a:[0x0,0x1] @ r0 @ x, fires 0",
        "r0 = 1 => r0 = 1 @ @ r0",
        "nonsense",
    ] {
        let text = format!("; millstream window rules, format 1\n\n{line}\n");
        let error = PeepholeRuleSet::parse_unsealed("team.rules", &text).expect_err(line).to_string();
        assert!(error.starts_with("team.rules:3: no rule of windows"), "{error}");
    }
}

#[test]
fn a_damaged_store_is_refused() {
    let text = store(PAIR).text();
    assert_eq!(PeepholeRuleSet::parse("s", &text).expect("a store").text(), text);
    for (damaged, why) in [
        (text.replace("+4) = 0", "+4) = 1"), "checksum"),
        (text[..text.len() - 9].to_owned(), "checksum"),
        (text.replace("format 1", "format 7"), "format 7 is not known"),
        (String::new(), "its first line should begin with"),
    ] {
        let error = PeepholeRuleSet::parse("s", &damaged).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// The window of exactly so many lines at a place.
fn window(code: &FunctionCode, (block, line): (usize, usize), count: usize) -> Option<InsnWindow> {
    let mut world = world();
    let facts = crate::facts::analyze(code, &mut world);
    let looked = crate::liveness::analyze(code, &facts, &world);
    let world = Arc::new(world);
    let analysis = FunctionAnalysis { code, world: &world, facts: &facts, looked: &looked };
    cut(&analysis, WindowSpan { block, line, count, exact: true })
}

/// The live bytes of the stack after a window of all lines of a body but the last.
fn looked_at_on_the_stack(body: &str) -> Vec<i16> {
    window(&code(body), (1, 0), body.lines().count() - 1).expect("a window").place.end.stack
}

/// A place that was valid before its block became shorter.
#[test]
fn a_window_behind_the_end_of_its_block_begins_where_the_chain_goes_on() {
    let code = code("r0 = 1\nif r3 == 7 goto out\nr0 = 2\nr4 = 3 ll\nr0 += r4");
    let behind = window(&code, (1, 5), 2).expect("a window");
    let there = window(&code, (2, 0), 2).expect("a window");
    assert_eq!((behind.span.block, behind.span.line), (2, 0));
    assert_eq!((&behind.steps, &behind.state), (&there.steps, &there.state));
    assert_eq!(code.slot(behind.span.block, behind.span.line), 7);
    assert_eq!(code.slot(2, 2), 10, "a 64-bit constant takes two slots");
    assert!(window(&code, (3, 9), 1).is_none(), "no chain leads out of the last block");
}

#[test]
fn what_is_stored_through_computed_and_reloaded_addresses_of_the_stack_is_looked_at() {
    for address in [
        "r2 = r10\nr2 += -8",
        "r1 = -8\nr2 = r10\nr2 += r1",
        "r1 = r10\nr1 += -8\n*(u64 *)(r10 -16) = r1\nr2 = *(u64 *)(r10 -16)",
    ] {
        let body = format!("{address}\n*(u64 *)(r2 +0) = 7\nr0 = *(u64 *)(r10 -8)");
        assert_eq!(looked_at_on_the_stack(&body), (-8..0).collect::<Vec<i16>>(), "{address}");
    }
}

/// A replacement found once is learnt for all registers, displacements and constants, with as few required
/// facts as possible.
#[test]
fn a_rule_is_learnt_from_what_is_found() {
    let mut search =
        Superoptimizer::new(SearchOptions { learn: true, ..options(OptimizationGoal::Balanced, 1) });
    let budget = SearchBudget { rounds: 2, ..SearchBudget::of(Duration::from_secs(60)) };
    let body = "*(u32 *)(r6 +24) = 7\n*(u32 *)(r6 +28) = 0\nr0 = 1";
    search.improve_code(code(body), world(), &budget, &mut |_| true).expect("it can be read");
    let mut prover = WindowProver::new(None, Duration::from_secs(1));
    let rules: Vec<PeepholeRule> =
        search.take_rule_candidates().iter().filter_map(|l| l.rule("here", &mut prover)).collect();
    assert!(!rules.is_empty());
    for rule in &rules {
        assert_eq!(rule.prove(&mut prover), WindowVerdict::Equal, "{rule}");
        let mut named = rule.clone();
        named.name = "s:2".into();
        assert_eq!(store(&rule.to_string()).rules(), [named]);
    }
    let all = PeepholeRuleSet::new(rules).text();
    let (_, body) = all.split_once('\n').expect("lines");
    let (lines, _) = by_rules(body, "*(u32 *)(r6 +8) = 99\n*(u32 *)(r6 +12) = 0\nr0 = 1");
    assert_eq!(lines, ["*(u64 *)(r6 +8) = 99", "r0 = 1"], "{all}");
}

/// A body after seven rounds with a solver and without some parts, and the engines that found something.
fn with_solver(without: &[SearchAblation], body: &str) -> (Vec<String>, Vec<SearchEngine>) {
    let solver = Some(Solver::new("z3"));
    let options = SearchOptions { solver, without: without.to_vec(), ..options(OptimizationGoal::Size, 2) };
    let budget = SearchBudget { rounds: 7, ..SearchBudget::of(Duration::from_secs(120)) };
    let improved = Superoptimizer::new(options).improve_code(code(body), world(), &budget, &mut |_| true);
    let improved = improved.expect("it can be read");
    let lines = text(&improved.function);
    (lines[5..lines.len() - 3].to_vec(), improved.found.iter().map(|f| f.engine).collect())
}

/// Checks that a sketch turns a body into these lines, and that no other engine does.
fn by_a_sketch_only(body: &str, wants: &[&str]) {
    let cegis = SearchAblation::Engine(SearchEngine::Cegis);
    let others: Vec<SearchAblation> = SearchAblation::all().filter(|p| *p != cegis).collect();
    let (lines, engines) = with_solver(&others, body);
    assert_eq!(lines, wants);
    assert!(!engines.is_empty() && engines.iter().all(|e| *e == SearchEngine::Cegis), "{engines:?}");
    assert!(with_solver(&[cegis], body).0.len() > wants.len(), "others find it, too: {body}");
}

#[test]
fn constants_that_follow_from_several_are_found_by_sketches_only() {
    by_a_sketch_only(
        "r0 = *(u32 *)(r6 +0)\nr0 *= 3\nr0 += 7\nr0 *= 5\nr0 += 1",
        &["r0 = *(u32 *)(r6 +0)", "r0 *= 15", "r0 += 36"],
    );
    by_a_sketch_only(
        "*(u8 *)(r6 +4) = 1\n*(u8 *)(r6 +5) = 2\n*(u8 *)(r6 +6) = 3\n*(u8 *)(r6 +7) = 4\nr0 = 2",
        &["*(u32 *)(r6 +4) = 67305985", "r0 = 2"],
    );
}

#[test]
fn sketches_are_completed_under_what_is_known_and_not_beyond() {
    let cegis = SearchAblation::Engine(SearchEngine::Cegis);
    let others: Vec<SearchAblation> = SearchAblation::all().filter(|p| *p != cegis).collect();
    let body = "r0 = *(u8 *)(r6 +0)\nr0 <<= 56\nr0 >>= 52";
    assert_eq!(with_solver(&others, body).0, ["r0 = *(u8 *)(r6 +0)", "r0 <<= 4"]);
    // A field of the context is read as a whole, never in part.
    let field = "r0 = *(u32 *)(r1 +12)\nr0 <<= 56\nr0 >>= 52";
    assert!(with_solver(&others, field).1.is_empty(), "what is above the byte is shifted out");
}

#[test]
fn a_store_to_the_stack_does_not_go_by_a_rule() {
    let rule =
        "r1 = r10; r1 += -8; *(u64 *)(r1 +0) = 1 => r1 = r10; r1 += -8 @ r1:n0[0x0,0x1] @ r1 @ x, fires 0";
    let rules = store(rule);
    let mut prover = WindowProver::new(None, Duration::from_secs(1));
    assert_ne!(rules.rules()[0].prove(&mut prover), WindowVerdict::Equal);
}

#[test]
fn the_shipped_rules_are_read_as_they_are_written_and_proven() {
    let rules = PeepholeRuleSet::builtin().expect("they are rules");
    assert_eq!(rules.text(), include_str!("windows.rules"));
    let mut prover = WindowProver::new(Some(Solver::new("z3")), Duration::from_secs(30));
    for rule in rules.rules() {
        assert_eq!(rule.prove(&mut prover), WindowVerdict::Equal, "{rule}");
    }
}
