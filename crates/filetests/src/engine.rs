//! Running a case: on the IR's interpreter, and lowered on the bytecode's.

use millstream_bpf::lift::RelocTarget;
use millstream_bpf::lower::{LowerError, LoweredFunction, lower_func};
use millstream_interp::bytecode::{BytecodeInterpreter as Bytecode, DecodedProgram};
use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, MachineState};
use millstream_ir::{Func, Linkage, Map, Module};
use millstream_isa::{Callee, Insn, Pseudo};
use rustc_hash::FxHashMap;

use crate::FiletestError;
use crate::runs::{CallArg, MapEntrySpec, RunDirective, RunPostcondition};

/// Something that runs a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecutionEngine {
    /// The IR as it stands.
    Ir,
    /// The bytecode that it is lowered to.
    Lowered,
}

/// Runs all cases on every engine. `when` says at which moment, for messages.
pub(crate) fn run_all(
    module: &Module,
    entries: &[MapEntrySpec],
    runs: &[RunDirective],
    when: &str,
) -> Result<(), FiletestError> {
    for run in runs {
        for engine in [ExecutionEngine::Ir, ExecutionEngine::Lowered] {
            run_one(engine, module, entries, run).map_err(|message| {
                let engine = match engine {
                    ExecutionEngine::Ir => "the IR's interpreter",
                    ExecutionEngine::Lowered => "the lowered code",
                };
                FiletestError::Run { line: run.line, message: format!("{when}, {engine}: {message}") }
            })?;
        }
    }
    Ok(())
}

fn run_one(
    engine: ExecutionEngine,
    module: &Module,
    entries: &[MapEntrySpec],
    run: &RunDirective,
) -> Result<(), String> {
    let func = Func::from_u32(run.func);
    let decl = module.funcs.get(func).ok_or_else(|| format!("{func} does not exist"))?;
    if decl.layout.is_empty() {
        return Err(format!("{func} has no body"));
    }
    let mut machine = MachineState::new(match decl.linkage {
        Linkage::Program { prog_type: 6 } => ContextKind::Xdp,
        Linkage::Program { prog_type: 3 | 4 } => ContextKind::Skb,
        _ => ContextKind::Raw,
    });
    let interpreter = IrInterpreter::new(module, &mut machine);
    for entry in entries {
        set_entry(&interpreter, &mut machine, entry)?;
    }
    let (args, mems) = arguments(&mut machine, &run.args);
    let Some(result) = call(engine, module, &interpreter, &mut machine, func, &args)? else { return Ok(()) };
    match (result, run.result) {
        (Ok(found), Some(expected)) if found == expected => {}
        (Ok(found), Some(expected)) => return Err(format!("expected {expected:#x}, found {found:#x}")),
        (Ok(found), None) => return Err(format!("expected a fault, found {found:#x}")),
        (Err(_), None) => return Ok(()),
        (Err(fault), Some(_)) => return Err(fault),
    }
    check_after(&interpreter, &mut machine, &mems, &run.after)
}

/// Calls a function: its result, or the fault; `None` if the engine cannot run the module.
pub(crate) fn call(
    engine: ExecutionEngine,
    module: &Module,
    interpreter: &IrInterpreter<'_>,
    machine: &mut MachineState,
    func: Func,
    args: &[u64],
) -> Result<Option<Result<u64, String>>, String> {
    match engine {
        ExecutionEngine::Ir => Ok(Some(interpreter.run(machine, func, args).map_err(|e| e.to_string()))),
        ExecutionEngine::Lowered => run_lowered(module, interpreter, machine, func, args),
    }
}

/// Numbers for the arguments, and where the memory arguments are.
fn arguments(machine: &mut MachineState, args: &[CallArg]) -> (Vec<u64>, Vec<(u64, u64)>) {
    let mut mems = Vec::new();
    let packet =
        args.iter().find_map(|a| if let CallArg::Packet(bytes) = a { Some(bytes.as_slice()) } else { None });
    machine.reset(packet.unwrap_or(&[]));
    let mut value = |arg: &CallArg| match arg {
        CallArg::Number(n) => *n,
        CallArg::Packet(_) => machine.context_address(),
        CallArg::Mem(bytes) => {
            let addr = machine.add_memory(bytes.clone());
            mems.push((addr, bytes.len() as u64));
            addr
        }
    };
    (args.iter().map(&mut value).collect(), mems)
}

fn set_entry(
    interpreter: &IrInterpreter<'_>,
    machine: &mut MachineState,
    entry: &MapEntrySpec,
) -> Result<(), String> {
    let map = Map::from_u32(entry.map);
    let id = interpreter.map(map).ok_or_else(|| format!("{map} does not exist or is not modelled"))?;
    let value = entry.value.as_deref().unwrap_or(&[]);
    machine
        .maps
        .set(id, &entry.key, value, 0)
        .map_err(|errno| format!("setting an entry of {map}: error {errno}"))
}

fn check_after(
    interpreter: &IrInterpreter<'_>,
    machine: &mut MachineState,
    mems: &[(u64, u64)],
    after: &[RunPostcondition],
) -> Result<(), String> {
    let mut mems = mems.iter();
    for check in after {
        let (what, found, expected) = match check {
            RunPostcondition::Packet(expected) => {
                ("the packet".to_string(), Some(machine.packet.bytes().to_vec()), Some(expected.clone()))
            }
            RunPostcondition::Mem(expected) => {
                let &(addr, len) = mems.next().ok_or("more `mem` expectations than `mem` arguments")?;
                let found = machine.bytes(addr, len, false).map_err(|fault| fault.to_string())?;
                ("memory".to_string(), Some(found.to_vec()), Some(expected.clone()))
            }
            RunPostcondition::Map(entry) => {
                let map = Map::from_u32(entry.map);
                let id = interpreter.map(map).ok_or_else(|| format!("{map} does not exist"))?;
                let what = format!("{map}[{}]", hex::encode(&entry.key));
                (what, machine.maps.get(id, &entry.key), entry.value.clone())
            }
        };
        if found != expected {
            let show = |bytes: Option<Vec<u8>>| bytes.map_or("no entry".to_string(), hex::encode);
            return Err(format!("{what}: expected {}, found {}", show(expected), show(found)));
        }
    }
    Ok(())
}

/// Lowers the module and runs the function; `None` if it has no form in BPF.
fn run_lowered(
    module: &Module,
    interpreter: &IrInterpreter<'_>,
    machine: &mut MachineState,
    func: Func,
    args: &[u64],
) -> Result<Option<Result<u64, String>>, String> {
    let Ok(code) = lower_all(module)? else { return Ok(None) };
    let mut registers = [0; 5];
    if args.len() > registers.len() {
        return Ok(None);
    }
    registers[..args.len()].copy_from_slice(args);
    // Programs first, so that tail calls find them by the index that the IR's interpreter uses; then the
    // function.
    let entries = interpreter.programs().iter().copied().chain([func]);
    let programs: Vec<DecodedProgram> =
        entries.map(|entry| link(&code, entry, interpreter)).collect::<Result<_, _>>()?;
    let result = Bytecode::new(&programs).run(machine, programs.len() - 1, registers);
    Ok(Some(result.map_err(|e| e.to_string())))
}

/// The code of every function that has a body; inner `Err` if an operation has no form in BPF.
fn lower_all(module: &Module) -> Result<Result<Vec<(Func, LoweredFunction)>, LowerError>, String> {
    let mut code = Vec::new();
    for (id, _) in module.funcs.iter().filter(|(_, f)| !f.layout.is_empty()) {
        match lower_func(module, id) {
            Ok(lowered) => code.push((id, lowered)),
            Err(e @ LowerError::NotBpf { .. }) => return Ok(Err(e)),
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(Ok(code))
}

/// All functions in one vector, `entry` first, symbols resolved to the machine's addresses.
fn link(
    code: &[(Func, LoweredFunction)],
    entry: Func,
    interpreter: &IrInterpreter<'_>,
) -> Result<DecodedProgram, String> {
    let (first, rest): (Vec<_>, Vec<_>) = code.iter().partition(|(id, _)| *id == entry);
    let ordered: Vec<&(Func, LoweredFunction)> = first.into_iter().chain(rest).collect();
    let mut starts = FxHashMap::default();
    let mut total = 0;
    for (id, lowered) in &ordered {
        starts.insert(*id, total);
        total += lowered.slots();
    }
    let mut insns = Vec::new();
    for (id, lowered) in ordered {
        let syms: FxHashMap<u32, RelocTarget> = lowered.syms.iter().copied().collect();
        let mut slot = 0;
        for insn in &lowered.insns {
            let mut insn = *insn;
            if let Some(sym) = syms.get(&slot) {
                let here = starts[id] + slot as usize;
                let distance = |f| starts.get(&f).map(|&to| to as i64 - here as i64 - 1);
                resolve(&mut insn, *sym, distance, interpreter)?;
            }
            slot += insn.slots() as u32;
            insns.push(insn);
        }
    }
    Ok(DecodedProgram::from_insns(&insns))
}

fn resolve(
    insn: &mut Insn,
    sym: RelocTarget,
    distance: impl Fn(Func) -> Option<i64>,
    interpreter: &IrInterpreter<'_>,
) -> Result<(), String> {
    let map_id = |map: Map| interpreter.map(map).ok_or_else(|| format!("{map} is not modelled"));
    match (insn, sym) {
        (Insn::LoadImm64 { pseudo, imm, .. }, RelocTarget::Map(map)) => {
            (*pseudo, *imm) = (Pseudo::None, MachineState::map_address(map_id(map)?));
        }
        (Insn::LoadImm64 { pseudo, imm, .. }, RelocTarget::MapValue(map, offset)) => {
            (*pseudo, *imm) = (Pseudo::None, MachineState::value_address_of(map_id(map)?, offset));
        }
        (Insn::LoadImm64 { pseudo, imm, .. }, RelocTarget::Func(f)) => {
            let rel = distance(f).ok_or_else(|| format!("{f} has no body"))?;
            (*pseudo, *imm) = (Pseudo::Func, rel as i32 as u32 as u64);
        }
        (Insn::Call(callee), RelocTarget::Func(f)) => {
            let rel = distance(f).ok_or_else(|| format!("{f} has no body"))?;
            *callee = Callee::Local(rel as i32);
        }
        (insn, sym) => return Err(format!("{insn:?} cannot refer to {sym:?}")),
    }
    Ok(())
}
