//! Memory SSA: versions of each alias class.
//!
//! Every store or call that may change a class makes a new version of it, and so does a join of differing
//! versions. A version's definition dominates every place where it is current.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, Cfg, DomTree, Function, Inst, Value};

use super::alias::{AliasClass, AliasClasses, ClassSet, MemoryAccess};
use super::ssa::frontiers;
use crate::effects::ModuleInfo;

/// Number of a version.
pub(crate) type MemoryVersion = u32;

/// Origin of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VersionOrigin {
    /// The state on entry to the function.
    Entry,
    /// A join.
    Join,
    /// A plain store; the second is the version before.
    Store(Inst, MemoryVersion),
    /// Anything else.
    Clobber,
}

/// Versions of all classes.
pub(crate) struct MemorySsa {
    origins: Vec<VersionOrigin>,
    /// Versions at the end of each block, by class.
    out: SecondaryMap<Block, Vec<MemoryVersion>>,
    joins: SecondaryMap<Block, ClassSet>,
}

/// Result of the search for the origin of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReachingDef {
    /// The version that first may have changed them.
    pub(crate) version: MemoryVersion,
    /// The store that wrote all of them, if it was one.
    pub(crate) store: Option<Inst>,
}

const STEPS: u32 = 48;

impl MemorySsa {
    /// Places the joins. Versions themselves are made by [`MemorySsa::enter`] and [`MemorySsa::step`].
    pub(crate) fn new(
        func: &Function,
        cfg: &Cfg,
        dom: &DomTree,
        classes: &AliasClasses,
        info: &ModuleInfo<'_>,
    ) -> MemorySsa {
        let mut changed: SecondaryMap<Block, ClassSet> = SecondaryMap::new();
        for &block in &cfg.rpo {
            for &inst in &func.blocks[block].insts {
                changed[block] |= classes.changed(func, inst, info);
            }
        }
        let frontiers = frontiers(cfg, dom);
        let mut joins: SecondaryMap<Block, ClassSet> = SecondaryMap::new();
        let mut work: Vec<Block> = cfg.rpo.iter().copied().filter(|&b| changed[b] != 0).collect();
        while let Some(block) = work.pop() {
            let set = changed[block] | joins[block];
            for &join in &frontiers[block] {
                if joins[join] | set != joins[join] {
                    joins[join] |= set;
                    work.push(join);
                }
            }
        }
        MemorySsa { origins: vec![VersionOrigin::Entry], out: SecondaryMap::new(), joins }
    }

    /// Versions at the start of a block. Blocks are entered in reverse postorder.
    pub(crate) fn enter(
        &mut self,
        block: Block,
        dom: &DomTree,
        classes: &AliasClasses,
    ) -> Vec<MemoryVersion> {
        let mut now = match dom.idom(block) {
            Some(up) => self.out[up].clone(),
            None => vec![0; classes.count()],
        };
        for class in classes_in(self.joins[block]) {
            now[class as usize] = self.make(VersionOrigin::Join);
        }
        now
    }

    /// Advances over an instruction that changes `set`.
    pub(crate) fn step(&mut self, now: &mut [MemoryVersion], set: ClassSet, inst: Inst, plain_store: bool) {
        for class in classes_in(set) {
            let before = now[class as usize];
            let origin =
                if plain_store { VersionOrigin::Store(inst, before) } else { VersionOrigin::Clobber };
            now[class as usize] = self.make(origin);
        }
    }

    /// Records the versions at the end of a block.
    pub(crate) fn leave(&mut self, block: Block, now: Vec<MemoryVersion>) {
        self.out[block] = now;
    }

    fn make(&mut self, origin: VersionOrigin) -> MemoryVersion {
        self.origins.push(origin);
        (self.origins.len() - 1) as MemoryVersion
    }

    /// Follows the bytes of an access back to the version that may have changed them.
    pub(crate) fn find(
        &self,
        access: &MemoryAccess,
        from: MemoryVersion,
        store_access: &SecondaryMap<Inst, Option<MemoryAccess>>,
    ) -> ReachingDef {
        let mut version = from;
        for _ in 0..STEPS {
            let VersionOrigin::Store(inst, before) = self.origins[version as usize] else { break };
            let Some(stored) = store_access[inst] else { break };
            match stored.overlaps(access) {
                Some(false) => version = before,
                Some(true) if stored.covers(access) => return ReachingDef { version, store: Some(inst) },
                _ => break,
            }
        }
        ReachingDef { version, store: None }
    }
}

fn classes_in(set: ClassSet) -> impl Iterator<Item = AliasClass> {
    let mut rest = set;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let class = rest.trailing_zeros();
            rest &= rest - 1;
            class
        })
    })
}

/// A value that memory is known to hold.
#[derive(Clone, Copy)]
pub(crate) struct AvailableValue {
    /// The value.
    pub(crate) value: Value,
    /// Block of the load.
    pub(crate) block: Block,
}
