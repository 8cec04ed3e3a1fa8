//! Programs of others as elements: contexts and verdicts of TC. (Those of XDP are compared with the kernel's
//! by the command line's tests.)

use millstream_click::{BpfElementProgram, flatten, parse};
use millstream_click_elements::compile_with;
use millstream_ir::{
    AluOp, BlockCall, Cond, Func, Function, Linkage, MemFlags, Module, Op, Prov, Size, Type, Width,
};
use millstream_isa::helpers::id;
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};

const SCHED_CLS: u32 = 3;

/// A TC program that returns the packet's first byte, less one, and writes 9 in its place; 2 without a byte.
fn program(context_field: i32) -> BpfElementProgram {
    let mut func = Function::new("classify", Linkage::Program { prog_type: SCHED_CLS });
    let [entry, whole, short] = [(); 3].map(|()| func.add_block());
    let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let flags = MemFlags::default();
    let load = |size, offset| Op::Load { size, sext: false, offset, flags };
    let mut at = func.at_end(entry);
    let data = at.value(load(Size::W, context_field), [ctx], Type::Ptr(Prov::Packet));
    let end = at.value(load(Size::W, 80), [ctx], Type::Ptr(Prov::PacketEnd));
    let one = at.iconst(1);
    let add = Op::Alu { op: AluOp::Add, width: Width::W64 };
    let beyond = at.value(add.clone(), [data, one], Type::Ptr(Prov::Packet));
    let branch = Op::Branch { cond: Cond::Le, width: Width::W64 };
    at.effect(branch, [beyond, end], [BlockCall::new(whole), BlockCall::new(short)]);
    let mut at = func.at_end(whole);
    let byte = at.value(load(Size::B, 0), [data], Type::I8);
    let (nine, minus) = (at.iconst(9), at.iconst(-1));
    at.effect(Op::Store { size: Size::B, offset: 0, flags }, [data, nine], []);
    let verdict = at.value(add, [byte, minus], Type::I64);
    at.effect(Op::Return {}, [verdict], []);
    let mut at = func.at_end(short);
    let two = at.iconst(2);
    at.effect(Op::Return {}, [two], []);
    let mut module = Module::default();
    module.funcs.push(func);
    BpfElementProgram { module, program: Func::from_u32(0), contents: Vec::new() }
}

const CONF: &str =
    "FromDump(a) -> b :: BPF(x.o, classify) -> ToDump(0); b[1] -> ToDump(1); b[2] -> ToDump(2)";

#[test]
fn verdicts_of_tc_choose_outputs() {
    let graph = flatten(&parse(CONF).expect("parsed"), &[]).expect("flattened");
    let read = |file: &str, name: Option<&str>| {
        assert_eq!((file, name), ("x.o", Some("classify")));
        Ok(program(76))
    };
    let program = compile_with(&graph, &read).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &NativeOptions::default())
            .expect("compiled");
    // OK, SHOT, PIPE, REDIRECT, UNSPEC, one that is none, and an empty packet.
    let frames: Vec<Vec<u8>> =
        vec![vec![1, 1], vec![3], vec![4, 4], vec![8, 8], vec![0, 5], vec![40], Vec::new()];
    let feeds = [SourceFrames { frames: &frames, count: frames.len() as u64 }];
    let mut sent = Vec::new();
    run_graph(&mut engine, &feeds, 3, 4, |p| {
        sent.push((p.output, p.bytes.to_vec()));
        Ok(())
    })
    .expect("memory");
    assert_eq!(sent, [(0, vec![9, 1]), (0, vec![9, 4]), (2, vec![9, 8]), (0, vec![9, 5])]);
}

/// A TC program that traces the packet's first byte.
fn tracing() -> BpfElementProgram {
    let mut func = Function::new("classify", Linkage::Program { prog_type: SCHED_CLS });
    let entry = func.add_block();
    let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let mut at = func.at_end(entry);
    let load = Op::Load { size: Size::W, sext: false, offset: 76, flags: MemFlags::default() };
    let data = at.value(load, [ctx], Type::Ptr(Prov::Packet));
    let one = at.iconst(1);
    at.value(Op::Helper { id: id::TRACE_PRINTK }, [data, one], Type::I64);
    let ok = at.iconst(0);
    at.effect(Op::Return {}, [ok], []);
    let mut module = Module::default();
    module.funcs.push(func);
    BpfElementProgram { module, program: Func::from_u32(0), contents: Vec::new() }
}

#[test]
fn what_elements_put_into_rings_and_traces_is_counted_and_not_kept() {
    let graph = flatten(&parse(CONF).expect("parsed"), &[]).expect("flattened");
    let program = compile_with(&graph, &|_, _| Ok(tracing())).unwrap_or_else(|e| panic!("{e:?}"));
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &NativeOptions::default())
            .expect("compiled");
    let frames = [vec![65, 1]];
    let feeds = [SourceFrames { frames: &frames, count: 10 }];
    let ran = run_graph(&mut engine, &feeds, 3, 4, |_| Ok(())).expect("memory");
    assert_eq!((ran.sent[0], ran.events), (10, 10));
    assert_eq!(engine.take_events(), [], "they would pile up");
}

#[test]
fn what_packets_here_do_not_have_is_refused() {
    let graph = flatten(&parse(CONF).expect("parsed"), &[]).expect("flattened");
    // `priority` of `struct __sk_buff`.
    let errors = compile_with(&graph, &|_, _| Ok(program(32))).expect_err("no such field");
    let message = "program `classify` of `x.o` cannot be an element: it reads byte 32 of its context, \
        which packets here do not have";
    assert_eq!(errors.iter().map(|e| e.message.as_str()).collect::<Vec<_>>(), [message]);
}
