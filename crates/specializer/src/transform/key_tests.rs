//! Tests before lookups. A word of the key that has none of the values that occur in the table's keys makes
//! the lookup fail for certain, so the lookup need not be made.
//!
//! A test stands early enough to spare other lookups, too: those whose results make no difference once its
//! outcome is known ([`super::dead_lookup_elimination`]). A classifier asks for the protocol last, and for
//! nothing else if no rule is about that protocol.

use cranelift_entity::EntityRef;
use millstream_ir::{Block, Cfg, DomTree, Func, Function, Inst, KeyPiece, Module, Size, Value, ValueDef};
use millstream_isa::MapType;
use rustc_hash::FxHashMap;
use smallvec::smallvec;

use super::abstract_key::AbstractKey;
use super::dead_lookup_elimination::{EliminationContext, PairedValue, PossibleResults};
use super::decision_tree::{self, DecisionCase};
use super::error::TransformError;
use super::eval::{AbstractValue, AssumedResults, ValueBytes};
use super::partial_eval::{AbstractEnv, BlockContinuation, CopyPosition, PartialEvaluator, ResolvedKeyTest};
use super::plan::{MapContents, SpecializationPlan, UnknownContents};
use super::site::{KeyForm, LookupInst, LookupSite, SiteId};
use super::stack_key;

/// Checks that the tests fit their lookups; groups them by the lookup that they stand before.
pub(super) fn check_tests<'p>(
    module: &Module,
    func: Func,
    all: &[LookupSite],
    plan: &'p SpecializationPlan,
) -> Result<FxHashMap<Inst, Vec<ResolvedKeyTest<'p>>>, TransformError> {
    let src = &module.funcs[func];
    let cfg = Cfg::new(src);
    let dom = DomTree::new(src, &cfg);
    let find = |id: SiteId| all.iter().find(|s| s.id == id).ok_or(TransformError::NoSuchSite(id));
    let mut by_inst: FxHashMap<Inst, Vec<ResolvedKeyTest<'_>>> = FxHashMap::default();
    for test in &plan.tests {
        let (site, at) = (find(test.site)?, find(test.at)?);
        let decl = &module.maps[site.map];
        if !site.is_comparable() || !site.layout().is_some_and(|l| l.contains(&test.piece)) {
            return Err(TransformError::NotComparable(test.site));
        }
        let fits = match &test.otherwise {
            None => decl.kind == MapType::HASH.0,
            Some(value) => value.len() == decl.value_size as usize && in_range(module, func, site),
        };
        if site.is_inner || !fits {
            return Err(TransformError::UnfitMap { map: site.map, what: "it has no such words in its keys" });
        }
        let word = word(src, (&cfg, &dom), site, test.piece);
        if test.at != test.site && !word.is_some_and(|word| is_known(src, (&cfg, &dom), word, site, at)) {
            return Err(TransformError::NotComparable(test.site));
        }
        by_inst.entry(at.inst).or_default().push(ResolvedKeyTest { plan: test, lookup: site.inst, word });
    }
    Ok(by_inst)
}

/// The value of a piece of a lookup's key.
fn word(func: &Function, (cfg, dom): (&Cfg, &DomTree), site: &LookupSite, piece: KeyPiece) -> Option<Value> {
    match &site.key {
        KeyForm::Values(layout) => {
            let at = layout.iter().position(|p| *p == piece)?;
            func.insts[site.inst].args.get(at).copied()
        }
        KeyForm::Stack(_) => {
            let pieces = stack_key::on_stack(func, (cfg, dom), site.block, site.inst, site.key_size)?;
            pieces.into_iter().find(|stored| stored.piece == piece)?.value
        }
        KeyForm::MapValue(_) | KeyForm::Memory => None,
    }
}

/// Returns true if `other` is on every path to `site`, and `word`, a word of the key of `site`, is defined
/// there.
fn is_known(
    func: &Function,
    (cfg, dom): (&Cfg, &DomTree),
    word: Value,
    site: &LookupSite,
    other: &LookupSite,
) -> bool {
    let place = |block: Block, inst: Inst| func.blocks[block].insts.iter().position(|i| *i == inst);
    // In one block, what comes first; else by dominance.
    let precedes = |(a, at): (Block, Option<usize>), (b, by): (Block, Option<usize>)| {
        if a == b { at < by } else { dom.dominates(a, b) }
    };
    let here = (other.block, place(other.block, other.inst));
    let defined = match func.defs[word] {
        ValueDef::Param(block, _) => dom.dominates(block, other.block),
        ValueDef::Inst(inst) => {
            let block = cfg.rpo.iter().find(|b| func.blocks[**b].insts.contains(&inst));
            block.is_some_and(|block| precedes((*block, place(*block, inst)), here))
        }
    };
    defined && precedes(here, (site.block, place(site.block, site.inst)))
}

/// Returns true if the index of a lookup in an array is always within the array.
pub fn in_range(module: &Module, func: Func, site: &LookupSite) -> bool {
    let (body, decl) = (&module.funcs[func], &module.maps[site.map]);
    let cfg = Cfg::new(body);
    let dom = DomTree::new(body, &cfg);
    let one = [KeyPiece { offset: 0, size: Size::W }];
    let index = match &site.key {
        KeyForm::Values(layout) if layout[..] == one => body.insts[site.inst].args.first().copied(),
        KeyForm::Stack(layout) if layout[..] == one => word(body, (&cfg, &dom), site, one[0]),
        _ => None,
    };
    let bits = index.and_then(|index| body.types[index].int_bits());
    decl.kind == MapType::ARRAY.0 && bits.is_some_and(|bits| bits <= 16 && 1 << bits <= decl.max_entries)
}

/// Lookups whose results make no difference if the lookup at `site` finds `finds`, in program order. Only
/// those that are on every path to `site`, and where the word of its key is known.
pub fn dead_lookups_after(
    module: &Module,
    all: &[LookupSite],
    (site, piece): (&LookupSite, KeyPiece),
    finds: Option<Vec<u8>>,
    contents: &dyn MapContents,
) -> Vec<SiteId> {
    let func = &module.funcs[site.func];
    let cfg = Cfg::new(func);
    let dom = DomTree::new(func, &cfg);
    let Some(word) = word(func, (&cfg, &dom), site, piece) else { return Vec::new() };
    let assumed = AssumedResults::from_iter([(site.inst, finds)]);
    let outlook = EliminationContext { module, func, cfg: &cfg, contents, fields: &[], assumed: &assumed };
    let before = |value: Value, _: &mut Vec<PossibleResults>| {
        func.as_const(value).map_or(PairedValue::Same(value), PairedValue::Const)
    };
    let is_spared = |other: &&LookupSite| {
        is_known(func, (&cfg, &dom), word, site, other)
            && outlook.is_result_unused((other.block, other.inst), &before)
    };
    let others = all.iter().filter(|other| other.func == site.func && other.id != site.id);
    let mut spared: Vec<&LookupSite> = others.filter(is_spared).collect();
    let place = |s: &LookupSite| func.blocks[s.block].insts.iter().position(|i| *i == s.inst);
    spared.sort_by_key(|s| (cfg.rpo_index[s.block], place(s)));
    spared.into_iter().map(|s| s.id).collect()
}

/// Emits the tests that stand before a lookup. Returns the block to continue in; `None` if the lookup
/// certainly finds nothing.
pub(super) fn tested(
    evaluator: &mut PartialEvaluator<'_>,
    inst: Inst,
    looked: &LookupInst<'_>,
    key: &AbstractKey,
    at: CopyPosition,
    env: &AbstractEnv,
) -> Option<Block> {
    let mut out = at.out;
    for test in evaluator.plans.tests.get(&inst).cloned().unwrap_or_default() {
        let ResolvedKeyTest { plan, lookup, word } = test;
        let known = match word {
            _ if lookup == inst => key.piece(plan.piece),
            word => word.map(|word| env[word.index()]),
        };
        let word = match known {
            Some(AbstractValue::Val(word)) if !evaluator.assumed.contains_key(&lookup) => word,
            Some(AbstractValue::Const(word)) if lookup == inst && plan.otherwise.is_none() => {
                let bits = u64::MAX >> (64 - plan.piece.size.bits());
                if plan.values.contains(&(word as u64 & bits)) {
                    continue;
                }
                evaluator.report.tests += 1;
                return None;
            }
            _ => continue,
        };
        let words = decision_tree::words(evaluator, &[(word, plan.piece.size)], out);
        let (passed, other) = (evaluator.new_block(), evaluator.new_block());
        let row = |value: &u64| DecisionCase { key: smallvec![*value], heat: 0, target: passed };
        decision_tree::exact(evaluator, &words, plan.values.iter().map(row).collect(), out, other);
        let mut without = env.clone();
        evaluator.assumed.insert(lookup, plan.otherwise.clone());
        if let BlockContinuation::On(out) =
            evaluator.lookup(inst, looked, CopyPosition { out: other, ..at }, &mut without)
        {
            evaluator.region(CopyPosition { next: at.next + 1, out, ..at }, without);
        }
        evaluator.assumed.remove(&lookup);
        evaluator.report.tests += 1;
        out = passed;
    }
    Some(out)
}

/// Returns true if the result of a lookup makes no difference here.
pub(super) fn is_dead_lookup(
    evaluator: &PartialEvaluator<'_>,
    inst: Inst,
    block: Block,
    env: &AbstractEnv,
) -> bool {
    // Of tables that may have changed, no more is believed.
    let nothing = AssumedResults::default();
    let (contents, fields, assumed) = match evaluator.mode.late {
        true => (&UnknownContents as &dyn MapContents, &[][..], &nothing),
        false => (evaluator.plans.contents, evaluator.plans.plan.fields.as_slice(), &evaluator.assumed),
    };
    let outlook = EliminationContext {
        module: evaluator.original.module,
        func: evaluator.original.src,
        cfg: &evaluator.original.cfg,
        contents,
        fields,
        assumed,
    };
    let before = |value: Value, held: &mut Vec<PossibleResults>| match env[value.index()] {
        AbstractValue::Const(constant) => PairedValue::Const(constant),
        AbstractValue::Ptr(id, at) => {
            let known = &evaluator.lookups.known[id];
            let bytes = match &known.bytes {
                ValueBytes::One(bytes) if contents.constant(known.map, 0..bytes.len() as u32) => {
                    Some(bytes.clone())
                }
                _ => None,
            };
            let or_null = matches!(known.bytes, ValueBytes::Unknown);
            held.push(PossibleResults { values: vec![(known.map, bytes)], or_null, differs: false });
            PairedValue::Found(held.len() - 1, at)
        }
        AbstractValue::Val(_) | AbstractValue::In(..) | AbstractValue::None => PairedValue::Same(value),
    };
    outlook.is_result_unused((block, inst), &before)
}

#[cfg(test)]
mod tests {
    use millstream_ir::text::parse_module;

    use super::super::site::sites;
    use super::*;

    /// Maps of which only one thing is known: nobody writes them.
    struct ReadOnly;

    impl MapContents for ReadOnly {
        fn lookup(&self, _: millstream_ir::Map, _: &[u8]) -> Option<Option<Vec<u8>>> {
            None
        }

        fn constant(&self, _: millstream_ir::Map, _: std::ops::Range<u32>) -> bool {
            true
        }
    }

    /// Lookups spared in a program that looks up its argument in `map0`, then in `map1`. `between` is
    /// inserted between the two, `after` behind them.
    fn spared(kind: u32, between: &str, after: &str) -> usize {
        let text = format!(
            "map map0 \"a\" kind={kind} key=4 value=8 entries=8 flags=0
map map1 \"b\" kind=1 key=4 value=8 entries=8 flags=0
map map2 \"state\" kind=2 key=4 value=8 entries=1 flags=0
fn0 \"f\" program(6) returns {{
  ss0 size=8 align=8
block0(v0: ptr(ctx)):
  v1: i32 = load.w.u.12.plain v0
  v2: i32 = load.w.u.16.plain v0
  v3: i64 = const.0
  v4: i64 = const.1
  v5: ptr(value:map2) = map_value_addr.map2.0
  v6: ptr(stack) = stack_addr.ss0.0
  v10: ptr(value?:map0) = map_lookup.map0.[w@0] v1
  br.eq.w64 v10, v3, block3(v3), block1
block1:
  v11: i64 = load.dw.u.0.plain v10
  {between}
  v20: ptr(value?:map1) = map_lookup.map1.[w@0] v2
  br.eq.w64 v20, v3, block3(v3), block2
block2:
  v21: i64 = load.dw.u.0.plain v20
  v22: i64 = alu.and.w64 v11, v21
  jump block3(v22)
{after}
}}
"
        );
        let module = parse_module(&text).unwrap_or_else(|e| panic!("{e:?}: {text}"));
        let func = module.funcs.keys().next().unwrap();
        let all = sites(&module, func, 0);
        let [_, second] = &all[..] else { panic!("{all:?}") };
        let piece = KeyPiece { offset: 0, size: Size::W };
        let by = |finds| dead_lookups_after(&module, &all, (second, piece), finds, &ReadOnly).len();
        let found = by(None);
        assert_eq!(by(Some(vec![0; 8])), found, "no bits, no rule");
        assert_eq!(by(Some(vec![1; 8])), 0);
        found
    }

    const ANSWERS: &str = "block3(v30: i64):
  return v30";

    #[test]
    fn what_makes_no_difference_is_spared() {
        assert_eq!(spared(1, "", ANSWERS), 1);
        assert_eq!(spared(11, "v12: i32 = load.w.u.20.plain v0", ANSWERS), 1);
        // Where ways end apart, with one answer.
        let apart = "block3(v30: i64):
  br.eq.w64 v30, v3, block4, block5
block4:
  return v3
block5:
  return v4";
        assert_eq!(spared(1, "", apart), 1);
    }

    #[test]
    fn what_others_see_is_not_spared() {
        // A lookup that is noted in the map.
        assert_eq!(spared(9, "", ANSWERS), 0);
        // What happens for some only.
        assert_eq!(spared(1, "store.dw.0.plain v5, v4", ANSWERS), 0);
        assert_eq!(spared(1, "v12: any = helper.5", ANSWERS), 1);
        assert_eq!(spared(1, "v12: any = helper.6 v5, v4", ANSWERS), 0);
        // What is done with what was found.
        let kept = "block3(v30: i64):
  store.dw.0.plain v5, v10
  return v30";
        assert_eq!(spared(1, "", kept), 0);
        // What happens when all is over is for all.
        let counted = "block3(v30: i64):
  store.dw.0.plain v5, v30
  return v30";
        assert_eq!(spared(1, "", counted), 1);
        // Nobody sees what is on the stack, unless it is read where ways have met.
        assert_eq!(spared(1, "store.dw.0.plain v6, v4", ANSWERS), 1);
        let read = "block3(v30: i64):
  v31: i64 = load.dw.u.0.plain v6
  v32: i64 = alu.add.w64 v31, v30
  return v32";
        assert_eq!(spared(1, "store.dw.0.plain v6, v4", read), 0);
        assert_eq!(spared(1, "", read), 1);
        let written = "block3(v30: i64):
  store.dw.0.plain v6, v2
  v31: i64 = load.dw.u.0.plain v6
  v32: i64 = alu.add.w64 v31, v30
  return v32";
        assert_eq!(spared(1, "store.dw.0.plain v6, v4", written), 1);
        // A loop may go on for ever.
        let again = "block3(v30: i64):
  v31: i64 = alu.add.w64 v30, v4
  br.ult.w64 v31, v11, block3(v31), block4
block4:
  return v30";
        assert_eq!(spared(1, "", again), 0);
    }
}
