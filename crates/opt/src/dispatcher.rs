//! The dispatcher of libxdp and bpfman: its constants, and what components say about their place in the chain.
//!
//! A dispatcher has constants of a structure with `num_progs_enabled` and `chain_call_actions`, and calls `prog0`
//! to `prog9` in order. It goes on after a verdict if the bit of the verdict is in the mask of the program
//! (libxdp, `protocol.org`). Both fields are found by name, so that versions may differ in their other fields.

use millstream_btf::{Btf, TypeKind};
use millstream_object::{FuncId, MapId, MapOrigin, Object, ObjectError};
use thiserror::Error;

/// The section in which programs declare priority and verdicts (`XDP_RUN_CONFIG`).
const RUN_SETTINGS: &str = ".xdp_run_config";
/// Verdicts by number.
const VERDICTS: [&str; 5] = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];
/// Verdict after which the next program runs, if nothing is declared.
const PASS: u32 = 1 << 2;
/// The bit of the verdict of a stub that no program replaces.
const EMPTY_SLOT: u32 = 1 << 31;
/// Priority if nothing is declared.
const PRIORITY: u32 = 50;

/// A component's place in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainMember {
    /// Programs run in ascending order of it.
    pub priority: u32,
    /// Verdicts after which the next program runs, bit 0 for `XDP_ABORTED`.
    pub actions: u32,
}

impl ChainMember {
    /// Names of the verdicts after which the next program runs.
    pub fn verdicts(&self) -> Vec<&'static str> {
        (0..VERDICTS.len()).filter(|n| self.actions & 1 << n != 0).map(|n| VERDICTS[n]).collect()
    }
}

/// Reasons why an object is no dispatcher for a chain.
#[derive(Debug, Error)]
pub enum DispatcherError {
    /// No constants of the expected form.
    #[error("it has no constants with num_progs_enabled and chain_call_actions")]
    NoConstants,
    /// The chain is too long.
    #[error("it has room for {slots} programs, not for {programs}")]
    TooMany {
        /// Programs that it can call.
        slots: u32,
        /// Programs of the chain.
        programs: usize,
    },
    /// The constants cannot be set.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// Places of a dispatcher's constants.
struct DispatcherConstants {
    map: MapId,
    count: u32,
    actions: u32,
    slots: u32,
}

impl DispatcherConstants {
    fn find(object: &Object) -> Option<DispatcherConstants> {
        let btf = object.btf.as_ref()?;
        let constants = (0u32..).map(MapId).zip(&object.maps).filter(|(_, m)| m.origin == MapOrigin::Rodata);
        let variables = constants.flat_map(|(id, m)| m.variables.iter().map(move |v| (id, v)));
        variables.into_iter().find_map(|(map, variable)| {
            let TypeKind::Var { ty, .. } = variable_type(btf, &variable.name)? else { return None };
            let ty = btf.resolve(ty).ok()?;
            let count = btf.field(ty, "num_progs_enabled").ok()??;
            let actions = btf.field(ty, "chain_call_actions").ok()??;
            let TypeKind::Array(array) = btf.resolved(actions.ty).ok()?.kind else { return None };
            let offset = |bits: u32| variable.offset + bits / 8;
            Some(DispatcherConstants {
                map,
                count: offset(count.bit_offset),
                actions: offset(actions.bit_offset),
                slots: array.len,
            })
        })
    }
}

fn variable_type(btf: &Btf, name: &str) -> Option<TypeKind> {
    let id = btf.find(millstream_btf::KindTag::Var, name)?;
    Some(btf.ty(id).ok()?.kind)
}

/// Gives a dispatcher its constants for a chain of these programs, in order.
///
/// # Errors
/// [`DispatcherError`].
pub fn configure_dispatcher(dispatcher: &mut Object, members: &[ChainMember]) -> Result<(), DispatcherError> {
    let places = DispatcherConstants::find(dispatcher).ok_or(DispatcherError::NoConstants)?;
    let mut bytes = dispatcher.maps[places.map.index()].data.clone().unwrap_or_default();
    let count = u8::try_from(members.len()).ok().filter(|n| u32::from(*n) <= places.slots);
    let Some(count) = count else {
        return Err(DispatcherError::TooMany { slots: places.slots, programs: members.len() });
    };
    let order = dispatcher.byte_order();
    *bytes.get_mut(places.count as usize).ok_or(DispatcherError::NoConstants)? = count;
    for (n, member) in members.iter().enumerate() {
        let at = places.actions as usize + 4 * n;
        let word = bytes.get_mut(at..at + 4).ok_or(DispatcherError::NoConstants)?;
        word.copy_from_slice(&order.bytes_of_u32(member.actions | EMPTY_SLOT));
    }
    Ok(dispatcher.settle(places.map, 0, &bytes)?)
}

/// The function of a dispatcher that the program of this place replaces.
pub fn dispatcher_slot(dispatcher: &Object, place: usize) -> Option<FuncId> {
    let name = format!("prog{place}");
    let at = dispatcher.functions.iter().position(|f| f.name == name && !f.removed)?;
    Some(FuncId(at as u32))
}

/// Returns the place in a chain that an object declares for a program; without a declaration, priority 50, and the
/// next program runs after `XDP_PASS`.
pub fn run_settings(object: &Object, program: &str) -> ChainMember {
    let declared = object.btf.as_ref().and_then(|btf| declared(btf, program));
    declared.unwrap_or(ChainMember { priority: PRIORITY, actions: PASS })
}

/// A structure whose members are pointers to arrays of as many elements as their values.
fn declared(btf: &Btf, program: &str) -> Option<ChainMember> {
    let section = btf.find(millstream_btf::KindTag::Datasec, RUN_SETTINGS)?;
    let TypeKind::Datasec(section) = btf.ty(section).ok()?.kind else { return None };
    let name = format!("_{program}");
    let var = section.vars.iter().find(|v| btf.name(v.ty) == name)?;
    let TypeKind::Var { ty, .. } = btf.ty(var.ty).ok()?.kind else { return None };
    let ty = btf.resolve(ty).ok()?;
    let value = |name: &str| {
        let field = btf.field(ty, name).ok()??;
        let TypeKind::Ptr(target) = btf.resolved(field.ty).ok()?.kind else { return None };
        let TypeKind::Array(array) = btf.resolved(target).ok()?.kind else { return None };
        Some(array.len)
    };
    let verdict = |(n, name): (usize, &&str)| value(name).map(|on| u32::from(on != 0) << n);
    let verdicts: Vec<u32> = VERDICTS.iter().enumerate().filter_map(verdict).collect();
    let actions = if verdicts.is_empty() { PASS } else { verdicts.iter().fold(0, |all, v| all | v) };
    Some(ChainMember { priority: value("priority").unwrap_or(PRIORITY), actions })
}
