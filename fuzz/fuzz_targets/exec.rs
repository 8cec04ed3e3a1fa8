//! Treats hostile bytes as `millstream exec` does: runs them, lifts and lowers them, and runs the result.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_bpf::raw::{lift_raw, lower_raw};
use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram};
use millstream_interp::{ContextKind, MachineState};
use millstream_isa::RawInsn;

/// Instructions that a run may execute.
const FUEL: u64 = 20_000;

fn run(slots: &[RawInsn]) {
    let Ok(program) = DecodedProgram::new(slots) else { return };
    let mut machine = MachineState::new(ContextKind::Raw);
    machine.fuel = FUEL;
    let address = machine.add_memory(vec![0x5a; 64]);
    let _ = BytecodeInterpreter::new(&[program]).run(&mut machine, 0, [address, 64, 0, 0, 0]);
}

fuzz_target!(|data: &[u8]| {
    let Some(slots) = RawInsn::slice_from_bytes(&data[..data.len() & !7]) else { return };
    run(&slots);
    let Ok(module) = lift_raw(&slots, None) else { return };
    if let Ok(lowered) = lower_raw(&module) {
        run(&lowered);
    }
});
