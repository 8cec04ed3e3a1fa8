//! Helper functions, as methods of the machine.

pub(crate) mod cipher;
mod csum;
pub(crate) mod havoc;
mod maps;
mod misc;
pub(crate) mod packet;

use millstream_isa::helpers::id;

use crate::errno::{E2BIG, EFAULT, EINVAL, ENOENT, ERANGE};
use crate::{Fault, MachineState, MapId};

/// `BPF_MAX_LOOPS`
const MAX_LOOPS: u64 = 1 << 23;
/// `MAX_TAIL_CALL_CNT`
const MAX_TAIL_CALLS: u32 = 33;

/// Contents of `r0` after a helper that returns nothing: an arbitrary value that no program would use on
/// purpose.
pub(crate) const UNDEFINED: u64 = 0xdead_beef_dead_beef;

/// Outcome of a helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelperOutcome {
    /// It returned this.
    Return(u64),
    /// The program of this index takes over.
    TailCall(usize),
}

/// Interface by which helpers call functions of the program, implemented by each interpreter.
pub trait CallbackCaller {
    /// Calls the function at an address (see [`MachineState::function_address`]) and gives its `r0`.
    ///
    /// # Errors
    /// What the function's run ended in.
    fn call(&mut self, machine: &mut MachineState, function: u64, args: [u64; 5]) -> Result<u64, Fault>;
}

type Result<T = u64, E = Fault> = std::result::Result<T, E>;

/// An error number as a helper returns it.
fn errno(value: i64) -> Result {
    Ok(value as u64)
}

/// Calls helper `id`.
///
/// # Errors
/// [`Fault`] where the arguments are such as the verifier refuses, or the helper is not modelled.
pub(crate) fn call_helper(
    state: &mut MachineState,
    id: i32,
    args: [u64; 5],
    caller: &mut dyn CallbackCaller,
) -> Result<HelperOutcome> {
    if id == id::TAIL_CALL {
        return tail_call(state, args);
    }
    let found = match maps::map_helper(state, id, args, caller)? {
        Some(value) => Some(value),
        None => match packet::packet_helper(state, id, args)? {
            Some(value) => Some(value),
            None => misc::misc_helper(state, id, args, caller)?,
        },
    };
    match found {
        Some(value) => Ok(HelperOutcome::Return(value)),
        None => match state.env.hooks.helper(id, args) {
            Some(result) => result.map(HelperOutcome::Return),
            None => havoc::havoc_result(state, id, args).map(HelperOutcome::Return).ok_or(Fault::Helper(id)),
        },
    }
}

/// Calls a kernel function.
///
/// # Errors
/// [`Fault::Kfunc`] unless the hooks know it.
pub(crate) fn call_kfunc(state: &mut MachineState, btf_id: i32, args: [u64; 5]) -> Result {
    state.env.hooks.kfunc(btf_id, args).unwrap_or(Err(Fault::Kfunc(btf_id)))
}

/// `bpf_tail_call`: falls through where there is no such program or the chain is too long.
fn tail_call(state: &mut MachineState, [_, map, index, ..]: [u64; 5]) -> Result<HelperOutcome> {
    let map = map_arg(state, 12, map)?;
    let index = index as u32;
    if state.tail_calls >= MAX_TAIL_CALLS {
        return Ok(HelperOutcome::Return(UNDEFINED));
    }
    match state.maps.get(map, &state.byte_order().bytes_of_u32(index)) {
        Some(value) => {
            state.tail_calls += 1;
            let program = value.first_chunk::<4>().map_or(0, |v| state.byte_order().number(v));
            Ok(HelperOutcome::TailCall(program as usize))
        }
        None => Ok(HelperOutcome::Return(UNDEFINED)),
    }
}

/// The map in an argument.
fn map_arg(state: &MachineState, id: i32, addr: u64) -> Result<MapId> {
    let map = MachineState::map_at(addr).filter(|map| state.maps.spec(*map).is_some());
    map.ok_or(Fault::Argument { id, why: "not a map" })
}

/// Copies memory out of the machine.
fn copy(state: &mut MachineState, addr: u64, len: u64) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    state.bytes(addr, len, false).map(|bytes| bytes.to_vec())
}

/// Copies memory into the machine.
fn fill(state: &mut MachineState, addr: u64, bytes: &[u8]) -> Result<()> {
    if !bytes.is_empty() {
        state.bytes(addr, bytes.len() as u64, true)?.copy_from_slice(bytes);
    }
    Ok(())
}
