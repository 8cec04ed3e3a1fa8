//! Made-up results where the machine has no model: answers of helpers, and memory of the kernel.
//!
//! Each made-up result is one that a kernel might give, and the same for the same question; a number selects
//! it ([`crate::ExecutionEnv::made_up`]).

use millstream_isa::helpers::{ArgKind, Helper, HelperEffects, RetKind, id as helper_id};

use crate::MachineState;
use crate::env::SideEffect;

/// First address of the kernel's memory with made-up contents ([`crate::ExecutionEnv::made_up`]).
pub const KERNEL_MEMORY: u64 = 0xffff_8880_0000_0000;
/// Bytes of the kernel's memory that are made up at a time.
pub(crate) const PAGE: u64 = 4096;

/// Effects that helpers with made-up answers may have: none that others on this machine would see.
const UNSEEN: HelperEffects = HelperEffects::WRITES_PACKET
    .or(HelperEffects::MOVES_PACKET)
    .or(HelperEffects::CALLBACK)
    .or(HelperEffects::ACQUIRES)
    .or(HelperEffects::RELEASES)
    .or(HelperEffects::LOCK)
    .or(HelperEffects::TAIL_CALL);

impl MachineState {
    /// The answer of a helper whose arguments are only numbers, maps, the context or kernel objects; [`None`]
    /// for any other, or if nothing is made up.
    pub(super) fn havoc_result(&mut self, id: i32, args: [u64; 5]) -> Option<u64> {
        let seed = self.env.made_up?;
        let helper = Helper::get(id)?;
        let plain = |kind: &ArgKind| {
            matches!(
                kind,
                ArgKind::Any | ArgKind::Ctx | ArgKind::CtxOrNull | ArgKind::ConstMap | ArgKind::Btf
            )
        };
        if helper.effects.intersects(UNSEEN) || !helper.args.iter().all(plain) {
            return None;
        }
        let args = args[..helper.args.len()].to_vec();
        let mut question = args.iter().fold(mixed(seed ^ id as u64), |all, a| mixed(all ^ a));
        if helper.effects.intersects(HelperEffects::VOLATILE) {
            let count = self.answers.entry(id).or_insert(0);
            *count += 1;
            question = mixed(question ^ *count);
        }
        if helper.effects.intersects(HelperEffects::EXTERNAL) {
            self.env.events.push(SideEffect::Call { id, args });
        }
        match helper.ret {
            // The current task is an address, too.
            RetKind::Int if id == helper_id::GET_CURRENT_TASK => Some(pointer(question)),
            RetKind::Int | RetKind::Void => Some(number(question)),
            RetKind::Btf => Some(pointer(question)),
            RetKind::BtfOrNull => Some(if question & 1 == 0 { 0 } else { pointer(question) }),
            _ => None,
        }
    }
}

/// A page of the kernel's memory: numbers, large and small, and addresses of more of it.
pub(crate) fn havoc_page(seed: u64, address: u64) -> Vec<u8> {
    let words = (0..PAGE).step_by(8).map(|at| {
        let question = mixed(seed ^ (address + at));
        if question & 3 == 0 { pointer(question) } else { number(question) }
    });
    words.flat_map(u64::to_le_bytes).collect()
}

/// A number of the kind that programs compare with.
fn number(question: u64) -> u64 {
    let value = question >> 8;
    match question & 7 {
        0 | 1 => 0,
        2 | 3 => value & 0xf,
        4 => value & 0xffff,
        5 => (value & 0xf).wrapping_neg(),
        _ => value,
    }
}

/// An address of the kernel's memory.
fn pointer(question: u64) -> u64 {
    KERNEL_MEMORY | (question >> 24 & 0xfff_ffc0)
}

/// Well mixed bits of a number (the finalizer of splitmix64).
fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}
