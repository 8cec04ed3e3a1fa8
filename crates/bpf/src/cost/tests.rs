//! Properties that hold for every table.

use millstream_isa::Insn;
use millstream_isa::MapType;
use millstream_isa::asm::assemble;

use super::{
    BlockFrequencies, CodeCost, CostInput, CostModel, ExecutionCounts, FlatProgram, Kind, OptimizationGoal,
    window_cycles,
};

fn code(text: &str) -> Vec<Insn> {
    assemble(text).unwrap()
}

/// The cost of a function of whose maps nothing is known.
fn cost(insns: &[Insn], symbols: &[u32], weights: &BlockFrequencies) -> CodeCost {
    CostInput { insns, symbols, maps: &[] }.cost(CostModel::current(), weights)
}

fn of(slots: u32, jited: u32, cycles: u64) -> CodeCost {
    CodeCost { slots, jited, cycles }
}

#[test]
fn balanced_trades_cycles_for_slots_in_neither_direction() {
    let old = of(100, 400, 50_000);
    assert!(!OptimizationGoal::Balanced.improves(of(90, 360, 50_001), old), "shorter, but slower");
    assert!(!OptimizationGoal::Balanced.improves(of(101, 404, 49_000), old), "faster, but longer");
    assert!(OptimizationGoal::Balanced.improves(of(99, 400, 50_000), old));
    assert!(OptimizationGoal::Balanced.improves(of(100, 400, 49_999), old));
    assert!(!OptimizationGoal::Balanced.improves(old, old));
    assert!(OptimizationGoal::Size.improves(of(99, 900, 90_000), old));
    assert!(OptimizationGoal::Latency.improves(of(200, 900, 49_999), old));
    let slower = of(90, 360, 50_001);
    let longer = of(101, 404, 49_000);
    assert!(OptimizationGoal::Balanced.compare(longer, slower, old).is_lt());
    assert!(OptimizationGoal::Balanced.compare(old, longer, old).is_lt());
    assert_eq!(
        CodeCost::best(OptimizationGoal::Balanced, old, [(slower, 0), (old, 1), (longer, 2), (old, 3)]),
        Some((old, 1))
    );
}

#[test]
fn a_block_goes_on_where_it_is_most_often_entered_from() {
    // Most fall through to the end, although what jumps there runs more often.
    let text = |cond: &str| {
        format!(
            "{cond} goto end\n r1 = *(u64 *)(r2 +0)\n r1 += 1\n *(u64 *)(r2 +0) = r1\n end:\n r0 = 0\n exit"
        )
    };
    let weights = |falls| BlockFrequencies::Counts { blocks: vec![100, falls, 100], runs: 100 };
    let end = |falls| {
        let insns = code(&text("if r1 == 0"));
        CostInput { insns: &insns, symbols: &[], maps: &[] }.blocks(CostModel::built_in(), &weights(falls))[2]
            .cycles
    };
    assert!(end(90) + 1000 < end(10), "{} against {}", end(90), end(10));
}

#[test]
fn one_store_more_or_less_changes_little_of_what_is_guessed() {
    let store = "*(u64 *)(r2 +0) = r1\n";
    for n in 1..24 {
        let often = |stores: usize| {
            let body = store.repeat(stores);
            let other = store.repeat(12);
            let insns = code(&format!("if r1 > 7 goto other\n {body} exit\n other:\n {other} exit"));
            let blocks = CostInput { insns: &insns, symbols: &[], maps: &[] };
            blocks.blocks(CostModel::built_in(), &BlockFrequencies::Static)[1].count
        };
        assert!(often(n).abs_diff(often(n + 1)) < 60, "{n}: {} and {}", often(n), often(n + 1));
    }
}

#[test]
fn names_of_goals_are_read_back() {
    for goal in OptimizationGoal::ALL {
        assert_eq!(goal.to_string().parse(), Ok(goal));
    }
    assert!("speed".parse::<OptimizationGoal>().is_err());
}

#[test]
fn a_chain_takes_longer_than_the_same_work_side_by_side() {
    let chain = window_cycles(&code("r1 *= r2\n r1 *= r2\n r1 *= r2\n r1 *= r2"));
    let apart = window_cycles(&code("r1 *= r5\n r2 *= r5\n r3 *= r5\n r4 *= r5"));
    assert!(chain > apart + apart / 4, "{chain} against {apart}");
}

#[test]
fn a_load_of_pieces_waits_longer_than_one_of_a_whole() {
    let pieces =
        window_cycles(&code("*(u32 *)(r10 -8) = r1\n *(u32 *)(r10 -4) = r1\n r2 = *(u64 *)(r10 -8)"));
    let whole =
        window_cycles(&code("*(u64 *)(r10 -8) = r1\n *(u32 *)(r10 -12) = r1\n r2 = *(u64 *)(r10 -8)"));
    assert!(pieces > whole, "{pieces} against {whole}");
}

#[test]
fn one_more_instruction_with_an_unused_result_never_costs_less() {
    let base = code(
        "r2 = *(u32 *)(r1 +0)\n r3 = *(u32 *)(r1 +4)\n r4 = r2\n r4 += 14\n if r4 > r3 goto out\n \
         r5 = *(u16 *)(r2 +12)\n \
         r5 *= r5\n r5 <<= 3\n *(u64 *)(r10 -8) = r5\n r0 = *(u64 *)(r10 -8)\n exit\n out:\n r0 = 1\n exit",
    );
    let before = window_cycles(&base);
    for at in 0..=base.len() {
        for more in ["r9 = 5", "r9 += 1", "r9 = *(u64 *)(r1 +8)", "*(u64 *)(r10 -64) = r1", "r9 /= 3"] {
            let mut longer = base.clone();
            longer.splice(at..at, code(more));
            assert!(window_cycles(&longer) >= before, "`{more}` before instruction {at}");
        }
    }
}

#[test]
fn what_runs_more_often_costs_more() {
    let insns = code("if r1 == 0 goto cold\n r0 = 0\n exit\n cold:\n r0 = 5\n r0 /= r1\n r0 /= r1\n exit");
    let counts = |cold| BlockFrequencies::Counts { blocks: vec![100, 100 - cold, cold], runs: 100 };
    let at = |cold| cost(&insns, &[], &counts(cold)).cycles;
    assert!(at(1) < at(50) && at(50) < at(100));
    let guess = cost(&insns, &[], &BlockFrequencies::Static).cycles;
    assert!(at(1) < guess && guess < at(100));
}

#[test]
fn loops_are_taken_to_go_round_some_times_and_nested_ones_more_often() {
    let one = cost(
        &code("r1 = 9\n again:\n r0 *= r0\n r1 += -1\n if r1 != 0 goto again\n exit"),
        &[],
        &BlockFrequencies::Static,
    );
    let straight = cost(&code("r1 = 9\n r0 *= r0\n r1 += -1\n exit"), &[], &BlockFrequencies::Static);
    assert!(one.cycles > 2 * straight.cycles, "{one} against {straight}");
    let two = code(
        "r1 = 9\n outer:\n r2 = 9\n inner:\n r0 *= r0\n r2 += -1\n if r2 != 0 goto inner\n r1 += -1\n \
         if r1 != 0 goto outer\n exit",
    );
    assert!(cost(&two, &[], &BlockFrequencies::Static).cycles > 3 * one.cycles);
}

/// The guessed execution count of each block.
fn counts(text: &str) -> Vec<u64> {
    let insns = code(text);
    let blocks = CostInput { insns: &insns, symbols: &[], maps: &[] }
        .blocks(CostModel::built_in(), &BlockFrequencies::Static);
    blocks.iter().map(|b| b.count).collect()
}

#[test]
fn a_test_is_as_probable_in_other_words() {
    let text = |test: &str| {
        format!("r1 = *(u32 *)(r1 +0)\n{test} goto out\n*(u64 *)(r10 -8) = r1\nr2 = r10\nout:\nr0 = 0\nexit")
    };
    for (one, other) in [
        ("r1 &= 0x2000\nif r1 != 0", "if r1 & 0x2000"),
        ("if r1 > 0", "if r1 != 0"),
        ("if r1 < 1", "if r1 == 0"),
        ("if r1 <= 0", "if r1 == 0"),
    ] {
        assert_eq!(counts(&text(one)), counts(&text(other)), "{one}");
    }
    assert_ne!(counts(&text("if r1 & 1")), counts(&text("if r1 == 0")));
}

#[test]
fn a_loop_goes_round_as_often_over_a_jump() {
    let of_body = |text: &str| counts(text)[1];
    let branch = "r1 = 0\nagain:\nr1 += 1\nif r1 != r2 goto again\nr0 = 0\nexit";
    let jump = "r1 = 0\nagain:\nr1 += 1\nif r1 == r2 goto out\ngoto again\nout:\nr0 = 0\nexit";
    assert_eq!(of_body(jump), of_body(branch));
    assert!(of_body(branch) > 5 * 1024);
}

#[test]
fn functions_count_as_often_as_they_are_called() {
    let sub = "r0 = *(u64 *)(r1 +0)\n r0 *= r0\n exit\n";
    let main = |calls: &str| format!("r6 = r1\n{calls} r0 = 0\n exit\n twice:\n {sub}");
    let table = CostModel::built_in();
    let once = whole(&main("r1 = r6\n call twice\n"));
    let twice = whole(&main("r1 = r6\n call twice\n r1 = r6\n call twice\n"));
    let runs = |w: &FlatProgram| w.functions(table, None).iter().map(|f| f.runs).collect::<Vec<_>>();
    assert_eq!((runs(&once), runs(&twice)), (vec![1024, 1024], vec![1024, 2048]));
    let of = |w: &FlatProgram| w.cost(table, None).cycles;
    let frame = u64::from(table.timing(Kind::Frame).latency);
    assert!(of(&twice) > of(&once) + frame);
    let counted = |n| {
        let slots = [8, 8, 8, 8, 8, n, n, n];
        once.cost(table, Some(ExecutionCounts { slots: &slots, runs: 8 })).cycles
    };
    assert!(counted(8) == of(&once) && counted(4) < counted(8));
}

fn whole(text: &str) -> FlatProgram {
    let raw = millstream_isa::encode_all(&assemble(text).unwrap());
    FlatProgram::new(&raw, Vec::new(), Vec::new()).unwrap()
}

#[test]
fn a_test_that_is_made_twice_makes_what_is_behind_it_no_rarer() {
    let text = |again: &str| {
        format!(
            "r6 = r1\n r7 = *(u32 *)(r1 +0)\n if r7 == 5 goto end\n r8 = 1\n{again} r1 = r6\n \
            call ktime_get_ns\n r6 *= r6\n r6 *= r6\n
            r6 *= r6\n r6 *= r6\n end:\n r0 = 0\n exit"
        )
    };
    let (twice, once) = (whole(&text(" if r7 == 5 goto end\n")), whole(&text("")));
    let table = CostModel::built_in();
    assert!(twice.cost(table, None).cycles < once.cost(table, None).cycles, "guesses by themselves mislead");
    let (before, after) = twice.compare_cycles(&once, table);
    assert!(before > after && after == once.cost(table, None).cycles, "{before}, {after}");
}

#[test]
fn beside_itself_a_program_costs_what_it_costs() {
    let text = "r6 = r1\n r7 = 9\n again:\n r0 *= r0\n r1 = r6\n call ktime_get_ns\n r7 += -1\n if r7 != 0 goto again\n
        if r0 == 3 goto other\n r1 = r6\n call get_prandom_u32\n goto end\n other:\n r1 = r6\n \
            call get_smp_processor_id\n end:\n r0 = 0\n exit";
    let program = whole(text);
    let (before, after) = program.compare_cycles(&program, CostModel::built_in());
    assert!(before.abs_diff(after) * 1000 < after, "{before}, {after}");
}

#[test]
fn lookups_cost_what_their_map_costs() {
    let text = "r2 = r10\n r2 += -8\n r1 = map[fd:7]\n call map_lookup_elem\n exit";
    let insns = code(text);
    let of = |map_type| {
        let maps = [(2, map_type)];
        CostInput { insns: &insns, symbols: &[2], maps: &maps }
            .cycles(CostModel::built_in(), &BlockFrequencies::Static)
    };
    assert!(of(MapType::HASH) > of(MapType::ARRAY) + 10_000);
}

#[test]
fn a_table_says_where_it_is_wrong_and_the_built_in_one_is_not() {
    let at = |text| CostModel::parse(text).map_err(|e| e.line);
    assert_eq!(at(include_str!("built-in.costs")).as_ref(), Ok(CostModel::built_in()));
    assert_eq!(at(include_str!("thunks.costs")).as_ref(), Ok(CostModel::with_thunks()));
    assert_eq!(at("# only a remark\n\nalu 1.0 0.2 # scatter\nspeed 5"), Err(4));
    assert_eq!(at("mul many"), Err(1));
    assert_eq!(at("mul -1"), Err(1));
    assert_eq!(at("helper/no_such_helper 7"), Err(1));
    assert_eq!(at("mul 7 -").unwrap().timing(Kind::Mul).latency, 7000);
}

#[test]
fn a_test_of_what_an_array_gives_costs_time() {
    let lookup = "r1 = map[fd:7]\n call map_lookup_elem\n";
    let count = "r1 = *(u64 *)(r0 +0)\n r1 += 1\n *(u64 *)(r0 +0) = r1\n";
    let leave = "r0 = 0\n exit";
    let tested = code(&format!("{lookup} if r0 == 0 goto +3\n {count} {leave}"));
    let untested = code(&format!("{lookup} {count} {leave}"));
    let cycles = |insns: &[Insn]| {
        let maps = [(0, MapType::ARRAY)];
        CostInput { insns, symbols: &[0], maps: &maps }
            .cycles(CostModel::built_in(), &BlockFrequencies::Static)
    };
    assert!(cycles(&untested) <= cycles(&tested), "{} against {}", cycles(&untested), cycles(&tested));
}

/// Straight-line code, and cycles that llvm-mca 19 (`-mcpu=sapphirerapids -iterations=1`) gives the machine
/// code that the JIT makes of it, less the three that its pipeline takes before the first and behind the last
/// instruction.
const RECORDED: [(&str, u64); 9] = [
    ("r1 ^= r2\n r3 ^= r4", 2),
    ("r1 += r2\n r1 += r2\n r1 += r2\n r1 += r2\n r1 += r2\n r1 += r2\n r1 += r2\n r1 += r2", 8),
    ("r1 *= r2\n r1 *= r2\n r1 *= r2\n r1 *= r2\n r1 *= r2\n r1 *= r2\n r1 *= r2\n r1 *= r2", 24),
    ("r1 *= r5\n r2 *= r5\n r3 *= r5\n r4 *= r5", 6),
    ("r2 = *(u64 *)(r1 +0)\n r3 = *(u64 *)(r2 +0)\n r4 = *(u64 *)(r3 +0)\n r5 = *(u64 *)(r4 +0)", 20),
    (
        "r2 = *(u8 *)(r1 +0)\n r3 = *(u8 *)(r1 +1)\n r3 <<= 8\n r3 |= r2\n r4 = *(u8 *)(r1 +2)\n r4 <<= 16\n r4 |= r3",
        10,
    ),
    ("r1 = be64 r1\n r1 >>= 16\n r1 &= 255\n r1 *= 3\n r1 += r2", 9),
    ("r1 <<= 1\n r2 <<= 2\n r3 <<= 3\n r4 <<= 4\n r5 <<= 5\n r0 <<= 6\n r6 <<= 7\n r7 <<= 8", 4),
    ("r1 = 1\n r2 = 2\n r3 = 3\n r4 = 4\n r5 = 5\n r0 = 6", 2),
];

#[test]
fn waits_are_those_of_an_independent_analyser_within_a_quarter_or_a_cycle_and_a_half() {
    let waiting = CostModel::parse("waited 1").unwrap();
    for (text, recorded) in RECORDED {
        let insns = code(text);
        let block = CostInput { insns: &insns, symbols: &[], maps: &[] }
            .blocks(&waiting, &BlockFrequencies::Static)[0];
        let off = block.cycles.abs_diff(recorded * 1000);
        assert!(off <= (recorded * 250).max(1500), "{} against {recorded} cycles: {text}", block.cycles);
    }
}

#[test]
fn the_table_follows_the_mitigations_of_the_kernel() {
    let thunks = CostModel::with_thunks();
    assert_ne!(thunks, CostModel::built_in());
    for text in [
        "spectre_v2: Mitigation: Retpolines; spec_rstack_overflow: Mitigation: Safe RET",
        "spectre_v2: Mitigation: Retpolines",
    ] {
        assert_eq!(CostModel::of_mitigations(text), thunks);
    }
    for text in ["", "spectre_v2: Mitigation: Enhanced / Automatic IBRS"] {
        assert_eq!(CostModel::of_mitigations(text), CostModel::built_in());
    }
}
