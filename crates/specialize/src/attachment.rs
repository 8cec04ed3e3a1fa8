//! The program's place on its interfaces: taken by links of our own or from another program, and given back.
//!
//! # Killed at any moment
//!
//! At every instant each hook has the program that was there before us, the original, or a variant whose
//! guard is pinned. So the guard is pinned before the program is attached ([`HookAttachments::take`]); a
//! variant comes only after that ([`HookAttachments::swap`]); and the original is put back everywhere before
//! anything is unpinned ([`HookAttachments::leave`]). A session that finds the place of a killed one puts its
//! own original there first, and only then unpins that one's guard. If no session can be started any more,
//! [`restore_hooks`] clears the hooks, and then unpins.
//!
//! All interfaces run the same program except during a swap, which goes from one to the next: either program
//! is right on each. An interface that no longer exists leaves the others as they are
//! ([`HookAttachments::check`]).
//!
//! Invariant: the program on the hook is exchanged by compare and swap with the one that we put there. If
//! somebody else has taken the hook, nothing is changed there any more.

use std::sync::Arc;

use millstream_kernel::{
    AttachType, ExtensionPlace, Hook, KernelMap, KernelProgram, Link, TcFilter, XdpMode, add_clsact, filters,
    has_tcx, interface, query_xdp, remove_empty_clsact,
};

use crate::adopt::HookKind;
use crate::guard::Guard;
use crate::live::LiveError;
use crate::pins::{PinDir, PinError};

/// Program to leave on the interface at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachPolicy {
    /// The state before: nothing, or the program that was adopted.
    Restored,
    /// The original program, pinned.
    Original,
    /// A program that handles packets unattended: the original, pinned, if it has replaced no other program,
    /// and otherwise the program that was adopted.
    Unattended,
}

/// Hook for a program, and the way to attach it.
#[derive(Clone, Debug)]
pub(crate) struct AttachTarget {
    pub(crate) ifindex: u32,
    pub(crate) mode: XdpMode,
    /// Attach a TC program to egress instead of ingress.
    pub(crate) egress: bool,
    /// Take the place of the program there, and give it back at the end.
    pub(crate) adopt: bool,
    /// Take the place of the entry of the program there, which stays.
    pub(crate) extends: Option<Arc<ExtensionPlace>>,
}

/// Program to put there, and the objects that are kept for it.
pub(crate) struct AttachRequest<'t> {
    pub(crate) original: &'t KernelProgram,
    pub(crate) guard: &'t Guard,
    /// The maps that outlive the session, by name.
    pub(crate) maps: Vec<(&'t str, &'t KernelMap)>,
}

/// The right by which a hook is held.
#[derive(Debug)]
enum HookOwnership {
    /// A link of our own.
    Own(Link),
    /// A filter of our own, where the kernel has no links for TC.
    Filter(OwnFilter),
    /// Another's attachment, whose program is to be put back.
    Adopted {
        hook: Hook,
        before: KernelProgram,
        /// Name of that program's pin.
        label: String,
    },
}

/// A filter that a session made, and the name of its pin.
#[derive(Debug)]
struct OwnFilter {
    filter: TcFilter,
    label: String,
}

impl OwnFilter {
    /// Attaches a program behind the filters that are there.
    fn attach(
        pins: &PinDir,
        program: &KernelProgram,
        target: &AttachTarget,
        side: HookKind,
        name: &str,
    ) -> Result<Self, LiveError> {
        let (ifindex, label) = (target.ifindex, side.label(name));
        let own_clsact = add_clsact(ifindex)?;
        let undo = || {
            pins.remove_filter(&label);
            if own_clsact && let Err(error) = remove_empty_clsact(ifindex) {
                tracing::warn!("{name}: {error}");
            }
        };
        // Pinned first: an unpinned filter would outlive a session that is killed here.
        pins.pin_filter(&label, program, own_clsact).inspect_err(|_| undo())?;
        let way = if target.egress { AttachType::TCX_EGRESS } else { AttachType::TCX_INGRESS };
        let filter = TcFilter::attach(program, ifindex, way).inspect_err(|_| undo())?;
        Ok(OwnFilter { filter, label })
    }

    /// The filter that an earlier session made, and its program.
    fn find(
        pins: &PinDir,
        ifindex: u32,
        side: HookKind,
        name: &str,
    ) -> Result<Option<(Self, KernelProgram)>, LiveError> {
        let label = side.label(name);
        let (HookKind::Tc(way), Some(pinned)) = (side, pins.filter(&label)) else { return Ok(None) };
        let id = pinned.id()?;
        for filter in filters(ifindex, way)? {
            let program = KernelProgram::from_id(filter.program_id)?;
            if filter.program_id == id || pins.holds_map_of(&program)? {
                return Ok(Some((OwnFilter { filter, label }, program)));
            }
        }
        Ok(None)
    }

    /// Removes it, with its queueing discipline if that is ours and nobody else has a filter there.
    fn detach(&self, pins: &PinDir) -> Result<(), LiveError> {
        self.filter.detach()?;
        let own_clsact = pins.owns_clsact(&self.label);
        pins.remove_filter(&self.label);
        if own_clsact {
            remove_empty_clsact(self.filter.ifindex)?;
        }
        Ok(())
    }
}

/// A hook that was taken.
#[derive(Debug)]
struct HookSlot {
    ifindex: u32,
    interface: String,
    title: HookOwnership,
    /// The program on the hook now.
    current: KernelProgram,
    mode: Option<XdpMode>,
}

/// Description of a hook that was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HookInfo {
    pub(crate) ifindex: u32,
    pub(crate) interface: String,
    /// Place in the receive path where an XDP program runs.
    pub(crate) mode: Option<XdpMode>,
}

/// The hooks that were taken.
#[derive(Debug)]
pub(crate) struct HookAttachments {
    pins: PinDir,
    seats: Vec<HookSlot>,
    /// The program on the hooks now.
    current: KernelProgram,
    took_over: bool,
    swaps: u64,
}

impl HookAttachments {
    /// Puts the original onto the hooks: into the places of an earlier session that was killed, into those of
    /// the programs that are there if they are to be adopted, or by new links.
    ///
    /// # Errors
    /// `EBUSY` if another program is there. Nothing is changed then, or after any other error, except that
    /// the originals are where an earlier session was.
    pub(crate) fn take(
        pins: &PinDir,
        tenant: &AttachRequest<'_>,
        targets: &[AttachTarget],
    ) -> Result<HookAttachments, LiveError> {
        let mut places = Vec::new();
        for target in targets {
            places.push((target.clone(), interface(target.ifindex)?.name));
        }
        let links = known_links(pins, targets)?;
        let mut found = find_all(pins, tenant.original, links, &places)?;
        for found in found.iter().flatten().filter(|f| f.ours) {
            found.title.replace_by(tenant.original, found.present.as_ref())?;
        }
        // Any pinned guard guards nothing from here on: the variants that it let run have been replaced, or
        // there is no place of an earlier session.
        pins.remove_guard();
        let pinned = pin(pins, tenant)?;
        let mut place = HookAttachments {
            pins: pins.clone(),
            seats: Vec::new(),
            current: tenant.original.try_clone()?,
            took_over: found.iter().flatten().any(|f| f.ours),
            swaps: 0,
        };
        let mut new = Vec::new();
        for ((target, name), found) in places.into_iter().zip(found.drain(..)) {
            let ours = found.as_ref().is_some_and(|f| f.ours);
            match place.attach_one(tenant.original, &target, name, found) {
                Ok(_) if ours => {}
                Ok(at) => new.push(at),
                Err(error) => {
                    new.into_iter().for_each(|at| place.seats[at].undo(pins));
                    pinned.undo(pins);
                    return Err(error);
                }
            }
        }
        Ok(place)
    }

    /// Takes one more hook, in which no session was: one that came back.
    ///
    /// # Errors
    /// As for [`HookAttachments::take`].
    pub(crate) fn join(&mut self, original: &KernelProgram, target: &AttachTarget) -> Result<(), LiveError> {
        let name = interface(target.ifindex)?.name;
        // The pins of its first life are of no use.
        self.pins.remove_link(&name);
        let label = side(original, target)?.label(&name);
        self.pins.remove_before(&label);
        self.pins.remove_filter(&label);
        let there = [(target.clone(), name.clone())];
        let found = find_all(&self.pins, original, Vec::new(), &there)?.pop().flatten();
        let at = self.attach_one(original, target, name, found)?;
        let current = self.current.try_clone()?;
        self.seats[at].swap(&current)
    }

    /// Puts the original onto a hook, or finds it there; returns the seat's number.
    fn attach_one(
        &mut self,
        original: &KernelProgram,
        target: &AttachTarget,
        interface: String,
        found: Option<OccupiedHook>,
    ) -> Result<usize, LiveError> {
        let title = match found {
            Some(found) if found.ours => found.title,
            found => enter(&self.pins, original, found, target, &interface)?,
        };
        let mode = xdp_mode(original, target)?;
        let current = original.try_clone()?;
        self.seats.push(HookSlot { ifindex: target.ifindex, interface, title, current, mode });
        Ok(self.seats.len() - 1)
    }

    /// The program on the hooks now.
    pub(crate) fn current(&self) -> &KernelProgram {
        &self.current
    }

    /// The program to which the kernel accounts the runs of the one on the hooks.
    pub(crate) fn accounted(&self) -> &KernelProgram {
        match self.seats.first().map(|seat| &seat.title) {
            Some(HookOwnership::Adopted { hook: Hook::Extension(place), .. }) => place.host(),
            _ => &self.current,
        }
    }

    /// The hooks.
    pub(crate) fn held(&self) -> Vec<HookInfo> {
        let held =
            |s: &HookSlot| HookInfo { ifindex: s.ifindex, interface: s.interface.clone(), mode: s.mode };
        self.seats.iter().map(held).collect()
    }

    /// Returns true if it is the place of an earlier session.
    pub(crate) fn took_over(&self) -> bool {
        self.took_over
    }

    /// Puts a program into the place of the present one.
    pub(crate) fn swap(&mut self, new: KernelProgram) -> Result<(), LiveError> {
        let mut at = 0;
        while at < self.seats.len() {
            match self.seats[at].swap(&new) {
                Ok(()) => at += 1,
                Err(error) if is_gone(&error) => self.lose(at)?,
                Err(error) => return Err(error),
            }
        }
        self.current = new;
        self.swaps += 1;
        Ok(())
    }

    /// Gives up the hooks that no longer exist.
    ///
    /// # Errors
    /// [`LiveError::Gone`] if none is left, [`LiveError::Replaced`] if somebody else has taken one.
    pub(crate) fn check(&mut self) -> Result<(), LiveError> {
        let mut at = 0;
        while at < self.seats.len() {
            match self.seats[at].program()? {
                Some(id) if id != self.seats[at].current.id()? => {
                    return Err(LiveError::Replaced { interface: self.seats[at].interface.clone(), id });
                }
                Some(_) => at += 1,
                None => self.lose(at)?,
            }
        }
        Ok(())
    }

    /// Gives up a hook that no longer exists, if there are others.
    fn lose(&mut self, at: usize) -> Result<(), LiveError> {
        if self.seats.len() == 1 {
            return Err(LiveError::Gone(self.seats[at].interface.clone()));
        }
        self.seats.remove(at).forget(&self.pins);
        Ok(())
    }

    /// Number of calls of [`HookAttachments::swap`].
    pub(crate) fn swaps(&self) -> u64 {
        self.swaps
    }

    /// Gives the place up; says which program is left there.
    ///
    /// # Errors
    /// If the original cannot be put back on some hook: somebody else has taken it, or the interface no
    /// longer exists. Only those of our pins that are still needed stay then; the other hooks are given up as
    /// they should be.
    pub(crate) fn leave(
        mut self,
        original: &KernelProgram,
        leave: DetachPolicy,
    ) -> Result<String, LiveError> {
        let mut lost = Vec::new();
        for at in (0..self.seats.len()).rev() {
            if let Err(error) = self.seats[at].swap(original) {
                lost.push((self.seats.remove(at), error));
            }
        }
        let needed =
            lost.iter().map(|(seat, error)| seat.needs(error)).max().unwrap_or(RetainedPins::Nothing);
        if needed < RetainedPins::Guard {
            // Nothing specialised is on a hook from here on.
            self.pins.remove_guard();
        }
        let mut left: Vec<String> =
            self.seats.iter().map(|s| s.vacate(&self.pins, leave)).collect::<Result<_, _>>()?;
        left.dedup();
        if needed == RetainedPins::Nothing && (leave == DetachPolicy::Restored || self.seats.is_empty()) {
            self.pins.remove();
        }
        match lost.pop() {
            Some((_, error)) => Err(error),
            None => Ok(left.join("; ")),
        }
    }
}

/// Gives back the hooks that sessions have left on these interfaces, without a session: neither object nor
/// guard is needed.
///
/// # Errors
/// [`LiveError::Replaced`] if somebody else's program is on a link of ours; nothing is changed then.
pub fn restore_hooks(pins: &PinDir, interfaces: &[u32]) -> Result<(), LiveError> {
    if !pins.directory().exists() {
        return Ok(());
    }
    let _claim = match pins.claim() {
        // The hooks belong to another session.
        Err(PinError::Busy { .. }) => return Ok(()),
        claim => claim?,
    };
    for (_, link) in pins.links() {
        let info = link.info()?;
        let Some(ifindex) = info.detail.interface() else { continue };
        let program = KernelProgram::from_id(info.program_id)?;
        if !pins.maps().is_empty() && !pins.holds_map_of(&program)? {
            return Err(LiveError::Replaced { interface: interface(ifindex)?.name, id: program.id()? });
        }
    }
    for (ifindex, side) in interfaces.iter().flat_map(|i| HookKind::ALL.map(|side| (*i, side))) {
        let Some(before) = pins.before(&side.label(&interface(ifindex)?.name)) else { continue };
        if let Some((hook, present)) = side.find(ifindex, before.name(), pins)?
            && pins.holds_map_of(&present)?
        {
            hook.replace(&before, &present)?;
        }
    }
    for (ifindex, side) in interfaces.iter().flat_map(|i| HookKind::ALL.map(|side| (*i, side))) {
        if let Some((own, _)) = OwnFilter::find(pins, ifindex, side, &interface(ifindex)?.name)? {
            own.detach(pins)?;
        }
    }
    pins.remove();
    Ok(())
}

/// Pins that must stay when a hook is no longer ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum RetainedPins {
    Nothing,
    /// Another program is there, maybe on our pinned link: that stays.
    Link,
    /// A variant may still be there, and its guard with it.
    Guard,
}

/// Returns true if the interface, and with it the attachment, no longer exists.
fn is_gone(error: &LiveError) -> bool {
    matches!(error, LiveError::Kernel(e) if matches!(e.errno(), Some(libc::ENOLINK | libc::ENODEV | libc::ENOENT)))
}

impl HookSlot {
    /// Puts a program into the place of the present one.
    fn swap(&mut self, new: &KernelProgram) -> Result<(), LiveError> {
        let new = new.try_clone()?;
        self.title.replace_by(&new, Some(&self.current))?;
        self.current = new;
        Ok(())
    }

    /// The id of the program on the hook, if the hook still exists.
    fn program(&self) -> Result<Option<u32>, LiveError> {
        Ok(match &self.title {
            HookOwnership::Own(link) => {
                let info = link.info()?;
                info.detail.interface().map(|_| info.program_id)
            }
            HookOwnership::Filter(own) => own.filter.program()?,
            HookOwnership::Adopted { hook, .. } => hook.program(&self.current)?,
        })
    }

    /// Removes its pins.
    fn forget(&self, pins: &PinDir) {
        pins.remove_link(&self.interface);
        match &self.title {
            HookOwnership::Own(_) => {}
            HookOwnership::Filter(own) => pins.remove_filter(&own.label),
            HookOwnership::Adopted { label, .. } => pins.remove_before(label),
        }
    }

    /// Gives back a hook that was taken a moment ago.
    fn undo(&self, pins: &PinDir) {
        if let HookOwnership::Adopted { hook, before, .. } = &self.title
            && let Err(error) = hook.replace(before, &self.current)
        {
            tracing::warn!("{}: putting back what was there: {error}", self.interface);
        }
        if let HookOwnership::Filter(own) = &self.title
            && let Err(error) = own.detach(pins)
        {
            tracing::warn!("{}: removing the filter: {error}", self.interface);
        }
        self.forget(pins);
    }

    /// Pins that must stay, because the original cannot be put back.
    fn needs(&self, error: &LiveError) -> RetainedPins {
        let errno = match error {
            LiveError::Kernel(e) => e.errno(),
            _ => None,
        };
        match errno {
            Some(libc::ENOLINK | libc::ENODEV | libc::ENOENT) => RetainedPins::Nothing,
            Some(libc::EPERM | libc::EEXIST | libc::EBUSY) => RetainedPins::Link,
            _ => RetainedPins::Guard,
        }
    }

    /// Gives it up; says which program is left there.
    fn vacate(&self, pins: &PinDir, leave: DetachPolicy) -> Result<String, LiveError> {
        let directory = pins.directory().display();
        Ok(match (leave, &self.title) {
            (
                DetachPolicy::Original | DetachPolicy::Unattended,
                HookOwnership::Own(_) | HookOwnership::Filter(_),
            ) => {
                format!("the original program, pinned in {directory}")
            }
            (DetachPolicy::Original, HookOwnership::Adopted { before, label, .. }) => {
                pins.remove_before(label);
                format!(
                    "the original program, where {:?} was; its maps are pinned in {directory}",
                    before.name()
                )
            }
            (DetachPolicy::Restored, HookOwnership::Own(_)) => {
                pins.remove_link(&self.interface);
                "nothing".to_owned()
            }
            (DetachPolicy::Restored, HookOwnership::Filter(own)) => {
                own.detach(pins)?;
                "nothing".to_owned()
            }
            (
                DetachPolicy::Restored | DetachPolicy::Unattended,
                HookOwnership::Adopted { hook, before, label },
            ) => {
                hook.replace(before, &self.current)?;
                pins.remove_before(label);
                format!("program {:?}, as before", before.name())
            }
        })
    }
}

impl HookOwnership {
    /// Puts `new` into the place of `expected`; of any program, if none is expected.
    fn replace_by(&self, new: &KernelProgram, expected: Option<&KernelProgram>) -> Result<(), LiveError> {
        match (self, expected) {
            (HookOwnership::Own(link), None) => link.replace_any(new)?,
            (HookOwnership::Own(link), Some(expected)) => link.replace(new, expected)?,
            (HookOwnership::Filter(own), Some(expected)) => own.filter.replace(new, expected)?,
            (HookOwnership::Filter(_), None) => return Err(LiveError::NotAttached),
            (HookOwnership::Adopted { hook, .. }, Some(expected)) => hook.replace(new, expected)?,
            (HookOwnership::Adopted { .. }, None) => return Err(LiveError::NotAttached),
        }
        Ok(())
    }
}

/// A place with somebody in it.
struct OccupiedHook {
    title: HookOwnership,
    present: Option<KernelProgram>,
    /// An earlier session's, which was killed, or left its original.
    ours: bool,
}

/// Finds the links that an earlier session pinned. Those of interfaces that no longer exist are unpinned.
fn known_links(pins: &PinDir, targets: &[AttachTarget]) -> Result<Vec<(u32, Link)>, LiveError> {
    let mut known = Vec::new();
    for (path, link) in pins.links() {
        match link.info()?.detail.interface() {
            Some(ifindex) if targets.iter().any(|t| t.ifindex == ifindex) => known.push((ifindex, link)),
            Some(ifindex) => return Err(PinError::Elsewhere { path, ifindex }.into()),
            None => pins.remove_pin(&path),
        }
    }
    Ok(known)
}

/// Finds the program that an earlier session left on each hook, or that is to be adopted there.
fn find_all(
    pins: &PinDir,
    original: &KernelProgram,
    mut links: Vec<(u32, Link)>,
    places: &[(AttachTarget, String)],
) -> Result<Vec<Option<OccupiedHook>>, LiveError> {
    let mut all = Vec::new();
    for (target, name) in places {
        let own = links.iter().position(|(ifindex, _)| *ifindex == target.ifindex);
        all.push(match own {
            Some(at) => Some(OccupiedHook {
                title: HookOwnership::Own(links.swap_remove(at).1),
                present: None,
                ours: true,
            }),
            None => adopted(pins, original, target, name)?,
        });
    }
    Ok(all)
}

/// Finds the hook that somebody else has attached to, if an earlier session has adopted it or this one is to.
fn adopted(
    pins: &PinDir,
    original: &KernelProgram,
    target: &AttachTarget,
    name: &str,
) -> Result<Option<OccupiedHook>, LiveError> {
    let side = side(original, target)?;
    let label = side.label(name);
    if let Some(place) = &target.extends {
        let host = place.host();
        let (before, present) = (host.try_clone()?, Some(host.try_clone()?));
        let hook = Hook::Extension(Arc::clone(place));
        let title = HookOwnership::Adopted { hook, before, label };
        return Ok(Some(OccupiedHook { title, present, ours: false }));
    }
    if let Some((own, present)) = OwnFilter::find(pins, target.ifindex, side, name)? {
        let own_clsact = pins.owns_clsact(&label);
        pins.pin_filter(&label, original, own_clsact)?;
        return Ok(Some(OccupiedHook {
            title: HookOwnership::Filter(own),
            present: Some(present),
            ours: true,
        }));
    }
    // Programs on TC are in nobody's way.
    if matches!(side, HookKind::Tc(_)) && !target.adopt && pins.before(&label).is_none() {
        return Ok(None);
    }
    let Some((hook, present)) = side.find(target.ifindex, original.name(), pins)? else { return Ok(None) };
    let (ours, before) = match pins.replaced_program(&label, &present)? {
        Some(before) => (true, before),
        None if target.adopt => (false, present.try_clone()?),
        None => return Ok(None),
    };
    Ok(Some(OccupiedHook {
        title: HookOwnership::Adopted { hook, before, label },
        present: Some(present),
        ours,
    }))
}

/// The hook for the program.
fn side(original: &KernelProgram, target: &AttachTarget) -> Result<HookKind, LiveError> {
    Ok(HookKind::of(original.info()?.program_type, target.egress))
}

/// Takes a place in which no session was.
fn enter(
    pins: &PinDir,
    original: &KernelProgram,
    found: Option<OccupiedHook>,
    target: &AttachTarget,
    name: &str,
) -> Result<HookOwnership, LiveError> {
    if let Some(OccupiedHook { title, present, .. }) = found {
        if let HookOwnership::Adopted { before, label, .. } = &title {
            // An extension ends with this process, and its host stays attached.
            if target.extends.is_none() {
                pins.pin_before(label, before)?;
            }
            title.replace_by(original, present.as_ref()).inspect_err(|_| pins.remove_before(label))?;
        }
        return Ok(title);
    }
    let link = match side(original, target)? {
        side @ HookKind::Tc(_) if !has_tcx(target.ifindex)? => {
            return Ok(HookOwnership::Filter(OwnFilter::attach(pins, original, target, side, name)?));
        }
        HookKind::Tc(hook) => Link::attach_tcx(original, target.ifindex, hook)?,
        HookKind::Xdp => Link::attach_xdp(original, target.ifindex, target.mode)?,
    };
    // If it cannot be pinned it is dropped, and so detached.
    pins.pin_link(name, &link)?;
    Ok(HookOwnership::Own(link))
}

fn xdp_mode(original: &KernelProgram, target: &AttachTarget) -> Result<Option<XdpMode>, LiveError> {
    let is_xdp = side(original, target)? == HookKind::Xdp;
    let state = is_xdp.then(|| query_xdp(target.ifindex).ok().flatten()).flatten();
    Ok(state.map(|s| s.mode))
}

/// Maps that were pinned, in case that this must be undone.
struct PinnedMaps<'t> {
    maps: Vec<&'t str>,
}

impl PinnedMaps<'_> {
    fn undo(&self, pins: &PinDir) {
        pins.remove_guard();
        for name in &self.maps {
            pins.remove_map(name);
        }
    }
}

fn pin<'t>(pins: &PinDir, tenant: &AttachRequest<'t>) -> Result<PinnedMaps<'t>, LiveError> {
    let mut pinned = PinnedMaps { maps: Vec::new() };
    let done = tenant.guard.pin(pins.directory()).map_err(LiveError::from).and_then(|()| {
        for (name, map) in &tenant.maps {
            if pins.pin_map(name, map)? {
                pinned.maps.push(name);
            }
        }
        Ok(())
    });
    done.inspect_err(|_| pinned.undo(pins)).map(|()| pinned)
}
