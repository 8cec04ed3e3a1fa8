//! Made-up results where the machine has no model: answers of helpers, and memory of the kernel.
//!
//! Each made-up result is one that a kernel might give, and the same for the same question; a number selects
//! it ([`crate::ExecutionEnv::made_up`]).

use millstream_isa::helpers::{ArgKind, Helper, HelperEffects, RetKind, id as helper_id};

use crate::MachineState;
use crate::env::SideEffect;
use crate::made_up_memory::{mixed, number, pointer};

/// Effects that helpers with made-up answers may have: none that others on this machine would see.
const UNSEEN: HelperEffects = HelperEffects::WRITES_PACKET
    .or(HelperEffects::MOVES_PACKET)
    .or(HelperEffects::CALLBACK)
    .or(HelperEffects::ACQUIRES)
    .or(HelperEffects::RELEASES)
    .or(HelperEffects::LOCK)
    .or(HelperEffects::TAIL_CALL);

/// The answer of a helper whose arguments are only numbers, maps, the context or kernel objects; [`None`]
/// for any other, or if nothing is made up.
pub(super) fn havoc_result(state: &mut MachineState, id: i32, args: [u64; 5]) -> Option<u64> {
    let seed = state.env.made_up?;
    let helper = Helper::get(id)?;
    let plain = |kind: &ArgKind| {
        matches!(kind, ArgKind::Any | ArgKind::Ctx | ArgKind::CtxOrNull | ArgKind::ConstMap | ArgKind::Btf)
    };
    if helper.effects.intersects(UNSEEN) || !helper.args.iter().all(plain) {
        return None;
    }
    let args = args[..helper.args.len()].to_vec();
    let mut question = args.iter().fold(mixed(seed ^ id as u64), |all, a| mixed(all ^ a));
    if helper.effects.intersects(HelperEffects::VOLATILE) {
        let count = state.answers.entry(id).or_insert(0);
        *count += 1;
        question = mixed(question ^ *count);
    }
    if helper.effects.intersects(HelperEffects::EXTERNAL) {
        state.env.events.push(SideEffect::Call { id, args });
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
