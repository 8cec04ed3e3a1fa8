//! Constructs that a kernel program cannot do, found in the code of the functions.

use millstream_ir::{Function, Inst, Op, Value};
use millstream_p4_lower::{Architecture, Pipeline};

use crate::error::KernelBuildError;
use crate::loop_effort::heaviest_loop;

/// Requests to the engine that are refused: field of the state, name of the construct, reason.
const REQUESTS: [(&str, &str, &str); 4] = [
    ("engine.clone_ingress", "`clone` of an ingress packet", NO_COPIES),
    ("engine.clone_egress", "`clone` of an egress packet", NO_COPIES),
    ("engine.resubmit", "`resubmit`", ONE_PASS),
    ("engine.recirculate", "`recirculate`", ONE_PASS),
];
const NO_COPIES: &str = "a program cannot copy a packet";
const FOLLOWED: &str = "the verifier follows each of them, up to 1,000,000 instructions";
const ONE_PASS: &str = "a packet goes through the program once";

/// Refuses what the kernel cannot do.
///
/// # Errors
/// [`KernelBuildError::Refused`]: the first construct.
pub(crate) fn check_constructs(pipeline: &Pipeline, func: &Function) -> Result<(), KernelBuildError> {
    let params = &func.blocks[func.entry()].params;
    let [state, data, _] = params[..] else { return Ok(()) };
    if pipeline.architecture == Architecture::Psa {
        return refuse(pipeline, func, None, ("`PSA_Switch`", "its replication engine copies packets"));
    }
    for (_, inst) in func.insts_in_order() {
        let data_of = &func.insts[inst];
        match data_of.op {
            Op::Store { offset, .. } if data_of.args[0] == state => {
                if func.as_const(data_of.args[1]) == Some(0) {
                    continue;
                }
                let field = pipeline.state.fields.iter().find(|field| field.offset as i32 == offset);
                let Some(field) = field else { continue };
                if let Some((_, name, reason)) = REQUESTS.iter().find(|(name, ..)| *name == field.name) {
                    return refuse(pipeline, func, Some(inst), (name, reason));
                }
                if field.name == "standard_metadata.mcast_grp" {
                    return refuse(pipeline, func, Some(inst), ("multicast (`mcast_grp`)", NO_COPIES));
                }
                if field.name == "standard_metadata.clone" && pipeline.architecture == Architecture::Ubpf {
                    return refuse(pipeline, func, Some(inst), ("`clone`", NO_COPIES));
                }
            }
            Op::Call { .. } if data_of.args.first().is_some_and(|arg| is_in_packet(func, *arg, data)) => {
                let reason = "the verifier follows each byte of it";
                return refuse(pipeline, func, Some(inst), ("a checksum or hash of the payload", reason));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses loops that the verifier does not follow to the end.
///
/// # Errors
/// [`KernelBuildError::Refused`] with the place of the innermost loop.
pub(crate) fn check_loops(pipeline: &Pipeline, func: &Function) -> Result<(), KernelBuildError> {
    match heaviest_loop(func) {
        None => Ok(()),
        loop_end => refuse(pipeline, func, loop_end, ("a loop with so many iterations", FOLLOWED)),
    }
}

/// Tells if a value is the packet's first byte, moved.
fn is_in_packet(func: &Function, mut value: Value, data: Value) -> bool {
    while value != data {
        match func.def_inst(value).map(|inst| &func.insts[inst]) {
            Some(inst) if matches!(inst.op, Op::Alu { .. }) => value = inst.args[0],
            _ => return false,
        }
    }
    true
}

fn refuse(
    pipeline: &Pipeline,
    func: &Function,
    inst: Option<Inst>,
    (construct, reason): (&str, &str),
) -> Result<(), KernelBuildError> {
    let line = inst.map(|inst| func.insts[inst].loc).and_then(|loc| func.locs.get(loc as usize));
    let line = line.and_then(|record| pipeline.lines.get(*record as usize));
    let place = line.map_or_else(|| "the program".to_owned(), |line| format!("{}:{}", line.path, line.line));
    Err(KernelBuildError::Refused { place, construct: construct.to_owned(), reason: reason.to_owned() })
}
