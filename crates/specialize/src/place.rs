//! The program's place on an interface: taken by a link of our own or from whoever is there, and given back.
//!
//! # Killed at any moment
//!
//! At every instant there is on the hook what was there before us, the original, or a variant whose guard is pinned.
//! So the guard is pinned before the program is attached ([`Place::take`]); a variant comes only after that
//! ([`Place::swap`]); and the original is put back before anything is unpinned ([`Place::leave`]). A session that
//! finds the place of a killed one puts its own original there first, and only then unpins that one's guard.
//!
//! Invariant: what is on the hook is exchanged by compare and swap with what we put there. If somebody else has taken
//! the hook, nothing is changed any more.

use millstream_kernel::{
    AttachType, Link, LinkDetail, Map, Program, ProgramType, XdpHook, XdpMode, query_xdp,
};

use crate::guard::Guard;
use crate::live::{Leave, LiveError};
use crate::pins::{PinError, Pins};

/// Where a program is to be put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) ifindex: u32,
    pub(crate) mode: XdpMode,
    /// Of a TC program: the way out instead of the way in.
    pub(crate) egress: bool,
    /// Take the place of what is there, and give it back at the end.
    pub(crate) adopt: bool,
}

/// What is put there, and kept for it.
pub(crate) struct Tenant<'t> {
    pub(crate) original: &'t Program,
    pub(crate) guard: &'t Guard,
    /// The maps that outlive the session, by name.
    pub(crate) maps: Vec<(&'t str, &'t Map)>,
}

/// By what right we are there.
#[derive(Debug)]
enum Title {
    /// A link of our own.
    Own(Link),
    /// By another's attachment, whose program is to be put back.
    Adopted { hook: XdpHook, before: Program },
}

/// A place that was taken.
#[derive(Debug)]
pub(crate) struct Place {
    pins: Pins,
    title: Title,
    /// What is on the hook now.
    current: Program,
    mode: Option<XdpMode>,
    took_over: bool,
    swaps: u64,
}

impl Place {
    /// Puts the original onto the hook: into the place of an earlier session that was killed, into that of the
    /// program that is there if it is to be adopted, or by a new link.
    ///
    /// # Errors
    /// `EBUSY` if another program is there. Nothing is changed then, or after any other error.
    pub(crate) fn take(pins: &Pins, tenant: &Tenant<'_>, target: &Target) -> Result<Place, LiveError> {
        let found = find(pins, tenant.original, target)?;
        let took_over = found.as_ref().is_some_and(|f| f.ours);
        // Whatever guard is pinned guards nothing from here on: what it let run has been replaced, or there is no
        // place of an earlier session.
        let mut title = None;
        if let Some(found) = found {
            if found.ours {
                found.title.replace_by(tenant.original, found.present.as_ref())?;
            }
            title = Some(found);
        }
        pins.remove_guard();
        let pinned = pin(pins, tenant)?;
        let title = match title {
            Some(found) if found.ours => Ok(found.title),
            found => enter(pins, tenant.original, found, target),
        };
        let title = title.inspect_err(|_| pinned.undo(pins))?;
        let mode = xdp_mode(tenant.original, target);
        Ok(Place {
            pins: pins.clone(),
            title,
            current: tenant.original.try_clone()?,
            mode,
            took_over,
            swaps: 0,
        })
    }

    /// What is on the hook now.
    pub(crate) fn current(&self) -> &Program {
        &self.current
    }

    /// Where an XDP program runs.
    pub(crate) fn mode(&self) -> Option<XdpMode> {
        self.mode
    }

    /// Whether it is the place of an earlier session.
    pub(crate) fn took_over(&self) -> bool {
        self.took_over
    }

    /// Puts a program into the place of the present one.
    pub(crate) fn swap(&mut self, new: Program) -> Result<(), LiveError> {
        self.title.replace_by(&new, Some(&self.current))?;
        self.current = new;
        self.swaps += 1;
        Ok(())
    }

    /// How often [`Place::swap`] was done.
    pub(crate) fn swaps(&self) -> u64 {
        self.swaps
    }

    /// Gives the place up; says what is left there.
    ///
    /// # Errors
    /// If the original cannot be put back: somebody else has taken the hook, or the interface is gone. Of ours, only
    /// what is still needed stays then.
    pub(crate) fn leave(mut self, original: &Program, leave: Leave) -> Result<String, LiveError> {
        let back = original.try_clone()?;
        if let Err(error) = self.swap(back) {
            return Err(self.give_up(error));
        }
        // Nothing specialised is on the hook from here on.
        self.pins.remove_guard();
        let directory = self.pins.directory().display();
        match (leave, &self.title) {
            (Leave::Original, Title::Own(_)) => Ok(format!("the original program, pinned in {directory}")),
            (Leave::Original, Title::Adopted { before, .. }) => {
                self.pins.remove_before();
                Ok(format!(
                    "the original program, where {:?} was; its maps are pinned in {directory}",
                    before.name()
                ))
            }
            (Leave::Restored, Title::Own(_)) => {
                self.pins.remove();
                Ok("nothing".to_owned())
            }
            (Leave::Restored, Title::Adopted { hook, before }) => {
                hook.replace(before, &self.current)?;
                self.pins.remove();
                Ok(format!("program {:?}, as before", before.name()))
            }
        }
    }

    /// The hook is no longer ours: unpins what is of no use to whoever has it.
    fn give_up(&self, error: LiveError) -> LiveError {
        let errno = match &error {
            LiveError::Kernel(e) => e.errno(),
            _ => None,
        };
        match errno {
            // The interface, and with it the attachment, is gone.
            Some(libc::ENOLINK | libc::ENODEV) => self.pins.remove(),
            // Another program is there, maybe on our pinned link: that stays.
            Some(libc::EPERM | libc::EEXIST | libc::EBUSY) => self.pins.remove_guard(),
            // A variant may still be there, and its guard with it.
            _ => {}
        }
        error
    }
}

impl Title {
    /// Puts `new` into the place of `expected`; of whatever is there, if nothing is expected.
    fn replace_by(&self, new: &Program, expected: Option<&Program>) -> Result<(), LiveError> {
        match (self, expected) {
            (Title::Own(link), None) => link.replace_any(new)?,
            (Title::Own(link), Some(expected)) => link.replace(new, expected)?,
            (Title::Adopted { hook, .. }, Some(expected)) => hook.replace(new, expected)?,
            (Title::Adopted { .. }, None) => return Err(LiveError::NotAttached),
        }
        Ok(())
    }
}

/// A place with somebody in it.
struct Found {
    title: Title,
    present: Option<Program>,
    /// An earlier session's, which was killed, or left its original.
    ours: bool,
}

/// What an earlier session left, or what is to be adopted.
fn find(pins: &Pins, original: &Program, target: &Target) -> Result<Option<Found>, LiveError> {
    if let Some(link) = pins.link() {
        match place_of(&link)? {
            Some(there) if there == target.ifindex => {
                return Ok(Some(Found { title: Title::Own(link), present: None, ours: true }));
            }
            Some(ifindex) => {
                return Err(PinError::Elsewhere { path: pins.link_path(), ifindex }.into());
            }
            // Its interface is gone.
            None => pins.remove_link(),
        }
    }
    let before = pins.before();
    if original.info()?.program_type != ProgramType::XDP || (before.is_none() && !target.adopt) {
        return Ok(None);
    }
    let Some((hook, present)) = XdpHook::adopt(target.ifindex)? else { return Ok(None) };
    let held = present.info()?.map_ids;
    let ours = before.filter(|_| pins.maps().iter().any(|m| held.contains(&m.id())));
    let (ours, before) = match ours {
        Some(before) => (true, before),
        None if target.adopt => (false, present.try_clone()?),
        None => return Ok(None),
    };
    Ok(Some(Found { title: Title::Adopted { hook, before }, present: Some(present), ours }))
}

/// The interface of a link; `None` if it is gone.
fn place_of(link: &Link) -> Result<Option<u32>, LiveError> {
    Ok(match link.info()?.detail {
        LinkDetail::Xdp { ifindex } | LinkDetail::Tcx { ifindex, .. } if ifindex != 0 => Some(ifindex),
        _ => None,
    })
}

/// Takes a place in which no session was.
fn enter(pins: &Pins, original: &Program, found: Option<Found>, target: &Target) -> Result<Title, LiveError> {
    if let Some(Found { title, present, .. }) = found {
        if let Title::Adopted { before, .. } = &title {
            pins.pin_before(before)?;
        }
        title.replace_by(original, present.as_ref()).inspect_err(|_| pins.remove_before())?;
        return Ok(title);
    }
    let link = match original.info()?.program_type {
        ProgramType::SCHED_CLS => {
            let hook = if target.egress { AttachType::TCX_EGRESS } else { AttachType::TCX_INGRESS };
            Link::attach_tcx(original, target.ifindex, hook)?
        }
        _ => Link::attach_xdp(original, target.ifindex, target.mode)?,
    };
    // If it cannot be pinned it is dropped, and so detached.
    pins.pin_link(&link)?;
    Ok(Title::Own(link))
}

fn xdp_mode(original: &Program, target: &Target) -> Option<XdpMode> {
    let is_xdp = original.info().is_ok_and(|i| i.program_type == ProgramType::XDP);
    let state = is_xdp.then(|| query_xdp(target.ifindex).ok().flatten()).flatten();
    state.map(|s| s.mode)
}

/// What was pinned, in case that it must be undone.
struct Pinned<'t> {
    maps: Vec<&'t str>,
}

impl Pinned<'_> {
    fn undo(&self, pins: &Pins) {
        pins.remove_guard();
        for name in &self.maps {
            pins.remove_map(name);
        }
    }
}

fn pin<'t>(pins: &Pins, tenant: &Tenant<'t>) -> Result<Pinned<'t>, LiveError> {
    let mut pinned = Pinned { maps: Vec::new() };
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
