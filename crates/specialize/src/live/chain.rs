//! Programs that tail calls reach: what the program arrays hold, and variants of that beside them.
//!
//! A generation is a variant of the attached program together with variants of the programs that it reaches, each of which reads the same token
//! at its own entry. They call each other through arrays of the session's own ([`crate::transform::Chained`]), which nobody else
//! has. The user's arrays are read and never written: a slot cannot be compared and swapped, so a write to one could undo the user's.
//!
//! # What closes which race
//!
//! *An array is written.* It is watched, so the token goes before the kernel applies the write, and packets that come after it take the original's
//! way, through the array itself. The session's arrays follow ([`Chain::refill`]) before the generation is approved again.
//!
//! *A packet has read the token, then an array is written.* It goes on to what the slot held when it read the token, or holds now, as it
//! might have in the original. The program that it comes to reads the token anew: where that is another, it runs as in the original, so what it
//! sees of other tables is never older than what the packet has seen before.
//!
//! *The profiling variant* has no token. It asks whether there was a write since its arrays were found to be what the user's are
//! ([`crate::guard::Guard::chain`]).
//!
//! *The session ends, killed or not.* The kernel empties program arrays that no process holds. Calls through them fail then, and what follows is
//! the call through the user's array.
//!
//! Invariant: what a variant calls through the session's arrays is what the user's held at a moment at which its token could be read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::Duration;

use millstream_ir::Map as IrMap;
use millstream_kernel::{Error, Map, Program};
use millstream_loader::Session;
use millstream_object::{FuncId, InitialValue, LinkedProgram, MapId};
use rustc_hash::FxHashMap;

use super::step::Step;
use super::{Instrumented, Live};
use crate::contents::Dirty;
use crate::guard::{Guard, GuardError};
use crate::profile::SiteProfile;
use crate::transform::{Plan, Site};
use crate::variant::{Compiler, object_map};

/// How long a writer is waited for before profiling goes on without the programs that are called.
const SHORT: Duration = Duration::from_millis(1);

/// Programs on one way of a chain that is joined, at most; the kernel lets 33 tail calls be made.
const LONGEST: usize = 16;

/// A program array of the object.
#[derive(Debug)]
struct Array {
    of: IrMap,
    map: Map,
    /// By which the guard knows it.
    index: u32,
    /// In whose place the session's own is put.
    place: MapId,
}

/// A program whose code is known.
#[derive(Debug)]
struct Known {
    func: FuncId,
    id: u32,
    tag: [u8; 8],
    maps: Vec<u32>,
}

/// The program arrays of the object, and the programs that may be in them.
#[derive(Debug, Default)]
pub(super) struct Links {
    arrays: Vec<Array>,
    programs: Vec<Known>,
    /// What programs were found to be, by their ids.
    found: RefCell<FxHashMap<u32, Option<FuncId>>>,
}

/// A slot of a program array.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Slot {
    key: Vec<u8>,
    /// The program in it.
    id: u32,
    /// Which of the object's it is.
    func: Option<FuncId>,
}

/// An array, a slot, and which of the object's programs is in it.
type Called = (IrMap, u32, Option<FuncId>);

/// What program arrays hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Held(BTreeMap<IrMap, Vec<Slot>>);

impl Held {
    /// The programs of the object that the first one reaches by tail calls; itself if something calls it.
    pub(super) fn reached(&self, compiler: &Compiler) -> BTreeSet<FuncId> {
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

    /// What a program may call: array, slot, and which of the object's programs it is.
    fn called(&self, compiler: &Compiler, func: FuncId) -> Vec<Called> {
        let calls = compiler.calls(func);
        let is_called = |(of, slot, ..): &(IrMap, u32, u32, Option<FuncId>)| {
            calls.iter().any(|(array, named)| array == of && named.is_none_or(|named| named == *slot))
        };
        self.slots().filter(is_called).map(|(of, slot, _, func)| (of, slot, func)).collect()
    }

    /// What is in which slot: array, number, the program's id, and which of the object's it is.
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

impl Held {
    /// Slots whose programs can be put where they are called: all that is reached is known, and nothing is reached twice on one way. Empty if
    /// that cannot be said.
    pub(super) fn joinable(&self, compiler: &Compiler) -> Vec<(IrMap, u32, FuncId)> {
        let programs = self.reached(compiler).into_iter().chain([compiler.program()]);
        let programs: Vec<FuncId> = programs.collect();
        if programs.iter().any(|func| compiler.may_call_more(*func)) {
            return Vec::new();
        }
        let slots: BTreeSet<Called> =
            programs.into_iter().flat_map(|func| self.called(compiler, func)).collect();
        let parts: BTreeSet<FuncId> = compiler.parts().collect();
        let is_known = slots.iter().all(|(.., func)| func.is_some_and(|f| parts.contains(&f)));
        let longest = self.longest(compiler, compiler.program(), &mut BTreeMap::new());
        if !is_known || longest.is_none_or(|n| n > LONGEST) {
            return Vec::new();
        }
        slots.into_iter().filter_map(|(of, slot, func)| Some((of, slot, func?))).collect()
    }

    /// Programs on the longest way that begins with one; `None` if a way comes back to where it was. `known` has what was found before,
    /// and `None` for those that are on the way.
    fn longest(
        &self,
        compiler: &Compiler,
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

impl Links {
    /// Has the guard watch the arrays, but for those that the operator leaves out.
    pub(super) fn new(
        compiler: &Compiler,
        session: &Session<'_>,
        exclude: &[String],
        programs: &[(FuncId, &Program)],
        guard: &mut Guard,
    ) -> Result<Links, GuardError> {
        let mut links = Links::default();
        for &(of, place) in compiler.arrays() {
            let Some(map) = session.map(object_map(of)) else { continue };
            if exclude.contains(&compiler.declaration(of).name) {
                continue;
            }
            let map = map.try_clone()?;
            let index = guard.watch(&map)?;
            links.arrays.push(Array { of, map, index, place });
        }
        for (func, program) in programs {
            let info = program.info()?;
            links.programs.push(Known { func: *func, id: info.id, tag: info.tag, maps: info.map_ids });
        }
        Ok(links)
    }

    /// Names of the arrays.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.arrays.iter().map(|a| a.map.info().name.clone())
    }

    /// The array that the guard knows by this index.
    pub(super) fn of_index(&self, index: u32) -> Option<IrMap> {
        self.arrays.iter().find(|a| a.index == index).map(|a| a.of)
    }

    /// The arrays, their places, and how many slots they have.
    pub(super) fn rooms(&self) -> Vec<(IrMap, MapId, u32)> {
        self.arrays.iter().map(|a| (a.of, a.place, a.map.info().max_entries)).collect()
    }

    /// Whether what arrays hold may have changed.
    pub(super) fn is_touched(&self, dirty: &Dirty) -> bool {
        self.arrays.iter().any(|a| dirty.touches(a.of))
    }

    /// What the arrays hold.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn read(&self) -> Result<Held, Error> {
        let mut held = BTreeMap::new();
        for array in &self.arrays {
            let mut slots = Vec::new();
            // Values read as the ids of the programs.
            for (key, id) in array.map.entries()?.iter() {
                let id = id.try_into().map_or(0, u32::from_ne_bytes);
                let known = *self.found.borrow_mut().entry(id).or_insert_with(|| known(&self.programs, id));
                slots.push(Slot { key: key.to_vec(), id, func: known });
            }
            slots.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            held.insert(array.of, slots);
        }
        Ok(Held(held))
    }
}

/// Puts programs into the arrays that the object fills with them, and that are new.
pub(super) fn fill_new(
    compiler: &Compiler,
    session: &Session<'_>,
    programs: &[(FuncId, Program)],
    is_new: impl Fn(&str) -> bool,
) -> Result<(), Error> {
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

/// Which of the object's programs one is: that which the session has loaded, or the very same code with the same maps.
fn known(programs: &[Known], id: u32) -> Option<FuncId> {
    if let Some(own) = programs.iter().find(|k| k.id == id) {
        return Some(own.func);
    }
    let info = Program::from_id(id).and_then(|p| p.info()).ok()?;
    let same = |k: &&Known| k.tag == info.tag && info.map_ids.starts_with(&k.maps);
    programs.iter().find(same).map(|k| k.func)
}

/// A variant of a program that tail calls reach.
#[derive(Debug)]
struct Callee {
    func: FuncId,
    program: Program,
    linked: LinkedProgram,
}

/// The session's own arrays, by those that they stand beside. They are emptied when nobody follows the user's any more: a packet that was held up
/// in a profiling variant of before finds that the next arrays are alike, and then calls through the user's.
#[derive(Debug, Default)]
struct Places(Vec<(IrMap, Map)>);

impl Places {
    /// Empties them: what is called then is what the user's arrays hold.
    fn empty(&self) -> Result<(), Error> {
        for (_, place) in &self.0 {
            for (key, _) in place.entries()?.iter() {
                place.delete(key)?;
            }
        }
        Ok(())
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Err(e) = self.empty() {
            tracing::debug!("slots of the session's own stay filled: {e}");
        }
    }
}

/// A program, if it is still there.
fn there(id: u32) -> Result<Option<Program>, Error> {
    match Program::from_id(id) {
        Err(e) if e.errno() == Some(libc::ENOENT) => Ok(None),
        found => found.map(Some),
    }
}

/// What goes with a variant of the attached program.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// What the user's arrays held when the session's were filled; `None` if these were not filled to the end.
    held: Option<Held>,
    callees: Vec<Callee>,
    places: Places,
    /// The attached program itself, if something calls it.
    first: Option<(FuncId, Program)>,
    /// Slots whose programs are where they are called.
    joined: Vec<(IrMap, u32, FuncId)>,
    /// The programs that were known to be reached, now or before: what is to be called of them has its variant.
    knows: BTreeSet<FuncId>,
}

impl Chain {
    /// Nothing is called yet. `knows` are the programs that are known to be reached.
    pub(super) fn new(knows: BTreeSet<FuncId>, joined: Vec<(IrMap, u32, FuncId)>) -> Chain {
        Chain { held: Some(Held::default()), knows, joined, ..Chain::default() }
    }

    /// What the program calls through an array, it calls through this one.
    pub(super) fn call_through(&mut self, array: IrMap, place: Map) {
        self.places.0.push((array, place));
    }

    /// A program that is called has this variant.
    pub(super) fn add(&mut self, func: FuncId, program: Program, linked: LinkedProgram) {
        self.callees.push(Callee { func, program, linked });
    }

    /// The attached program's variant is this.
    pub(super) fn begin_with(&mut self, func: FuncId, program: Program) {
        self.first = Some((func, program));
    }

    /// Puts into the session's arrays what goes with what the user's hold. A program that is gone is in none of these any more: where it was,
    /// nothing is, so that the call is made through the user's array.
    pub(super) fn fill(&mut self, held: Held) -> Result<(), Error> {
        // If this ends half way, they hold neither the one nor the other.
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

    /// Whether the session's arrays were filled by this.
    fn is_filled_by(&self, held: &Held) -> bool {
        self.held.as_ref() == Some(held)
    }

    /// The programs of the user's arrays whose code is known, with their ids.
    pub(super) fn known(&self) -> impl Iterator<Item = (FuncId, u32)> {
        self.held.iter().flat_map(Held::known)
    }

    /// Whether a variant of a program is called.
    pub(super) fn calls(&self, func: FuncId) -> bool {
        !self.places.0.is_empty() && self.variant(func).is_some()
    }

    fn variant(&self, func: FuncId) -> Option<&Program> {
        let own = self.callees.iter().find(|c| c.func == func).map(|c| &c.program);
        own.or_else(|| self.first.as_ref().filter(|(first, _)| *first == func).map(|(_, program)| program))
    }

    /// Follows the user's arrays, if that needs no other code. No packet may be sent this way by a token meanwhile.
    pub(super) fn refill(&mut self, compiler: &Compiler, held: Held) -> bool {
        if self.is_filled_by(&held) {
            return true;
        }
        let is_there = |join: &(IrMap, u32, FuncId)| {
            held.slots().any(|(of, slot, _, func)| (of, slot, func) == (join.0, join.1, Some(join.2)))
        };
        // Where the attached program itself is called, there are no caches.
        let first = Some(compiler.program()).filter(|first| held.slots().any(|(.., f)| f == Some(*first)));
        let mut reached = held.reached(compiler);
        reached.extend(first);
        let is_same = reached.is_subset(&self.knows) && self.joined.iter().all(is_there);
        // Where chains of calls come back now, the joined ones would be too short.
        let is_right = self.joined.is_empty() || !held.joinable(compiler).is_empty();
        is_same && is_right && self.fill(held).is_ok()
    }

    /// Whether the code of a program is where it is called.
    pub(super) fn joins(&self, func: FuncId) -> bool {
        self.joined.iter().any(|(.., joined)| *joined == func)
    }

    /// The programs, in the form in which they go with the variant.
    pub(super) fn linked(&self) -> Vec<(FuncId, &LinkedProgram)> {
        self.callees.iter().map(|c| (c.func, &c.linked)).collect()
    }
}

/// The programs of which variants go with a plan, of those that are `reached`: those that it changes, and those by which they are reached.
/// None if it changes none.
pub(super) fn callees(compiler: &Compiler, reached: &BTreeSet<FuncId>, plan: &Plan) -> Vec<FuncId> {
    let mut reached = reached.clone();
    reached.remove(&compiler.program());
    let changed = |func: &FuncId| {
        let of = |s: &&Site| millstream_bpf::module::func(*func) == s.func;
        let mut sites = compiler.sites().iter().filter(of);
        sites.any(|s| plan.sites.iter().any(|p| p.site == s.id) || plan.tests.iter().any(|t| t.site == s.id))
    };
    if !reached.iter().any(changed) {
        return Vec::new();
    }
    let calls = |func: &FuncId| !compiler.calls(*func).is_empty();
    reached.into_iter().filter(|func| changed(func) || calls(func)).collect()
}

impl Live<'_> {
    /// From now on what is loaded calls what the variant on the hook calls.
    pub(super) fn call_as_before(&mut self) -> Result<(), Error> {
        for (of, place) in self.active.iter().flat_map(|a| &a.chain.places.0) {
            if let Some(array) = self.links.arrays.iter().find(|a| a.of == *of) {
                self.session.replace_map(array.place, place.try_clone()?);
            }
        }
        Ok(())
    }

    /// Whether the arrays hold what a chain was made for, or it could follow them.
    pub(super) fn keeps_up(&mut self, chain: &mut Chain, dirty: &Dirty) -> bool {
        if !self.links.is_touched(dirty) {
            return true;
        }
        let Ok(held) = self.links.read() else { return false };
        self.settings.steps.at(Step::Slots);
        chain.refill(self.compiler, held)
    }

    /// The same of the variant on the hook.
    pub(super) fn active_keeps_up(&mut self, dirty: &Dirty) -> bool {
        let Some(mut active) = self.active.take() else { return true };
        let keeps_up = self.keeps_up(&mut active.chain, dirty);
        self.active = Some(active);
        keeps_up
    }

    /// Profiles of the lookups that can be reached: what is known, and for others that nothing is.
    pub(super) fn profiles_of_reached(&self, profiles: &[SiteProfile]) -> Vec<SiteProfile> {
        let known = |site: &Site| profiles.iter().find(|p| p.site == site.id).cloned();
        let none = |site: &Site| SiteProfile { site: site.id, total: 0, keys: Vec::new() };
        self.eligible().map(|site| known(site).unwrap_or_else(|| none(site))).collect()
    }

    /// Whether a lookup is the program's, or of one that was found to be reached.
    pub(super) fn is_reached(&self, site: &Site) -> bool {
        let of = |func: &FuncId| millstream_bpf::module::func(*func) == site.func;
        of(&self.compiler.program()) || self.reached.iter().any(of)
    }

    /// Notes what the arrays lead to; the attached program itself wherever it is in a slot, for somebody may call it there.
    pub(super) fn note_reached(&mut self, held: &Held) {
        let first = self.compiler.program();
        self.reached.append(&mut held.reached(self.compiler));
        if held.slots().any(|(.., func)| func == Some(first)) {
            self.reached.insert(first);
        }
    }

    /// Lets the profiling variant call on, until the next write, if it calls what the arrays hold.
    pub(super) fn let_call(&mut self) {
        let version = self.guard.version();
        // What they held when anybody else read them says nothing: they may have held something else since, and hold it again.
        let Some(Instrumented { chain, .. }) = &self.instrumented else { return };
        if !self.links.arrays.is_empty()
            && self.guard.begin(SHORT, &[]).is_some()
            && self.links.read().is_ok_and(|now| chain.is_filled_by(&now))
        {
            self.settings.steps.at(Step::Called);
            self.guard.chain(version);
        }
    }
}
