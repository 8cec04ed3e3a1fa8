//! Lookups that are made because the map's twin is behind, while the rest of the variant goes on.
//!
//! A packet that has read its token knows one state of all maps, but for those that are behind: what it finds there may be newer. So
//! that nothing which it learns afterwards is older, it reads the token again after such a lookup. Where that is another, tables
//! may have changed: what follows is copied once more, and looks everything up.
//!
//! Invariant: of a map that is spared, all that the variant knows is behind this question, or the report says that it is not.

use millstream_ir::{AluOp, Block, BlockCall, Cond, Inst, Map, Op, Type, Value, Width};

use super::copy::{At, Copier, Env};
use super::eval::Abs;
use super::specialize::volatile_load;
use super::split::KeyAbs;

/// Instructions of the copy from which on no more is copied for this.
const MOST: usize = 12_000;

impl Copier<'_> {
    /// Asks whether the twin of a map is behind, if the map is to be spared: the blocks for no and for yes.
    pub(super) fn asked(&mut self, map: Map, out: Block) -> Option<[Block; 2]> {
        let behind = self.plan.spared.iter().find(|s| s.map == map)?.behind;
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

    /// Makes the lookup. Gives the entry and the block in which there is one; where there is none, the packet goes on in `absent`.
    pub(super) fn made(
        &mut self,
        inst: Inst,
        map: Map,
        key: &KeyAbs,
        absent: Block,
        at: At,
        env: &Env,
    ) -> (Value, Block) {
        let entry = self.residual_lookup(inst, map, key, at.out);
        let [late, on, there] = std::array::from_fn(|_| self.new_block());
        if let (Some(token), Some(guard)) = (self.token, self.plan.guard) {
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
        self.define(inst, Abs::Val(entry), &mut env);
        self.late = true;
        self.region(At { next: at.next + 1, out: late, ..at }, env);
        self.late = false;
        (entry, there)
    }
}
