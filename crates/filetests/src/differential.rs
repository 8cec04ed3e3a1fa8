//! Random functions, run as they stand, lowered, optimised, and optimised and lowered: all must agree. And
//! after any passes, with any fuel: where the meaning changes, the rewrite that changed it is found.

use millstream_interp::MachineState;
use millstream_interp::ir::IrInterpreter;
use millstream_ir::random::{ENTRIES, MEMORY, VALUE};
use millstream_ir::verify::verify_module;
use millstream_ir::{Func, Map, Module, random};
use millstream_isa::ByteOrder;
use millstream_passes::{Fuel, PassPipeline, PassSession, TargetInfo};

use crate::engine::{ExecutionEngine, call};

/// Result and state after a run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct EngineOutcome {
    result: Result<u64, String>,
    memory: Vec<u8>,
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Makes a function of `choices`, runs it on `args` in every way, and says which way gave something else.
///
/// # Errors
/// A description of the disagreement, with the function.
pub fn check_random(choices: &[u8], args: [u64; 2], target: &TargetInfo) -> Result<(), String> {
    let module = random::module(choices);
    let expected = outcome(&module, ExecutionEngine::Ir, args, target.byte_order)?;
    expected.result.as_ref().map_err(|fault| format!("{fault}\n{module}"))?;
    let mut optimized = module.clone();
    let mut session = PassSession::new(target.clone());
    session.verify = true;
    PassPipeline::default_o2().run(&mut optimized, &mut session).map_err(|e| format!("{e}\n{module}"))?;
    for (name, module, engine) in [
        ("lowered", &module, ExecutionEngine::Lowered),
        ("optimised", &optimized, ExecutionEngine::Ir),
        ("optimised and lowered", &optimized, ExecutionEngine::Lowered),
    ] {
        let found = outcome(module, engine, args, target.byte_order)?;
        if found != expected {
            return Err(format!("{name}, on {args:?}: expected {expected:?}, found {found:?}\n{module}"));
        }
    }
    Ok(())
}

/// Makes a function of `choices` and runs it on `args` before and after passes that are given some fuel.
///
/// # Errors
/// The rewrite that changes the function's behaviour, with the function before and after it.
pub fn check_passes(
    choices: &[u8],
    args: [u64; 2],
    names: &[&str],
    fuel: &Fuel,
    target: &TargetInfo,
) -> Result<(), String> {
    let module = random::module(choices);
    let errors = verify_module(&module);
    if !errors.is_empty() {
        return Err(format!("the function is invalid: {errors:?}\n{module}"));
    }
    let (after, changed, spent) = passed(&module, names, fuel.clone(), target)?;
    if !changed {
        return Ok(());
    }
    let expected = outcome(&module, ExecutionEngine::Ir, args, target.byte_order)?;
    let same = |module: &Module| {
        Ok::<_, String>(outcome(module, ExecutionEngine::Ir, args, target.byte_order)? == expected)
    };
    if same(&after)? {
        return Ok(());
    }
    let mut before = module.clone();
    for limit in 0..=spent.requested() {
        let (after, _, spent) = passed(&module, names, Fuel::limited(limit), target)?;
        if !same(&after)? {
            let blame = spent.requester(limit.saturating_sub(1));
            return Err(format!("{blame:?} is wrong on {args:?}\n{before}\n{after}"));
        }
        before = after;
    }
    Err(format!("with rewrites left out, {names:?} change what it does on {args:?}\n{module}\n{after}"))
}

fn passed(
    module: &Module,
    names: &[&str],
    fuel: Fuel,
    target: &TargetInfo,
) -> Result<(Module, bool, Fuel), String> {
    let mut module = module.clone();
    let mut session = PassSession::new(target.clone());
    session.verify = true;
    session.fuel = fuel;
    let pipeline = PassPipeline::of(names.iter().copied()).map_err(|e| e.to_string())?;
    let changed = pipeline.run(&mut module, &mut session).map_err(|e| format!("{e}\n{module}"))?;
    Ok((module, changed, session.fuel))
}

fn outcome(
    module: &Module,
    engine: ExecutionEngine,
    [a, b]: [u64; 2],
    order: ByteOrder,
) -> Result<EngineOutcome, String> {
    let mut machine = MachineState::default().with_byte_order(order);
    let interpreter = IrInterpreter::new(module, &mut machine);
    let map = interpreter.map(Map::from_u32(0)).ok_or("no map")?;
    for i in 0..ENTRIES {
        let value: Vec<u8> = (0..VALUE).map(|k| (i * 31 + k * 7) as u8).collect();
        machine.maps.set(map, &order.bytes_of_u32(i), &value, 0).map_err(|errno| format!("error {errno}"))?;
    }
    machine.reset(&[]);
    let address = machine.add_memory((0..MEMORY as u8).collect());
    let result = call(engine, module, &interpreter, &mut machine, Func::from_u32(0), &[a, b, address])?;
    let memory = machine.bytes(address, u64::from(MEMORY), false).map_err(|e| e.to_string())?.to_vec();
    let result = result.ok_or("the function has no form in BPF")?;
    Ok(EngineOutcome { result, memory, entries: machine.maps.entries(map) })
}
