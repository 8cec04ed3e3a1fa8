//! Encoded instructions decode to the same, and disassembled ones assemble to the same.

use millstream_isa::asm::assemble;
use millstream_isa::*;
use proptest::prelude::*;

fn reg() -> impl Strategy<Value = Reg> {
    (0u8..=10).prop_map(|n| Reg::new(n).unwrap())
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::W32), Just(Width::W64)]
}

fn size() -> impl Strategy<Value = Size> {
    proptest::sample::select(&Size::ALL[..])
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![reg().prop_map(Operand::Reg), any::<i32>().prop_map(Operand::Imm)]
}

fn pseudo() -> impl Strategy<Value = Pseudo> {
    use Pseudo::*;
    proptest::sample::select(&[None, MapFd, MapValue, BtfId, Func, MapIdx, MapIdxValue][..])
}

fn callee() -> impl Strategy<Value = Callee> {
    prop_oneof![
        (-2i32..300).prop_map(Callee::Helper),
        any::<i32>().prop_map(Callee::Local),
        (any::<i32>(), any::<i16>()).prop_map(|(btf_id, fd_idx)| Callee::Kfunc { btf_id, fd_idx }),
        reg().prop_map(Callee::Register),
    ]
}

fn arithmetic() -> impl Strategy<Value = Insn> {
    let op = proptest::sample::select(&AluOp::ALL[..]);
    let swap = prop_oneof![Just(SwapKind::ToLe), Just(SwapKind::ToBe), Just(SwapKind::Swap)];
    prop_oneof![
        (width(), op, reg(), operand()).prop_map(|(width, op, dst, src)| Insn::Alu { width, op, dst, src }),
        (width(), reg(), operand()).prop_map(|(width, dst, src)| Insn::Mov { width, dst, src }),
        (0usize..5, reg(), reg()).prop_map(|(kind, dst, src)| {
            let (width, bits) =
                [(Width::W32, 8), (Width::W32, 16), (Width::W64, 8), (Width::W64, 16), (Width::W64, 32)]
                    [kind];
            Insn::MovSx { width, bits, dst, src }
        }),
        (reg(), reg(), any::<i32>()).prop_map(|(dst, src, imm)| Insn::AddrSpaceCast { dst, src, imm }),
        (width(), reg()).prop_map(|(width, dst)| Insn::Neg { width, dst }),
        (swap, 0u32..3, reg()).prop_map(|(kind, log, dst)| Insn::Swap { kind, bits: 16 << log, dst }),
        (reg(), pseudo(), any::<u64>(), any::<i16>()).prop_map(|(dst, pseudo, imm, off)| Insn::LoadImm64 {
            dst,
            pseudo,
            imm,
            off
        }),
        (reg(), pseudo(), any::<u32>()).prop_map(|(dst, pseudo, imm)| Insn::LoadImm64 {
            dst,
            pseudo,
            imm: u64::from(imm),
            off: 0
        }),
    ]
}

fn memory() -> impl Strategy<Value = Insn> {
    let op = proptest::sample::select(&AtomicOp::ALL[..]);
    let access = || (size(), reg(), reg(), any::<i16>());
    prop_oneof![
        (access(), any::<bool>()).prop_map(|((size, dst, src, off), sext)| Insn::Load {
            size,
            sext: sext && size != Size::Dw,
            dst,
            src,
            off
        }),
        (size(), reg(), any::<i16>(), operand()).prop_map(|(size, dst, off, src)| Insn::Store {
            size,
            dst,
            off,
            src
        }),
        (op, any::<bool>(), any::<bool>(), access()).prop_map(|(op, fetch, wide, (_, dst, src, off))| {
            let fetch = fetch || op.symbol().is_none();
            Insn::Atomic { op, fetch, size: if wide { Size::Dw } else { Size::W }, dst, src, off }
        }),
        access().prop_map(|(size, dst, src, off)| Insn::LoadAcquire { size, dst, src, off }),
        access().prop_map(|(size, dst, src, off)| Insn::StoreRelease { size, dst, src, off }),
        (0usize..3, prop_oneof![Just(LegacyMode::Abs), reg().prop_map(LegacyMode::Ind)], any::<i32>())
            .prop_map(|(size, mode, imm)| Insn::LegacyLoad { size: Size::ALL[size], mode, imm }),
    ]
}

fn control() -> impl Strategy<Value = Insn> {
    let cond = proptest::sample::select(&Cond::ALL[..]);
    prop_oneof![
        any::<i16>().prop_map(|off| Insn::Jump { off: i32::from(off), long: false }),
        any::<i32>().prop_map(|off| Insn::Jump { off, long: true }),
        (width(), cond, reg(), operand(), any::<i16>())
            .prop_map(|(width, cond, dst, src, off)| Insn::Branch { width, cond, dst, src, off }),
        any::<i16>().prop_map(|off| Insn::MayGoto { off }),
        callee().prop_map(Insn::Call),
        Just(Insn::Exit),
    ]
}

fn insn() -> impl Strategy<Value = Insn> {
    prop_oneof![arithmetic(), memory(), control()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn decode_inverts_encode(x in insn()) {
        let slots = encode_all(&[x]);
        prop_assert_eq!(slots.len(), x.slots());
        prop_assert_eq!(decode(&slots, 0), Ok(x));
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_bytes()).collect();
        prop_assert_eq!(RawInsn::slice_from_bytes(&bytes), Some(slots));
    }

    #[test]
    fn assemble_inverts_disassemble(x in insn()) {
        let text = x.to_string();
        let back = assemble(&text);
        prop_assert_eq!(back, Ok(vec![x]), "{}", text);
    }

    #[test]
    fn decode_accepts_only_what_encode_gives(bytes in any::<[u8; 16]>()) {
        let slots = RawInsn::slice_from_bytes(&bytes).unwrap();
        if let Ok(x) = decode(&slots, 0) {
            prop_assert_eq!(encode_all(&[x]), &slots[..x.slots()]);
        }
    }

    #[test]
    fn assemble_never_panics(text in "[rw0-9a-f*()+<>=&#:;\\[\\] x-]{0,40}") {
        let _ = assemble(&text);
    }
}

#[test]
fn notation_is_the_kernels() {
    let lines = [
        "r1 = *(u32 *)(r2 +4)",
        "r1 = *(s8 *)(r2 -1)",
        "*(u64 *)(r10 -8) = r1",
        "*(u16 *)(r10 -8) = -1",
        "if w1 s> 0x5 goto pc+3",
        "if r1 != 0xffffffff goto pc-3",
        "if r1 & 0x1 goto pc+0",
        "r0 = atomic64_fetch_add((u64 *)(r1 +0), r0)",
        "r0 = atomic_cmpxchg((u32 *)(r1 +0), r0, r2)",
        "lock *(u64 *)(r1 +8) += r2",
        "r1 = load_acquire((u8 *)(r2 +0))",
        "store_release((u32 *)(r2 +0), r1)",
        "gotol pc-70000",
        "may_goto pc+2",
        "r1 = (s8)r2",
        "w1 = (s16)w2",
        "r1 s/= r2",
        "w1 s%= 7",
        "r1 s>>= 63",
        "r1 = be16 r1",
        "r1 = bswap64 r1",
        "w3 = -w3",
        "call bpf_map_lookup_elem#1",
        "call unknown#999",
        "call pc+7",
        "call kernel-function#1234",
        "callx r3",
        "r1 = 0x123456789",
        "r1 = map[fd:5]",
        "r1 = map[fd:5][0]+16",
        "r2 = subprog[+9]",
        "r0 = *(u16 *)skb[12]",
        "r0 = *(u8 *)skb[r7 + 14]",
        "exit",
    ];
    for line in lines {
        let insns = assemble(line).unwrap();
        assert_eq!(insns.len(), 1);
        assert_eq!(insns[0].to_string(), line);
    }
}

#[test]
fn labels_count_slots() {
    let insns =
        assemble("start: \n r1 = 5 ll\n if r1 == 5 goto out\n goto start\nout:\n call start\n exit").unwrap();
    let text: Vec<String> = insns.iter().map(Insn::to_string).collect();
    assert_eq!(text, ["r1 = 0x5", "if r1 == 0x5 goto pc+1", "goto pc-4", "call pc-5", "exit"]);
}

#[test]
fn errors_are_located() {
    let error = |text| assemble(text).unwrap_err().to_string();
    assert_eq!(error("exit\nr1 = r11"), "line 2: no instruction `r11`");
    assert_eq!(error("goto nowhere"), "line 1: no label `nowhere`");
    assert_eq!(error("a:\na:\nexit"), "line 2: label `a` is defined twice");
    assert_eq!(error("r1 += w2"), "line 1: operands of different widths");
    assert_eq!(error("exit exit"), "line 1: unexpected `exit`");
}

#[test]
fn a_dump_can_be_pasted() {
    let insns = assemble("   0: (b7) r0 = 0\n   1: (95) exit\n").unwrap();
    assert_eq!(insns.len(), 2);
    let dump = disasm::disasm_all(&decode_all(&encode_all(&insns)).unwrap(), &disasm::NoSymbols);
    assert_eq!(dump, "   0: (b7) r0 = 0\n   1: (95) exit\n");
}
