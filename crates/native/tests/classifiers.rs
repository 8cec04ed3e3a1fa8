//! Random match tables as native code, by each template and by the chosen one: all give the same results as a
//! linear scan of the entries.

use std::collections::BTreeSet;

use millstream_interp::ir::match_table;
use millstream_ir::{
    FieldDecl, FieldMatch, Func, Function, Linkage, MatchKind, MemFlags, Module, Op, Prov, Size, Table,
    TableDecl, Type,
};
use millstream_native::{
    ClassifierTemplate, CodegenCpu, NativeEngine, NativeError, NativeImage, NativeOptions, PacketBatch,
};
use millstream_rng::Rng;

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// Offset of the result in the packet, which begins with the key.
const RESULT: i32 = 64;
const TEMPLATES: [Option<ClassifierTemplate>; 5] = [
    None,
    Some(ClassifierTemplate::Linear),
    Some(ClassifierTemplate::Tree),
    Some(ClassifierTemplate::Cuts),
    Some(ClassifierTemplate::Tuples),
];

/// A program that matches a table.
fn program(table: TableDecl) -> (Module, Func) {
    let mut func = Function::new("match", Linkage::Program { prog_type: XDP });
    let block = func.add_block();
    let ctx = func.add_param(block, Type::Ptr(Prov::Ctx));
    let flags = MemFlags::default();
    let mut at = func.at_end(block);
    let load = Op::Load { size: Size::W, sext: false, offset: 0, flags };
    let packet = at.value(load, [ctx], Type::Ptr(Prov::Packet));
    let words = table.fields.iter().map(FieldDecl::words).sum::<usize>() as i32;
    let word = |n: i32| Op::Load { size: Size::Dw, sext: false, offset: 8 * n, flags };
    let key: Vec<_> = (0..words).map(|n| at.value(word(n), [packet], Type::I64)).collect();
    let result = at.value(Op::TableMatch { table: Table::from_u32(0) }, key, Type::I64);
    at.effect(Op::Store { size: Size::Dw, offset: RESULT, flags }, [packet, result], []);
    let verdict = at.iconst(2);
    at.effect(Op::Return {}, [verdict], []);
    let mut module = Module::default();
    module.tables.push(table);
    let func = module.funcs.push(func);
    (module, func)
}

/// With `ahead` the lines that look-ups of hash tables read are fetched ahead, however small these are.
fn engine(
    table: &TableDecl,
    template: Option<ClassifierTemplate>,
    (passes, ahead): (bool, bool),
) -> Result<NativeEngine, NativeError> {
    let (module, func) = program(table.clone());
    let classifiers = template.map(|template| (table.name.clone(), template)).into_iter().collect();
    let usual = NativeOptions::default();
    let schedule = if ahead { "from=0,trials=off,distance=2" } else { "" };
    let schedule = schedule.parse().expect("a schedule");
    NativeEngine::of_module(module, func, &NativeOptions { classifiers, passes, schedule, ..usual })
}

/// Results of a program for some keys.
fn results(engine: &mut NativeEngine, keys: &[Vec<u64>]) -> Vec<i64> {
    let mut all = Vec::new();
    for keys in keys.chunks(32) {
        let mut batch = PacketBatch::new(32).expect("memory");
        for key in keys {
            let mut frame: Vec<u8> = key.iter().flat_map(|word| word.to_le_bytes()).collect();
            frame.resize(RESULT as usize + 8, 0);
            assert!(batch.push(&frame, 1));
        }
        engine.run(&mut batch);
        let result = |at| batch.bytes(at)[RESULT as usize..].first_chunk().map(|b| i64::from_le_bytes(*b));
        all.extend((0..keys.len()).map(|at| result(at).expect("eight bytes")));
    }
    all
}

/// Result of a linear scan of the entries.
fn scanned(table: &TableDecl, key: &[u64]) -> i64 {
    match_table(table, key).map_or(-1, |entry| i64::from(table.result(entry)))
}

/// Random tables and keys.
struct Random(Rng);

impl Random {
    fn pick<const N: usize>(&mut self, from: [u64; N]) -> u64 {
        from[self.0.below(N as u64) as usize]
    }

    /// A word that often equals others.
    fn word(&mut self, bits: u32) -> u64 {
        let any = self.0.next_u64();
        let word = match self.0.below(4) {
            0 => any & 7,
            1 => 10 << 24 | any & 0x1_0103,
            _ => any,
        };
        word & (u64::MAX >> (64 - bits))
    }

    fn field(&mut self, at: usize, kinds: &[MatchKind]) -> FieldDecl {
        let bits = self.pick([1, 8, 9, 16, 32, 33, 64]) as u32;
        let kind = kinds[self.0.below(kinds.len() as u64) as usize];
        FieldDecl { name: format!("f{at}"), bits, kind }
    }

    fn demand(&mut self, field: &FieldDecl) -> FieldMatch {
        let (a, b) = (self.word(field.bits), self.word(field.bits));
        let all = u64::MAX >> (64 - field.bits);
        match field.kind {
            MatchKind::Exact => FieldMatch::Exact(vec![a]),
            MatchKind::Prefix => FieldMatch::Prefix(vec![a], self.pick([0, 1, 1, 1]) as u32 * field.bits / 2),
            MatchKind::Range => FieldMatch::Range(vec![a.min(b)], vec![a.max(b)]),
            MatchKind::Ternary => {
                FieldMatch::Ternary(vec![a], vec![self.pick([0, all, 0x3f & all, !3 & all])])
            }
        }
    }

    fn table(&mut self, entries: u64, kinds: &[MatchKind]) -> TableDecl {
        let fields: Vec<FieldDecl> =
            (0..1 + self.0.below(4) as usize).map(|at| self.field(at, kinds)).collect();
        let entries: Vec<Vec<FieldMatch>> =
            (0..entries).map(|_| fields.iter().map(|field| self.demand(field)).collect()).collect();
        let results = match self.0.below(2) {
            0 => Vec::new(),
            _ => (0..entries.len()).map(|_| self.0.below(3) as u32).collect(),
        };
        TableDecl { name: "acl".into(), fields, entries, results }
    }

    /// A key at or near the constraints of an entry; bits that fields do not have are random.
    fn key(&mut self, table: &TableDecl) -> Vec<u64> {
        let near = self.0.below(table.entries.len().max(1) as u64) as usize;
        let word = |(at, field): (usize, &FieldDecl)| {
            let stated = table.entries.get(near).map(|entry| match &entry[at] {
                FieldMatch::Exact(v) | FieldMatch::Prefix(v, _) | FieldMatch::Ternary(v, _) => v[0],
                FieldMatch::Range(from, to) => [from[0], to[0]][self.0.below(2) as usize],
            });
            let noise = self.0.next_u64().checked_shl(field.bits).unwrap_or(0);
            let word = match (stated, self.0.below(8)) {
                (Some(word), 2..) => word,
                (Some(word), 1) => word.wrapping_add(1),
                _ => self.word(field.bits),
            };
            word & (u64::MAX >> (64 - field.bits)) | noise
        };
        table.fields.iter().enumerate().map(word).collect()
    }
}

#[test]
fn templates_give_what_a_linear_scan_gives() {
    use MatchKind::{Exact, Prefix, Range, Ternary};
    let mut random = Random(Rng::new(3));
    let (mut found, mut refused) = (0, 0);
    for round in 0..28 {
        let kinds: &[&[MatchKind]] =
            &[&[Exact], &[Exact, Prefix], &[Range, Exact], &[Exact, Prefix, Range, Ternary]];
        let entries = random.pick([0, 1, 3, 12, 60, 1100]);
        let table = random.table(entries, kinds[round % 4]);
        let keys: Vec<Vec<u64>> = (0..200).map(|_| random.key(&table)).collect();
        let expected: Vec<i64> = keys.iter().map(|key| scanned(&table, key)).collect();
        found += expected.iter().filter(|result| **result >= 0).count();
        for template in TEMPLATES {
            let mut engine = match engine(&table, template, (round % 3 != 0, round % 2 != 0)) {
                Ok(engine) => engine,
                // Ranges of 64 bits are many prefixes.
                Err(NativeError::Choose(why)) if template == Some(ClassifierTemplate::Tuples) => {
                    assert!(why.starts_with("classifier \"acl\": its rules have more than"), "{why}");
                    refused += 1;
                    continue;
                }
                Err(e) => panic!("{e}"),
            };
            assert_eq!(results(&mut engine, &keys), expected, "{template:?} of {table:?}");
        }
    }
    assert!((1_500..5_000).contains(&found), "{found} of 5600 keys have an entry: too few of one kind");
    assert!(refused < 14, "{refused} of 28 tables cannot be hashed");
}

/// Rules that hardly any division tells apart, or that divisions duplicate many times.
fn adversarial(random: &mut Random, kind: u64, count: u64) -> TableDecl {
    let field = |bits, kind| FieldDecl { name: "f".into(), bits, kind };
    let any = |bits: u32| FieldMatch::Range(vec![0], vec![u64::MAX >> (64 - bits)]);
    let (fields, entries): (Vec<FieldDecl>, Vec<Vec<FieldMatch>>) = match kind {
        // Wide nested intervals of two words.
        0 => {
            let fields = vec![field(32, MatchKind::Range), field(16, MatchKind::Range)];
            let mut range = |bits| {
                let (a, b) = (random.word(bits), random.word(bits));
                FieldMatch::Range(vec![a.min(b)], vec![a.max(b)])
            };
            (fields, (0..count).map(|_| vec![range(32), range(16)]).collect())
        }
        // Nested intervals, the widest last.
        1 => {
            let nested = |n| vec![FieldMatch::Range(vec![40_000 - n], vec![40_000 + n]), any(8)];
            let fields = vec![field(64, MatchKind::Range), field(8, MatchKind::Range)];
            (fields, (0..count).map(nested).collect())
        }
        // The same ones again and again, and some that match everything.
        2 => {
            let rule = |n: u64| match n % 500 {
                499 => vec![any(16), any(32)],
                n => vec![FieldMatch::Exact(vec![n % 7]), FieldMatch::Prefix(vec![n << 20], 12)],
            };
            let fields = vec![field(16, MatchKind::Exact), field(32, MatchKind::Prefix)];
            (fields, (0..count).map(rule).collect())
        }
        // Masks that are no prefixes.
        3 => {
            let fields = vec![field(33, MatchKind::Ternary), field(20, MatchKind::Ternary)];
            let mut ternary = |bits| {
                let all = u64::MAX >> (64 - bits);
                let mask = random.0.next_u64() & random.0.next_u64() & all;
                FieldMatch::Ternary(vec![random.0.next_u64() & mask], vec![mask])
            };
            (fields, (0..count).map(|_| vec![ternary(33), ternary(20)]).collect())
        }
        // Prefixes of two words.
        _ => {
            let mut prefix = |n: u64| {
                let words = vec![0x2001_0db8 << 32 | random.word(20), random.word(64)];
                vec![FieldMatch::Prefix(words, 128 - (n * 70 / count) as u32)]
            };
            (vec![field(128, MatchKind::Prefix)], (0..count).map(&mut prefix).collect())
        }
    };
    TableDecl { name: "acl".into(), fields, entries, results: Vec::new() }
}

#[test]
fn trees_give_what_a_linear_scan_gives_however_rules_overlap() {
    let mut random = Random(Rng::new(5));
    for round in 0..20 {
        let (kind, count) = (round % 5, [17, 300, 2500, 5000][round as usize / 5]);
        let table = adversarial(&mut random, kind, count);
        let near = |random: &mut Random| -> Vec<u64> {
            let entry = &table.entries[random.0.below(table.entries.len() as u64) as usize];
            let words = entry.iter().flat_map(|demand| match demand {
                FieldMatch::Exact(v) | FieldMatch::Prefix(v, _) | FieldMatch::Ternary(v, _) => v.clone(),
                FieldMatch::Range(from, to) => vec![[from[0], to[0]][random.0.below(2) as usize]],
            });
            words.collect()
        };
        let keys: Vec<Vec<u64>> = (0..600)
            .map(|_| {
                let mut key = near(&mut random);
                let word = random.0.below(key.len() as u64) as usize;
                match random.0.below(4) {
                    0 => key[word] = key[word].wrapping_add(1),
                    1 => key[word] = key[word].wrapping_sub(1),
                    2 => key[word] ^= random.word(64) & random.word(64) & random.word(64),
                    _ => {}
                }
                key
            })
            .collect();
        let expected: Vec<i64> = keys.iter().map(|key| scanned(&table, key)).collect();
        let (module, func) = program(table.clone());
        let classifiers = vec![("acl".to_owned(), ClassifierTemplate::Cuts)];
        // Vectors have the length that the processor supports.
        let cpu = [CodegenCpu::Native, CodegenCpu::Level(1), CodegenCpu::Level(2), CodegenCpu::Level(3)]
            [round as usize % 4];
        let options = NativeOptions { classifiers, cpu, ..NativeOptions::default() };
        let mut engine = NativeEngine::of_module(module, func, &options).expect("compiled");
        assert_eq!(results(&mut engine, &keys), expected, "{count} rules of kind {kind}");
        let found: BTreeSet<i64> = expected.into_iter().collect();
        assert!(found.len() > 5, "{count} rules of kind {kind}: only {found:?} are met");
    }
}

#[test]
fn many_rules_become_trees_where_these_tell_them_apart() {
    let field = |bits, kind| FieldDecl { name: "f".into(), bits, kind };
    let exact = |n: u64| vec![FieldMatch::Exact(vec![n * 77])];
    let exact = |entries| TableDecl {
        name: "exact".into(),
        fields: vec![field(32, MatchKind::Exact)],
        entries: (0..entries).map(exact).collect(),
        results: Vec::new(),
    };
    // The words that differ are behind all words that trees divide by.
    let wide = |n: u64| {
        let words = (0..40).map(|word| FieldMatch::Exact(vec![if word == 39 { n } else { 1 }]));
        words.collect::<Vec<_>>()
    };
    let wide = TableDecl {
        name: "wide".into(),
        fields: (0..40).map(|_| field(64, MatchKind::Exact)).collect(),
        entries: (0..200).map(wide).collect(),
        results: Vec::new(),
    };
    let chosen = |table: &TableDecl| {
        let (module, func) = program(table.clone());
        let engine = NativeEngine::of_module(module, func, &NativeOptions::default()).expect("compiled");
        let chosen = engine.templates.iter().find(|chosen| chosen.table == table.name).expect("noted");
        (chosen.template.clone(), chosen.why.clone())
    };
    let expected = |template: &str, why: &str| (template.to_owned(), why.to_owned());
    assert_eq!(chosen(&exact(1000)), expected("cuts", "1000 rules, in trees of height 2"));
    assert_eq!(chosen(&exact(20)), expected("linear", "20 rules"));
    let crowded = "200 rules that no trees tell apart, with 1 sets of masks";
    assert_eq!(chosen(&wide), expected("tuples", crowded));
}

/// Contents of tables that are data are part of the image. (Only one program at a time can have fixed
/// addresses in a process, so this is one test.)
#[test]
fn built_classifiers_do_what_those_in_place_do() {
    let mut random = Random(Rng::new(11));
    for (entries, template) in [(1100, ClassifierTemplate::Cuts), (60, ClassifierTemplate::Tuples)] {
        let table = random.table(entries, &[MatchKind::Exact, MatchKind::Prefix]);
        let keys: Vec<Vec<u64>> = (0..200).map(|_| random.key(&table)).collect();
        let expected: Vec<i64> = keys.iter().map(|key| scanned(&table, key)).collect();
        let (module, func) = program(table);
        let classifiers = vec![("acl".to_owned(), template)];
        let options = NativeOptions { classifiers, ..NativeOptions::default() };
        let image = NativeEngine::build_module(module, func, &options).expect("built");
        let text = serde_json::to_string(&image).expect("plain data");
        let read: NativeImage = serde_json::from_str(&text).expect("what was written");
        let mut built = NativeEngine::of_image(&read.with_code(image.code().to_vec())).expect("loaded");
        assert!(built.maps().count() > 0, "{template:?}");
        assert_eq!(results(&mut built, &keys), expected, "{template:?}");
    }
}

#[test]
fn only_a_classifier_can_be_pinned() {
    let (module, func) = program(Random(Rng::new(1)).table(3, &[MatchKind::Exact]));
    let classifiers = vec![("alc".to_owned(), ClassifierTemplate::Tree)];
    let Err(e) =
        NativeEngine::of_module(module, func, &NativeOptions { classifiers, ..NativeOptions::default() })
    else {
        panic!("there is no such classifier");
    };
    assert_eq!(e.to_string(), "there is no classifier \"alc\"; there are: acl");
}
