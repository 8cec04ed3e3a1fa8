//! Lookups that are made in a map because its twin is out of date, while the rest of the variant goes on.
//!
//! A packet that has read its token sees one state of all maps, except those whose twins are out of date:
//! entries found there may be newer. So that nothing it learns afterwards is older, it reads the token again
//! after such a lookup. If the token has changed, tables may have changed: the code that follows is copied
//! once more, and makes all lookups.
//!
//! Invariant: everything that the variant knows of a spared map stands behind this test, or the report says
//! that it does not.

use millstream_ir::{AluOp, Block, BlockCall, Cond, Inst, Map, Op, Type, Value, Width};

use super::abstract_key::AbstractKey;
use super::eval::AbstractValue;
use super::partial_eval::{AbstractEnv, CopyPosition, PartialEvaluator};
use super::volatile::volatile_load;

/// Size of the copy, in instructions, from which no more is copied for this.
const MOST: usize = 12_000;

impl PartialEvaluator<'_> {
    /// Tests if the twin of a map is out of date, if the map is to be spared. Returns the blocks for no and
    /// yes.
    pub(super) fn emit_deopt_test(&mut self, map: Map, out: Block) -> Option<[Block; 2]> {
        let behind = self.plans.plan.spared.iter().find(|s| s.map == map)?.behind;
        let token = self.token.filter(|_| self.out.insts.len() < MOST);
        let Some(token) = token else {
            self.report.unspared.insert(map);
            return None;
        };
        let blocks = [self.new_block(), self.new_block()];
        let [in_step, made] = blocks;
        self.branch(
            Cond::Set,
            token,
            i64::from(behind),
            [BlockCall::new(made), BlockCall::new(in_step)],
            out,
        );
        Some(blocks)
    }

    /// Makes the lookup. Returns the entry and the block in which there is one; packets without an entry go
    /// to `absent`.
    pub(super) fn emit_map_lookup(
        &mut self,
        inst: Inst,
        map: Map,
        key: &AbstractKey,
        absent: Block,
        at: CopyPosition,
        env: &AbstractEnv,
    ) -> (Value, Block) {
        let entry = self.residual_lookup(inst, map, key, at.out);
        let [late, on, there] = std::array::from_fn(|_| self.new_block());
        if let (Some(token), Some(guard)) = (self.token, self.plans.plan.guard) {
            let address = self.guard_word(&guard, guard.offset, at.out);
            let now = self.value(at.out, volatile_load(0), &[address], Type::I64);
            let differs = self.both(AluOp::Xor, now, token, at.out);
            let seen = self.by(AluOp::And, differs, !guard.unseen, at.out);
            let none = self.constant(0, at.out);
            let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
            let targets = [BlockCall::new(late), BlockCall::new(on)];
            self.emit(at.out, branch, &[seen, none], &targets, Type::Any);
        }
        self.if_absent(entry, [BlockCall::new(absent), BlockCall::new(there)], on);
        let mut env = env.clone();
        self.define(inst, AbstractValue::Val(entry), &mut env);
        self.mode.late = true;
        self.region(CopyPosition { next: at.next + 1, out: late, ..at }, env);
        self.mode.late = false;
        (entry, there)
    }
}
