//! Tests before lookups: a word of the key that has none of the values that the table's keys have is looked up in vain, and need
//! not be.

use millstream_ir::{Block, Inst};
use smallvec::smallvec;

use super::copy::{At, Copier, Env};
use super::decide::Row;
use super::eval::Abs;
use super::split::KeyAbs;

impl Copier<'_> {
    /// Tests the words of the key that the plan names. Gives the block in which to go on, and whether what the lookup finds is known by
    /// then.
    pub(super) fn tested(&mut self, inst: Inst, key: &KeyAbs, at: At, env: &mut Env) -> (Block, bool) {
        let mut out = at.out;
        for test in self.tests.get(&inst).cloned().unwrap_or_default() {
            let word = match key.piece(test.piece) {
                Some(Abs::Val(word)) => word,
                Some(Abs::Const(word)) => {
                    let bits = u64::MAX >> (64 - test.piece.size.bits());
                    if test.values.contains(&(word as u64 & bits)) {
                        continue;
                    }
                    self.report.tests += 1;
                    self.define(inst, Abs::Const(0), env);
                    return (out, true);
                }
                _ => continue,
            };
            let words = self.words(&[(word, test.piece.size)], out);
            let (passed, absent) = (self.new_block(), self.new_block());
            let row = |value: &u64| Row { key: smallvec![*value], heat: 0, target: passed };
            self.exact(&words, test.values.iter().map(row).collect(), out, absent);
            let mut without = env.clone();
            self.define(inst, Abs::Const(0), &mut without);
            self.region(At { next: at.next + 1, out: absent, ..at }, without);
            self.report.tests += 1;
            out = passed;
        }
        (out, false)
    }
}
