//! Helper functions, as methods of the machine.

pub(crate) mod cipher;
mod csum;
pub(crate) mod havoc;
mod maps;
mod misc;
mod packet;

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

impl MachineState {
    /// Calls helper `id`.
    ///
    /// # Errors
    /// [`Fault`] where the arguments are such as the verifier refuses, or the helper is not modelled.
    pub fn helper(
        &mut self,
        id: i32,
        args: [u64; 5],
        caller: &mut dyn CallbackCaller,
    ) -> Result<HelperOutcome> {
        if id == id::TAIL_CALL {
            return self.tail_call(args);
        }
        let found = match self.map_helper(id, args, caller)? {
            Some(value) => Some(value),
            None => match self.packet_helper(id, args)? {
                Some(value) => Some(value),
                None => self.misc_helper(id, args, caller)?,
            },
        };
        match found {
            Some(value) => Ok(HelperOutcome::Return(value)),
            None => match self.env.hooks.helper(id, args) {
                Some(result) => result.map(HelperOutcome::Return),
                None => self.havoc_result(id, args).map(HelperOutcome::Return).ok_or(Fault::Helper(id)),
            },
        }
    }

    /// Calls a kernel function.
    ///
    /// # Errors
    /// [`Fault::Kfunc`] unless the hooks know it.
    pub fn kfunc(&mut self, btf_id: i32, args: [u64; 5]) -> Result {
        self.env.hooks.kfunc(btf_id, args).unwrap_or(Err(Fault::Kfunc(btf_id)))
    }

    /// `bpf_tail_call`: falls through where there is no such program or the chain is too long.
    fn tail_call(&mut self, [_, map, index, ..]: [u64; 5]) -> Result<HelperOutcome> {
        let map = self.map_arg(12, map)?;
        let index = index as u32;
        if self.tail_calls >= MAX_TAIL_CALLS {
            return Ok(HelperOutcome::Return(UNDEFINED));
        }
        match self.maps.get(map, &self.byte_order().bytes_of_u32(index)) {
            Some(value) => {
                self.tail_calls += 1;
                let program = value.first_chunk::<4>().map_or(0, |v| self.byte_order().number(v));
                Ok(HelperOutcome::TailCall(program as usize))
            }
            None => Ok(HelperOutcome::Return(UNDEFINED)),
        }
    }

    /// The map in an argument.
    fn map_arg(&self, id: i32, addr: u64) -> Result<MapId> {
        let map = MachineState::map_at(addr).filter(|map| self.maps.spec(*map).is_some());
        map.ok_or(Fault::Argument { id, why: "not a map" })
    }

    /// Copies memory out of the machine.
    fn copy(&mut self, addr: u64, len: u64) -> Result<Vec<u8>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        self.bytes(addr, len, false).map(|bytes| bytes.to_vec())
    }

    /// Copies memory into the machine.
    fn fill(&mut self, addr: u64, bytes: &[u8]) -> Result<()> {
        if !bytes.is_empty() {
            self.bytes(addr, bytes.len() as u64, true)?.copy_from_slice(bytes);
        }
        Ok(())
    }
}
