//! Random tables and keys: the expanded match finds the entry that the table itself gives.

use std::collections::HashMap;

use millstream_bpf::lower::lower_func;
use millstream_interp::MachineState;
use millstream_interp::bytecode::{BytecodeInterpreter as Bytecode, DecodedProgram};
use millstream_interp::ir::IrInterpreter;
use millstream_ir::verify::verify_module;
use millstream_ir::{
    Block, FieldDecl, FieldMatch, Func, Function, Linkage, MatchKind, Module, Op, Table, TableDecl, Type,
};
use millstream_match_tables::{TableForm, expand_tables};

use crate::rng::Rng;

impl Rng {
    /// A word that meets others often: few values, or any.
    fn word(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => self.next() & 0xf,
            3 => u64::MAX << self.below(64),
            4 => 1 << self.below(64),
            _ => self.next(),
        }
    }

    fn value(&mut self, field: &FieldDecl) -> Vec<u64> {
        let mut words: Vec<u64> = (0..field.words()).map(|_| self.word()).collect();
        words[0] &= u64::MAX >> (64 * field.words() as u32 - field.bits);
        words
    }

    fn field(&mut self, index: usize) -> FieldDecl {
        let bits = [1, 3, 8, 9, 16, 32, 33, 48, 64, 100, 128][self.below(11)];
        let kind = [MatchKind::Exact, MatchKind::Prefix, MatchKind::Range, MatchKind::Ternary][self.below(4)];
        FieldDecl { name: format!("f{index}"), bits, kind }
    }

    fn field_match(&mut self, field: &FieldDecl) -> FieldMatch {
        let (a, b) = (self.value(field), self.value(field));
        match field.kind {
            MatchKind::Exact => FieldMatch::Exact(a),
            MatchKind::Prefix => FieldMatch::Prefix(a, self.below(field.bits as usize + 1) as u32),
            MatchKind::Range if a <= b => FieldMatch::Range(a, b),
            MatchKind::Range => FieldMatch::Range(b, a),
            MatchKind::Ternary => FieldMatch::Ternary(a, b),
        }
    }

    /// At most five words, as many as the bytecode takes as arguments.
    fn table(&mut self) -> TableDecl {
        let mut fields: Vec<FieldDecl> = Vec::new();
        for i in 0..1 + self.below(4) {
            let field = self.field(i);
            if fields.iter().map(FieldDecl::words).sum::<usize>() + field.words() <= 5 {
                fields.push(field);
            }
        }
        let most = [2, 8, 40][self.below(3)];
        let entries: Vec<Vec<FieldMatch>> =
            (0..self.below(most)).map(|_| fields.iter().map(|f| self.field_match(f)).collect()).collect();
        let mut results = Vec::new();
        if self.below(2) == 0 {
            results.resize_with(entries.len(), || self.below(5) as u32);
        }
        TableDecl { name: "t".into(), fields, entries, results }
    }

    /// A key near the bounds that an entry states, or any.
    fn key(&mut self, table: &TableDecl) -> Vec<u64> {
        let mut key = Vec::new();
        for (i, field) in table.fields.iter().enumerate() {
            let from = (!table.entries.is_empty()).then(|| self.below(table.entries.len()));
            match from.map(|e| &table.entries[e][i]) {
                Some(
                    FieldMatch::Exact(v)
                    | FieldMatch::Prefix(v, _)
                    | FieldMatch::Range(v, _)
                    | FieldMatch::Ternary(v, _),
                ) if self.below(4) > 0 => {
                    let mut words = v.clone();
                    if let FieldMatch::Range(_, to) = &table.entries[from.unwrap_or(0)][i]
                        && self.below(2) == 0
                    {
                        words.clone_from(to);
                    }
                    let last = words.len() - 1;
                    let near = [0, 0, 1, u64::MAX][self.below(4)];
                    words[last] = words[last].wrapping_add(near);
                    key.extend(words);
                }
                _ => key.extend((0..field.words()).map(|_| self.word())),
            }
        }
        key
    }
}

fn module(table: TableDecl) -> Module {
    let mut func = Function::new("match", Linkage::Static);
    let block = func.add_block();
    let words: usize = table.fields.iter().map(FieldDecl::words).sum();
    let args: Vec<_> = (0..words).map(|_| func.add_param(block, Type::I64)).collect();
    let mut cursor = func.at_end(block);
    let result = cursor.value(Op::TableMatch { table: Table::from_u32(0) }, args, Type::I64);
    cursor.effect(Op::Return {}, [result], []);
    let mut module = Module::default();
    module.tables.push(table);
    module.funcs.push(func);
    module
}

fn expanded(module: &Module, jmp32: bool, form: TableForm) -> Module {
    let mut expanded = module.clone();
    let func = &mut expanded.funcs[Func::from_u32(0)];
    assert!(expand_tables(func, &module.tables, jmp32, |_| Some(form)));
    assert_eq!(verify_module(&expanded), [], "{module}");
    expanded
}

fn run(module: &Module, key: &[u64]) -> u64 {
    let mut machine = MachineState::default();
    let interpreter = IrInterpreter::new(module, &mut machine);
    interpreter.run(&mut machine, Func::from_u32(0), key).unwrap_or_else(|e| panic!("{e}\n{module}"))
}

#[test]
fn expanded_matches_agree_with_tables() {
    let mut rng = Rng(7);
    let mut found = 0;
    for round in 0..600 {
        let module = module(rng.table());
        let table = &module.tables[Table::from_u32(0)];
        let forms = [TableForm::Tree, TableForm::InOrder].map(|form| expanded(&module, round % 2 == 0, form));
        for _ in 0..30 {
            let key = rng.key(table);
            let expected = run(&module, &key);
            for expanded in &forms {
                assert_eq!(run(expanded, &key), expected, "{key:x?}\n{module}");
            }
            found += usize::from(expected != u64::MAX);
        }
    }
    assert!((4_000..14_000).contains(&found), "{found} of 18000 keys have an entry: too few of one kind");
}

#[test]
fn lowered_matches_agree_with_tables() {
    let mut rng = Rng(8);
    for _ in 0..40 {
        let module = module(rng.table());
        let code = lower_func(&module, Func::from_u32(0)).unwrap_or_else(|e| panic!("{e}\n{module}"));
        let programs = [DecodedProgram::from_insns(&code.insns)];
        for _ in 0..30 {
            let key = rng.key(&module.tables[Table::from_u32(0)]);
            let mut registers = [0; 5];
            registers[..key.len()].copy_from_slice(&key);
            let mut machine = MachineState::default();
            let result = Bytecode::new(&programs).run(&mut machine, 0, registers);
            assert_eq!(result.expect("it runs"), run(&module, &key), "{key:x?}\n{module}");
        }
    }
}

/// Branches on the longest way through the expansion, and in all of it.
fn size(table: TableDecl) -> (usize, usize) {
    let module = expanded(&module(table), true, TableForm::Tree);
    let func = &module.funcs[Func::from_u32(0)];
    let branches = func.layout.iter().filter(|&&b| func.targets(b).len() == 2).count();
    (depth(func, func.entry(), &mut HashMap::new()), branches)
}

fn depth(func: &Function, block: Block, known: &mut HashMap<Block, usize>) -> usize {
    if let Some(&depth) = known.get(&block) {
        return depth;
    }
    let targets = func.targets(block);
    let below = targets.iter().map(|t| depth(func, t.block, known)).max().unwrap_or(0);
    let depth = below + usize::from(targets.len() == 2);
    known.insert(block, depth);
    depth
}

#[test]
fn lookups_are_logarithmic_and_code_is_linear() {
    let field = |bits, kind| FieldDecl { name: "f".into(), bits, kind };
    let exact = (0..1000).map(|i| vec![FieldMatch::Exact(vec![i * 37])]).collect();
    let table = TableDecl {
        name: "e".into(),
        fields: vec![field(32, MatchKind::Exact)],
        entries: exact,
        results: Vec::new(),
    };
    let (depth, branches) = size(table);
    assert!(depth <= 11 && branches <= 2000, "exact: {depth} deep, {branches} branches");

    let mut rng = Rng(9);
    let mut prefixes: Vec<(u64, u32)> =
        (0..1000).map(|_| (rng.next() >> 32, 8 + rng.below(25) as u32)).collect();
    prefixes.sort_by_key(|p| std::cmp::Reverse(p.1));
    let entries = prefixes.iter().map(|&(v, len)| vec![FieldMatch::Prefix(vec![v], len)]).collect();
    let table = TableDecl {
        name: "p".into(),
        fields: vec![field(32, MatchKind::Prefix)],
        entries,
        results: Vec::new(),
    };
    let (depth, branches) = size(table);
    assert!(depth <= 12 && branches <= 2100, "prefixes: {depth} deep, {branches} branches");

    let entry = |rng: &mut Rng| {
        let address = FieldMatch::Prefix(vec![rng.next() >> 32], 16 + rng.below(17) as u32);
        let port = rng.next() & 0xffff;
        vec![address, FieldMatch::Range(vec![port], vec![port.max(rng.next() & 0xffff)])]
    };
    let entries = (0..500).map(|_| entry(&mut rng)).collect();
    let fields = vec![field(32, MatchKind::Prefix), field(16, MatchKind::Range)];
    let (depth, branches) = size(TableDecl { name: "acl".into(), fields, entries, results: Vec::new() });
    assert!(depth <= 24 && branches <= 3000, "two fields: {depth} deep, {branches} branches");
}
