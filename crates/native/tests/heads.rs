//! `bpf_xdp_adjust_head` as code: the kernel's limits, with metadata in front of the packet and without.

use millstream_ir::{AluOp, Function, Linkage, MemFlags, Module, Op, Prov, Size, Type, Width};
use millstream_isa::helpers::id;
use millstream_native::{LayoutPolicy, NativeEngine, NativeOptions, PacketBatch};

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// `XDP_PACKET_HEADROOM` and `sizeof(struct xdp_frame)`.
const HEADROOM: i64 = 256;
const KEPT: i64 = 40;
const ETH_HLEN: i64 = 14;
const LENGTH: i64 = 100;

/// A program that makes room for this many bytes of metadata and then moves the head by the number at the
/// beginning of the packet: the verdict has the helper's result in the upper bits, and in the low byte the
/// length of the metadata afterwards.
fn engine(metadata: i64, descriptors: LayoutPolicy) -> NativeEngine {
    let mut module = Module::default();
    let mut func = Function::new("head", Linkage::Program { prog_type: XDP });
    let block = func.add_block();
    let ctx = func.add_param(block, Type::Ptr(Prov::Ctx));
    let flags = MemFlags::default();
    let load = |sext, offset| Op::Load { size: Size::W, sext, offset, flags };
    let mut at = func.at_end(block);
    let packet = at.value(load(false, 0), [ctx], Type::Ptr(Prov::Packet));
    let delta = at.value(load(true, 0), [packet], Type::I64);
    if metadata > 0 {
        let less = at.iconst(-metadata);
        at.value(Op::Helper { id: id::XDP_ADJUST_META }, [ctx, less], Type::I64);
    }
    let answer = at.value(Op::Helper { id: id::XDP_ADJUST_HEAD }, [ctx, delta], Type::I64);
    let data = at.value(load(false, 0), [ctx], Type::Ptr(Prov::Packet));
    let meta = at.value(load(false, 8), [ctx], Type::Ptr(Prov::PacketMeta));
    let alu = |op| Op::Alu { op, width: Width::W64 };
    let length = at.value(alu(AluOp::Sub), [data, meta], Type::I64);
    let eight = at.iconst(8);
    let high = at.value(alu(AluOp::Lsh), [answer, eight], Type::I64);
    let verdict = at.value(alu(AluOp::Add), [high, length], Type::I64);
    at.effect(Op::Return {}, [verdict], []);
    let func = module.funcs.push(func);
    NativeEngine::of_module(module, func, &NativeOptions { descriptors, ..NativeOptions::default() })
        .expect("compiled")
}

#[test]
fn heads_move_within_the_kernels_limits() {
    let all =
        [LayoutPolicy::Packed, LayoutPolicy::Whole, LayoutPolicy::Shuffled(1), LayoutPolicy::Shuffled(2)];
    for (metadata, descriptors) in [0, 8].into_iter().flat_map(|metadata| all.map(|all| (metadata, all))) {
        let mut engine = engine(metadata, descriptors);
        let mut batch = PacketBatch::new(1).expect("memory");
        let edges = [-HEADROOM, KEPT - HEADROOM, KEPT + metadata - HEADROOM, 0, LENGTH - ETH_HLEN];
        let far = [i64::from(i32::MIN), i64::from(i32::MAX)];
        for delta in edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]).chain(far) {
            let frame: Vec<u8> = (0..LENGTH).map(|at| at as u8).collect();
            let frame = [&(delta as i32).to_le_bytes()[..], &frame[4..]].concat();
            batch.clear();
            assert!(batch.push(&frame, 1));
            engine.run(&mut batch);
            let fits = HEADROOM + delta >= KEPT + metadata && delta + ETH_HLEN <= LENGTH;
            let answer = if fits { 0 } else { -i64::from(libc::EINVAL) };
            let expected = (answer << 8) + metadata;
            assert_eq!(batch.verdict(0), expected as u32, "metadata {metadata}, delta {delta}");
            let moved = if fits { delta } else { 0 };
            assert_eq!(batch.bytes(0).len() as i64, LENGTH - moved, "metadata {metadata}, delta {delta}");
            let from = moved.max(0) as usize;
            assert!(batch.bytes(0).ends_with(&frame[from..]), "the bytes stay");
        }
    }
}
