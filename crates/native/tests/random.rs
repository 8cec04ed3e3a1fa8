//! Random functions do the same in native code as in the IR's interpreter: result, memory, map.

use millstream_interp::MachineState;
use millstream_interp::ir::IrInterpreter;
use millstream_ir::random::{self, ENTRIES, MEMORY, SeededRng, VALUE};
use millstream_ir::{Func, Function, Linkage, Map, MemFlags, Module, Op, Prov, Size, Type};
use millstream_native::{LayoutPolicy, NativeEngine, NativeOptions, PacketBatch};

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
const FUNCTIONS: u64 = 150;

fn value(entry: u32) -> Vec<u8> {
    (0..VALUE).map(|k| (entry * 31 + k * 7) as u8).collect()
}

/// Result, memory and map.
type Outcome = (u64, Vec<u8>, Vec<Vec<u8>>);

fn interpreted(module: &Module, args: [u64; 2]) -> Outcome {
    let mut machine = MachineState::default();
    let interpreter = IrInterpreter::new(module, &mut machine);
    let map = interpreter.map(Map::from_u32(0)).expect("an array");
    for i in 0..ENTRIES {
        machine.maps.set(map, &i.to_le_bytes(), &value(i), 0).expect("room");
    }
    machine.reset(&[]);
    let memory = machine.add_memory((0..MEMORY as u8).collect());
    let result = interpreter.run(&mut machine, Func::from_u32(0), &[args[0], args[1], memory]);
    let result = result.unwrap_or_else(|fault| panic!("{fault}\n{module}"));
    let after = machine.bytes(memory, u64::from(MEMORY), false).expect("there").to_vec();
    let entries = machine.maps.entries(map).into_iter().map(|(_, value)| value).collect();
    (result, after, entries)
}

/// A program that calls the function with the packet as its memory, and puts the result behind that.
fn with_caller(mut module: Module, args: [u64; 2]) -> (Module, Func) {
    let mut func = Function::new("caller", Linkage::Program { prog_type: XDP });
    let block = func.add_block();
    let ctx = func.add_param(block, Type::Ptr(Prov::Ctx));
    let flags = MemFlags::default();
    let mut at = func.at_end(block);
    let load = Op::Load { size: Size::W, sext: false, offset: 0, flags };
    let packet = at.value(load, [ctx], Type::Ptr(Prov::Packet));
    let [a, b] = args.map(|a| at.iconst(a as i64));
    let result = at.value(Op::Call { func: Func::from_u32(0) }, [a, b, packet], Type::Any);
    at.effect(Op::Store { size: Size::Dw, offset: MEMORY as i32, flags }, [packet, result], []);
    let verdict = at.iconst(2);
    at.effect(Op::Return {}, [verdict], []);
    let caller = module.funcs.push(func);
    (module, caller)
}

fn native(module: &Module, args: [u64; 2], options: &NativeOptions) -> Outcome {
    let (module, caller) = with_caller(module.clone(), args);
    let mut engine = NativeEngine::of_module(module, caller, options).expect("compiled");
    let map = engine.maps().next().expect("an array");
    for i in 0..ENTRIES {
        assert_eq!(map.update(&i.to_le_bytes(), &value(i), 0, None), 0);
    }
    let mut batch = PacketBatch::new(2).expect("memory");
    let mut frame: Vec<u8> = (0..MEMORY as u8).collect();
    frame.resize(MEMORY as usize + 8, 0);
    assert!(batch.push(&frame, 1));
    engine.run(&mut batch);
    assert_eq!(batch.verdict(0), 2);
    let (memory, result) = batch.bytes(0).split_at(MEMORY as usize);
    let map = engine.maps().next().expect("an array");
    let entries = (0..ENTRIES).map(|i| map.get(&i.to_le_bytes()).expect("arrays are full")).collect();
    (u64::from_le_bytes(result.try_into().expect("eight")), memory.to_vec(), entries)
}

#[test]
fn random_functions_agree_with_the_interpreter() {
    for seed in 0..FUNCTIONS {
        let mut random = SeededRng::new(seed);
        let choices = random.bytes(400);
        let module = random::module(&choices);
        let args = [random.boundary_biased_word(), random.boundary_biased_word()];
        let expected = interpreted(&module, args);
        for (passes, llvm_passes) in [(false, "default<O0>"), (false, "default<O2>"), (true, "default<O2>")] {
            let descriptors = LayoutPolicy::Shuffled(seed);
            let options = NativeOptions {
                passes,
                llvm_passes: llvm_passes.into(),
                descriptors,
                ..NativeOptions::default()
            };
            let found = native(&module, args, &options);
            assert_eq!(found, expected, "seed {seed}, passes {passes}, {llvm_passes}\n{module}");
        }
    }
}
