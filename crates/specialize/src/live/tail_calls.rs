//! Programs that tail calls reach: the contents of the program arrays, and variants of the programs in them.
//!
//! A generation is a variant of the attached program together with variants of the programs that it reaches,
//! each of which reads the same token at its own entry. They call each other through arrays of the session's
//! own ([`millstream_specializer::transform::ProgArrayPair`]), which nobody else has. The user's arrays are
//! read and never written: a slot cannot be compared and swapped, so a write to one could undo the user's.
//!
//! # What closes which race
//!
//! *An array is written.* It is watched, so the token is revoked before the kernel applies the write, and
//! later packets take the original's path, through the array itself. The session's arrays follow
//! ([`TailCallChain::refill`]) before the generation is approved again.
//!
//! *A packet has read the token, then an array is written.* The packet goes on to the program that the slot
//! held when it read the token, or holds now, as it might have in the original. The program that it comes to
//! reads the token anew: if that is another one, it runs as in the original, so its view of other tables is
//! never older than one that the packet has seen before.
//!
//! *The profiling variant* has no token. It checks for writes since its arrays were found to match the user's
//! ([`crate::guard::Guard::chain`]).
//!
//! *The session ends, killed or not.* The kernel empties program arrays that no process holds. Calls through
//! them fail then, and the call through the user's array follows.
//!
//! Invariant: a variant calls through the session's arrays only programs that the user's held at a moment at
//! which its token could be read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use millstream_ir::Map as IrMap;
use millstream_kernel::{KernelError, KernelMap, KernelProgram};
use millstream_loader::Session;
use millstream_object::{FuncId, InitialValue, LinkedProgram, MapId};
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::transform::{LookupSite, SpecializationPlan};
use millstream_specializer::variant::{VariantCompiler, object_map};
use rustc_hash::FxHashMap;

use crate::guard::{Guard, GuardError};

/// Programs on one path of an inlined chain, at most; the kernel allows 33 tail calls.
const LONGEST: usize = 16;

/// A program array of the object.
#[derive(Debug)]
struct ProgArray {
    of: IrMap,
    map: KernelMap,
    /// Index by which the guard knows it.
    index: u32,
    /// Placeholder of the session's own array.
    place: MapId,
}

/// A program whose code is known.
#[derive(Debug)]
struct KnownProgram {
    func: FuncId,
    id: u32,
    tag: [u8; 8],
    maps: Vec<u32>,
}

/// The program arrays of the object, and the programs that may be in them.
#[derive(Debug, Default)]
pub(super) struct ProgArrays {
    arrays: Vec<ProgArray>,
    programs: Vec<KnownProgram>,
    /// Functions of the object by program id, as far as they have been looked up.
    found: RefCell<FxHashMap<u32, Option<FuncId>>>,
}

/// A slot of a program array.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ProgArraySlot {
    key: Vec<u8>,
    /// The program in it.
    id: u32,
    /// Function of the object that it is, if it is one.
    func: Option<FuncId>,
}

/// An array, a slot, and the function of the object in it, if it is one.
type TailCallTarget = (IrMap, u32, Option<FuncId>);

/// Contents of the program arrays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ProgArrayContents(BTreeMap<IrMap, Vec<ProgArraySlot>>);

impl ProgArrayContents {
    /// The programs of the object that the first one reaches by tail calls; itself if something calls it.
    pub(super) fn reached(&self, compiler: &VariantCompiler) -> BTreeSet<FuncId> {
        let parts: BTreeSet<FuncId> = compiler.parts().collect();
        let (mut reached, mut work) = (BTreeSet::new(), vec![compiler.program()]);
        while let Some(func) = work.pop() {
            let called = self.called(compiler, func);
            for callee in called.into_iter().filter_map(|(.., func)| func).filter(|f| parts.contains(f)) {
                if reached.insert(callee) {
                    work.push(callee);
                }
            }
        }
        reached
    }

    /// Finds the slots that a program may call: array, slot, and the function of the object in it.
    fn called(&self, compiler: &VariantCompiler, func: FuncId) -> Vec<TailCallTarget> {
        let calls = compiler.calls(func);
        let is_called = |(of, slot, ..): &(IrMap, u32, u32, Option<FuncId>)| {
            calls.iter().any(|(array, named)| array == of && named.is_none_or(|named| named == *slot))
        };
        self.slots().filter(is_called).map(|(of, slot, _, func)| (of, slot, func)).collect()
    }

    /// Lists the filled slots: array, number, the program's id, and the function of the object in it.
    pub(super) fn slots(&self) -> impl Iterator<Item = (IrMap, u32, u32, Option<FuncId>)> {
        let number = |key: &[u8]| key.try_into().map_or(0, u32::from_ne_bytes);
        self.0
            .iter()
            .flat_map(move |(of, slots)| slots.iter().map(move |s| (*of, number(&s.key), s.id, s.func)))
    }

    /// The programs whose code is known, with their ids.
    pub(super) fn known(&self) -> impl Iterator<Item = (FuncId, u32)> {
        self.0.values().flatten().filter_map(|slot| Some((slot.func?, slot.id)))
    }
}

impl ProgArrayContents {
    /// Slots whose programs can be inlined at the call: all programs that are reached are known, and none is
    /// reached twice on one path. Empty if that cannot be proved.
    pub(super) fn joinable(&self, compiler: &VariantCompiler) -> Vec<(IrMap, u32, FuncId)> {
        let programs = self.reached(compiler).into_iter().chain([compiler.program()]);
        let programs: Vec<FuncId> = programs.collect();
        if programs.iter().any(|func| compiler.may_call_more(*func)) {
            return Vec::new();
        }
        let slots: BTreeSet<TailCallTarget> =
            programs.into_iter().flat_map(|func| self.called(compiler, func)).collect();
        let parts: BTreeSet<FuncId> = compiler.parts().collect();
        let is_known = slots.iter().all(|(.., func)| func.is_some_and(|f| parts.contains(&f)));
        let longest = self.longest(compiler, compiler.program(), &mut BTreeMap::new());
        if !is_known || longest.is_none_or(|n| n > LONGEST) {
            return Vec::new();
        }
        slots.into_iter().filter_map(|(of, slot, func)| Some((of, slot, func?))).collect()
    }

    /// Number of programs on the longest path from `func`; `None` if a path has a cycle. `known` has earlier
    /// results, and `None` for the programs on the current path.
    fn longest(
        &self,
        compiler: &VariantCompiler,
        func: FuncId,
        known: &mut BTreeMap<FuncId, Option<usize>>,
    ) -> Option<usize> {
        if let Some(found) = known.get(&func) {
            return *found;
        }
        known.insert(func, None);
        let mut longest = 1;
        for callee in self.called(compiler, func).into_iter().filter_map(|(.., func)| func) {
            longest = longest.max(1 + self.longest(compiler, callee, known)?);
        }
        known.insert(func, Some(longest));
        Some(longest)
    }
}

impl ProgArrays {
    /// Makes the guard watch the arrays, except those that the operator excludes.
    pub(super) fn new(
        compiler: &VariantCompiler,
        session: &Session<'_>,
        exclude: &[String],
        programs: &[(FuncId, &KernelProgram)],
        guard: &mut Guard,
    ) -> Result<ProgArrays, GuardError> {
        let mut links = ProgArrays::default();
        for &(of, place) in compiler.arrays() {
            let Some(map) = session.map(object_map(of)) else { continue };
            if exclude.contains(&compiler.declaration(of).name) {
                continue;
            }
            let map = map.try_clone()?;
            let index = guard.watch(&map)?;
            links.arrays.push(ProgArray { of, map, index, place });
        }
        for (func, program) in programs {
            let info = program.info()?;
            links.programs.push(KnownProgram { func: *func, id: info.id, tag: info.tag, maps: info.map_ids });
        }
        Ok(links)
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// Placeholder of the session's own array for this one of the user's.
    pub(super) fn place_of(&self, of: IrMap) -> Option<MapId> {
        self.arrays.iter().find(|a| a.of == of).map(|a| a.place)
    }

    /// Names of the arrays.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.arrays.iter().map(|a| a.map.info().name.clone())
    }

    /// The array that the guard knows by this index.
    pub(super) fn of_index(&self, index: u32) -> Option<IrMap> {
        self.arrays.iter().find(|a| a.index == index).map(|a| a.of)
    }

    /// The arrays, their places, and their numbers of slots.
    pub(super) fn rooms(&self) -> Vec<(IrMap, MapId, u32)> {
        self.arrays.iter().map(|a| (a.of, a.place, a.map.info().max_entries)).collect()
    }

    /// Returns true if the contents of the arrays may have changed.
    pub(super) fn is_touched(&self, dirty: &DirtyKeys) -> bool {
        self.arrays.iter().any(|a| dirty.touches(a.of))
    }

    /// Reads the contents of the arrays.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn read(&self) -> Result<ProgArrayContents, KernelError> {
        let mut held = BTreeMap::new();
        for array in &self.arrays {
            let mut slots = Vec::new();
            // Values read as the ids of the programs.
            for (key, id) in array.map.entries()?.iter() {
                let id = id.try_into().map_or(0, u32::from_ne_bytes);
                let known = *self.found.borrow_mut().entry(id).or_insert_with(|| known(&self.programs, id));
                slots.push(ProgArraySlot { key: key.to_vec(), id, func: known });
            }
            slots.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            held.insert(array.of, slots);
        }
        Ok(ProgArrayContents(held))
    }
}

/// Puts programs into the arrays that the object fills with them, and that are new.
pub(super) fn fill_new(
    compiler: &VariantCompiler,
    session: &Session<'_>,
    programs: &[(FuncId, KernelProgram)],
    is_new: impl Fn(&str) -> bool,
) -> Result<(), KernelError> {
    for (map, n) in compiler.object().maps.iter().zip(0..) {
        let Some(array) = session.map(MapId(n)).filter(|_| is_new(&map.name)) else { continue };
        for (slot, value) in &map.initial {
            let InitialValue::Program(func) = value else { continue };
            if let Some((_, program)) = programs.iter().find(|(f, _)| f == func) {
                array.update_fd(&slot.to_ne_bytes(), program.as_fd())?;
            }
        }
    }
    Ok(())
}

/// Finds the function of the object that a loaded program is: the session has loaded it itself, or it has the
/// very same code with the same maps.
fn known(programs: &[KnownProgram], id: u32) -> Option<FuncId> {
    if let Some(own) = programs.iter().find(|k| k.id == id) {
        return Some(own.func);
    }
    let info = KernelProgram::from_id(id).and_then(|p| p.info()).ok()?;
    let same = |k: &&KnownProgram| k.tag == info.tag && info.map_ids.starts_with(&k.maps);
    programs.iter().find(same).map(|k| k.func)
}

/// A variant of a program that tail calls reach.
#[derive(Debug)]
struct CalleeVariant {
    func: FuncId,
    program: KernelProgram,
    linked: LinkedProgram,
}

/// The session's own arrays, by the user's arrays that they stand for. They are emptied when they no longer
/// follow the user's: a packet that was held up in an earlier profiling variant finds that the next arrays
/// are alike, and then calls through the user's.
#[derive(Debug, Default)]
struct ShadowProgArrays(Vec<(IrMap, KernelMap)>);

impl ShadowProgArrays {
    /// Empties them: calls go through the user's arrays from then on.
    fn empty(&self) -> Result<(), KernelError> {
        for (_, place) in &self.0 {
            for (key, _) in place.entries()?.iter() {
                place.delete(key)?;
            }
        }
        Ok(())
    }
}

impl Drop for ShadowProgArrays {
    fn drop(&mut self) {
        if let Err(e) = self.empty() {
            tracing::debug!("slots of the session's own stay filled: {e}");
        }
    }
}

/// A program, if it is still there.
fn there(id: u32) -> Result<Option<KernelProgram>, KernelError> {
    match KernelProgram::from_id(id) {
        Err(e) if e.errno() == Some(libc::ENOENT) => Ok(None),
        found => found.map(Some),
    }
}

/// Programs and arrays that belong to a variant of the attached program.
#[derive(Debug, Default)]
pub(super) struct TailCallChain {
    /// Contents of the user's arrays when the session's were filled; `None` if the filling was interrupted.
    held: Option<ProgArrayContents>,
    callees: Vec<CalleeVariant>,
    places: ShadowProgArrays,
    /// The attached program itself, if something calls it.
    first: Option<(FuncId, KernelProgram)>,
    /// Slots whose programs are inlined at the call.
    joined: Vec<(IrMap, u32, FuncId)>,
    /// The programs that were known to be reached, now or before: each of them that is to be called has its
    /// variant.
    knows: BTreeSet<FuncId>,
}

impl TailCallChain {
    /// Creates a chain that calls nothing yet. `knows` are the programs that are known to be reached.
    pub(super) fn new(knows: BTreeSet<FuncId>, joined: Vec<(IrMap, u32, FuncId)>) -> TailCallChain {
        TailCallChain { held: Some(ProgArrayContents::default()), knows, joined, ..TailCallChain::default() }
    }

    /// Replaces `array` by `place` in the calls of the program.
    pub(super) fn call_through(&mut self, array: IrMap, place: KernelMap) {
        self.places.0.push((array, place));
    }

    /// The session's arrays, by the user's arrays that they stand for.
    pub(super) fn placed(&self) -> &[(IrMap, KernelMap)] {
        &self.places.0
    }

    /// Adds the variant of a program that is called.
    pub(super) fn add(&mut self, func: FuncId, program: KernelProgram, linked: LinkedProgram) {
        self.callees.push(CalleeVariant { func, program, linked });
    }

    /// Sets the variant of the attached program itself.
    pub(super) fn begin_with(&mut self, func: FuncId, program: KernelProgram) {
        self.first = Some((func, program));
    }

    /// Fills the session's arrays with the counterparts of the programs in the user's. A program that no
    /// longer exists is removed, and its slot stays empty, so that the call is made through the user's array.
    pub(super) fn fill(&mut self, held: ProgArrayContents) -> Result<(), KernelError> {
        // If this fails half way, they match neither state.
        let before = self.held.take();
        if before.is_none() {
            self.places.empty()?;
        }
        for (of, place) in &self.places.0 {
            let (before, now) = (before.as_ref().and_then(|held| held.0.get(of)), held.0.get(of));
            let now = now.map_or(&[][..], Vec::as_slice);
            for slot in before.into_iter().flatten().filter(|s| !now.iter().any(|n| n.key == s.key)) {
                place.delete(&slot.key)?;
            }
            for slot in now.iter().filter(|s| !before.is_some_and(|b| b.contains(s))) {
                let variant = slot.func.and_then(|func| self.variant(func));
                let itself = if variant.is_none() { there(slot.id)? } else { None };
                match variant.or(itself.as_ref()) {
                    Some(program) => place.update_fd(&slot.key, program.as_fd())?,
                    None => drop(place.delete(&slot.key)?),
                }
            }
        }
        self.held = Some(held);
        Ok(())
    }

    /// Returns true if the session's arrays were filled from `held`.
    pub(super) fn is_filled_by(&self, held: &ProgArrayContents) -> bool {
        self.held.as_ref() == Some(held)
    }

    /// The programs of the user's arrays whose code is known, with their ids.
    pub(super) fn known(&self) -> impl Iterator<Item = (FuncId, u32)> {
        self.held.iter().flat_map(ProgArrayContents::known)
    }

    /// Returns true if a variant of `func` is called.
    pub(super) fn calls(&self, func: FuncId) -> bool {
        !self.places.0.is_empty() && self.variant(func).is_some()
    }

    fn variant(&self, func: FuncId) -> Option<&KernelProgram> {
        let own = self.callees.iter().find(|c| c.func == func).map(|c| &c.program);
        own.or_else(|| self.first.as_ref().filter(|(first, _)| *first == func).map(|(_, program)| program))
    }

    /// Follows the user's arrays, if that needs no new code. Meanwhile no packet may be sent this way by a
    /// token.
    pub(super) fn refill(&mut self, compiler: &VariantCompiler, held: ProgArrayContents) -> bool {
        if self.is_filled_by(&held) {
            return true;
        }
        let is_there = |join: &(IrMap, u32, FuncId)| {
            held.slots().any(|(of, slot, _, func)| (of, slot, func) == (join.0, join.1, Some(join.2)))
        };
        // If the attached program itself is called, there are no caches.
        let first = Some(compiler.program()).filter(|first| held.slots().any(|(.., f)| f == Some(*first)));
        let mut reached = held.reached(compiler);
        reached.extend(first);
        let is_same = reached.is_subset(&self.knows) && self.joined.iter().all(is_there);
        // If chains of calls now have cycles, the inlined ones would be too short.
        let is_right = self.joined.is_empty() || !held.joinable(compiler).is_empty();
        is_same && is_right && self.fill(held).is_ok()
    }

    /// Returns true if `func` is inlined at a call.
    pub(super) fn joins(&self, func: FuncId) -> bool {
        self.joined.iter().any(|(.., joined)| *joined == func)
    }

    /// The programs, in the form in which they are linked for the variant.
    pub(super) fn linked(&self) -> Vec<(FuncId, &LinkedProgram)> {
        self.callees.iter().map(|c| (c.func, &c.linked)).collect()
    }
}

/// Chooses from `reached` the programs that need variants for a plan: those that it changes, and those
/// through which they are reached. Empty if it changes none.
pub(super) fn callees(
    compiler: &VariantCompiler,
    reached: &BTreeSet<FuncId>,
    plan: &SpecializationPlan,
) -> Vec<FuncId> {
    let mut reached = reached.clone();
    reached.remove(&compiler.program());
    let changed = |func: &FuncId| {
        let of = |s: &&LookupSite| millstream_bpf::module::func(*func) == s.func;
        let mut sites = compiler.sites().iter().filter(of);
        sites.any(|s| plan.sites.iter().any(|p| p.site == s.id) || plan.tests.iter().any(|t| t.site == s.id))
    };
    if !reached.iter().any(changed) {
        return Vec::new();
    }
    let calls = |func: &FuncId| !compiler.calls(*func).is_empty();
    reached.into_iter().filter(|func| changed(func) || calls(func)).collect()
}
