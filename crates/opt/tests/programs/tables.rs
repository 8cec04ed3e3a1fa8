//! Matches of tables, expanded and lowered, in the kernel: the verifier takes them, and on random keys they
//! find the entry that the interpreter finds in the table itself.

use millstream_bpf::raw::{lift_raw, lower_raw};
use millstream_interp::MachineState;
use millstream_interp::ir::IrInterpreter;
use millstream_ir::verify::verify_module;
use millstream_ir::{
    FieldDecl, FieldMatch, Func, Function, Linkage, MatchKind, Module, Op, Table, TableDecl, Type,
};
use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::{KernelProgram, ProgramSpec, ProgramType, TestRun, testing};
use millstream_rng::Rng;

const ENTRIES: usize = 60;
const KEYS: usize = 400;
/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// Return value of the program for packets that are too short; no table has so many entries.
const SHORT: u32 = 0x7fff_ffff;

/// Takes a key of five words from the packet and asks the function behind for the entry.
const MAIN: &str = "
    r2 = *(u32 *)(r1 + 0)
    r3 = *(u32 *)(r1 + 4)
    r4 = r2
    r4 += 40
    if r4 > r3 goto short
    r0 = r2
    r1 = *(u64 *)(r0 + 0)
    r2 = *(u64 *)(r0 + 8)
    r3 = *(u64 *)(r0 + 16)
    r4 = *(u64 *)(r0 + 24)
    r5 = *(u64 *)(r0 + 32)
    call pc+3
    exit
short:
    w0 = 0x7fffffff
    exit
    r0 = r1
    r0 += r2
    r0 += r3
    r0 += r4
    r0 += r5
    exit
";

struct Random(Rng);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn bits(&mut self) -> u64 {
        self.below(1 << 32) << 32 | self.below(1 << 32)
    }

    /// A word that meets others often: few values, or any.
    fn word(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => self.below(16),
            3 => u64::MAX << self.below(64),
            4 => 1 << self.below(64),
            _ => self.bits(),
        }
    }

    fn value(&mut self, field: &FieldDecl) -> Vec<u64> {
        let mut words: Vec<u64> = (0..field.words()).map(|_| self.word()).collect();
        words[0] &= u64::MAX >> (64 * field.words() as u32 - field.bits);
        words
    }

    fn entry(&mut self, field: &FieldDecl) -> FieldMatch {
        let (a, b) = (self.value(field), self.value(field));
        match field.kind {
            MatchKind::Exact => FieldMatch::Exact(a),
            MatchKind::Prefix => {
                // Short ones would catch all.
                let half = field.bits / 2;
                FieldMatch::Prefix(a, field.bits - half + self.below(u64::from(half) + 1) as u32)
            }
            MatchKind::Range => FieldMatch::Range(a.clone().min(b.clone()), a.max(b)),
            MatchKind::Ternary => FieldMatch::Ternary(a, b),
        }
    }

    fn table(&mut self, fields: &[(u32, MatchKind)]) -> TableDecl {
        let fields: Vec<FieldDecl> =
            fields.iter().map(|&(bits, kind)| FieldDecl { name: "f".into(), bits, kind }).collect();
        let entries = (0..ENTRIES).map(|_| fields.iter().map(|f| self.entry(f)).collect()).collect();
        TableDecl { name: "t".into(), fields, entries, results: Vec::new() }
    }

    /// A key at or next to what an entry states, or any. Five words: those that no field takes are noise.
    fn key(&mut self, table: &TableDecl) -> Vec<u64> {
        let entry = &table.entries[self.below(ENTRIES as u64) as usize];
        let mut key = Vec::new();
        for (stated, field) in entry.iter().zip(&table.fields) {
            let mut words = match stated {
                FieldMatch::Range(_, to) if self.below(2) == 0 => to.clone(),
                FieldMatch::Exact(v)
                | FieldMatch::Prefix(v, _)
                | FieldMatch::Range(v, _)
                | FieldMatch::Ternary(v, _) => v.clone(),
            };
            if self.below(8) == 0 {
                words = self.value(field);
            }
            let near = [0, 0, 0, 0, 1, u64::MAX][self.below(6) as usize];
            let last = words.len() - 1;
            words[last] = words[last].wrapping_add(near);
            key.extend(words);
        }
        key.extend((key.len()..5).map(|_| self.bits()).collect::<Vec<_>>());
        key
    }
}

/// The program, with a match of the table as its second function.
fn module(table: TableDecl) -> Module {
    let insns = encode_all(&assemble(MAIN).expect("it assembles"));
    let mut module = lift_raw(&insns, Some(XDP)).expect("it lifts");
    let mut func = Function::new("match", Linkage::Static);
    let block = func.add_block();
    let words: usize = table.fields.iter().map(FieldDecl::words).sum();
    let args: Vec<_> = (0..5).map(|_| func.add_param(block, Type::I64)).collect();
    let mut cursor = func.at_end(block);
    let result =
        cursor.value(Op::TableMatch { table: Table::from_u32(0) }, args[..words].to_vec(), Type::I64);
    cursor.effect(Op::Return {}, [result], []);
    module.tables.push(table);
    module.funcs[Func::from_u32(1)] = func;
    assert_eq!(verify_module(&module), []);
    module
}

fn load(module: &Module) -> KernelProgram {
    let slots = lower_raw(module).expect("it lowers");
    let insns: Vec<u64> = slots.iter().map(|&raw| u64::from_le_bytes(raw.to_bytes())).collect();
    let spec = ProgramSpec {
        name: "table",
        program_type: ProgramType::XDP,
        insns: &insns,
        license: "GPL",
        ..ProgramSpec::default()
    };
    KernelProgram::load(&spec).unwrap_or_else(|e| panic!("{e}\n{module}"))
}

/// Asks the kernel and the interpreter for random keys; returns the number found.
fn compare(random: &mut Random, fields: &[(u32, MatchKind)]) -> usize {
    let module = module(random.table(fields));
    let program = load(&module);
    let table = &module.tables[Table::from_u32(0)];
    let mut found = 0;
    for _ in 0..KEYS {
        let key = random.key(table);
        let mut machine = MachineState::default();
        let interpreter = IrInterpreter::new(&module, &mut machine);
        let expected = interpreter.run(&mut machine, Func::from_u32(1), &key).expect("it runs") as u32;
        let packet: Vec<u8> = key.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let given = program.test_run(&TestRun::packet(&packet)).expect("it runs in the kernel").retval;
        assert_eq!(given, expected, "{key:x?}\n{module}");
        found += usize::from(given != u32::MAX);
    }
    let short = program.test_run(&TestRun::packet(&[0; 39])).expect("it runs in the kernel").retval;
    assert_eq!(short, SHORT);
    found
}

#[test]
fn the_kernel_finds_the_entries_that_the_table_has() {
    if !testing::require() {
        return;
    }
    use MatchKind::{Exact, Prefix, Range, Ternary};
    let mut random = Random(Rng::new(0x7ab1e));
    let tables: &[&[(u32, MatchKind)]] = &[
        &[(32, Exact)],
        &[(64, Exact)],
        &[(128, Exact)],
        &[(32, Prefix)],
        &[(128, Prefix)],
        &[(16, Range)],
        &[(64, Range)],
        &[(100, Range)],
        &[(48, Ternary)],
        &[(128, Ternary)],
        &[(32, Prefix), (32, Prefix), (16, Range), (16, Range), (8, Ternary)],
        &[(128, Prefix), (128, Ternary), (16, Exact)],
        &[(9, Exact), (33, Prefix), (1, Exact)],
    ];
    let found: usize = tables.iter().map(|fields| compare(&mut random, fields)).sum();
    let all = KEYS * tables.len();
    assert!(
        (all / 4..all * 19 / 20).contains(&found),
        "{found} of {all} keys have an entry: too few of one kind"
    );
}
