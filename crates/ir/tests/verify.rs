//! The verifier finds errors, names their places, and reports none in valid modules.

use millstream_ir::text::parse_module;
use millstream_ir::verify::{unreachable_blocks, verify_module};
use millstream_ir::{Block, BlockCall, Func, Inst, Module, Op, Type, Value};

fn module(body: &str) -> Module {
    let text = format!(
        "map map0 \"m\" kind=1 key=6 value=8 entries=4 flags=0\n\
         table table0 \"t\" {{\n  field \"a\" 128 exact\n}}\n\
         fn0 \"f\" program(6) returns {{\n  ss0 size=8 align=8\nblock0(v0: ptr(ctx)):\n{body}\n}}\n\
         fn1 \"g\" static returns {{\nblock0(v0: i64, v1: i64):\n  return v0\n}}\n"
    );
    parse_module(&text).unwrap()
}

fn errors(module: &Module) -> Vec<String> {
    verify_module(module).iter().map(ToString::to_string).collect()
}

#[track_caller]
fn check(body: &str, expect: &[&str]) {
    assert_eq!(errors(&module(body)), expect);
}

#[test]
fn a_valid_function_has_no_errors() {
    check(
        "v1: i64 = const.5
         v2: ptr(value?:map0) = map_lookup.map0.[w@0+h@4] v1, v1
         v3: i64 = table_match.table0 v1, v1
         v4: i64 = call.fn1 v1, v3
         br.eq.w64 v2, v1, block2, block1(v4)
        block1(v5: i64):
         v6: i64 = alu.add.w64 v5, v1
         br.ult.w64 v6, v3, block1(v6), block2
        block2:
         return v1",
        &[],
    );
}

#[test]
fn blocks_end_with_their_only_terminator() {
    check(
        "jump block1\nreturn v0\nblock1:\nv1: i64 = const.1",
        &[
            "f: block0: `jump block1`: a terminator before the end of the block",
            "f: block1: `v1: i64 = const.1`: the block does not end with a terminator",
        ],
    );
}

#[test]
fn targets_take_their_parameters() {
    check(
        "jump block1(v0, v0)\nblock1(v1: any):\nreturn v1",
        &["f: block0: `jump block1(v0, v0)`: block1 has 1 parameters, but is given 2"],
    );
    check(
        "br.eq.w64 v0, v0, block1\nblock1:\nreturn v0",
        &["f: block0: `br.eq.w64 v0, v0, block1`: expected 2 targets, found 1"],
    );
    check("jump block0(v0)", &["f: block0: it branches to the entry"]);
}

#[test]
fn definitions_dominate_uses() {
    check(
        "v1: i64 = alu.add.w64 v2, v0\nv2: i64 = const.1\nreturn v1",
        &["f: block0: `v1: i64 = alu.add.w64 v2, v0`: v2 is used before its definition"],
    );
    check(
        "br.eq.w64 v0, v0, block1, block2\nblock1:\nv1: i64 = const.1\njump block2\nblock2:\nreturn v1",
        &["f: block2: `return v1`: v1 of block1 does not dominate its use"],
    );
}

#[test]
fn unreachable_blocks_are_tolerated_and_listed() {
    let module = module("return v0\nblock3:\nreturn v1\nblock4:\nv1: i64 = const.1\njump block3");
    assert_eq!(errors(&module), [""; 0]);
    assert_eq!(unreachable_blocks(&module.funcs[Func::from_u32(0)]), [3, 4].map(Block::from_u32));
}

#[test]
fn operations_are_held_against_their_declarations() {
    for (inst, expect) in [
        ("v1: i64 = alu.add.w64 v0", "expected 2 arguments, found 1"),
        ("v1: i64 = map_lookup.map0.[w@0] v0, v0", "expected 1 arguments, found 2"),
        ("v1: i64 = map_lookup.map0.[w@0+w@4] v0, v0", "the key has 6 bytes, its pieces end at 8"),
        ("v1: i64 = map_lookup.map0.[w@0+h@2] v0, v0", "pieces of the key overlap or descend at byte 2"),
        ("v1: i64 = map_delete.map7.[w@0] v0", "map7 does not exist"),
        ("v1: i64 = helper.1 v0, v0, v0, v0, v0, v0", "expected 0 to 5 arguments, found 6"),
        ("v1: i64 = call.fn1 v0", "expected 2 arguments, found 1"),
        ("v1: i64 = call.fn0 v0", "fn0 is a program"),
        ("v1: i64 = table_match.table0 v0", "expected 2 arguments, found 1"),
        ("v1: i64 = stack_addr.ss4.0", "ss4 does not exist"),
        ("v1: i64 = sext.9.w64 v0", "expected 8, 16 or 32 bits"),
        ("v1: i8 = const.256", "its result cannot have type I8: the constant is wider"),
        ("v1: i32 = const.-1", "its result cannot have type I32: the constant is wider"),
        ("v1: i8 = load.h.u.0.plain v0", "its result cannot have type I8: the loaded value is wider"),
        ("v1: i64 = select v0, v0, v0", "v0 has type Ptr(Ctx), expected a truth value"),
        ("v1: ptr(packet) = zext v0", "its result cannot have type Ptr(Packet): the high half is cut off"),
    ] {
        check(&format!("{inst}\nreturn v0"), &[&format!("f: block0: `{inst}`: {expect}")]);
    }
}

#[test]
fn broken_references_are_reported_not_followed() {
    let mut module = module("return v0");
    let func = &mut module.funcs[Func::from_u32(0)];
    let block = func.entry();
    func.blocks[block].insts.insert(0, Inst::from_u32(77));
    assert_eq!(errors(&module), ["f: block0: inst77 does not exist"]);

    let func = &mut module.funcs[Func::from_u32(0)];
    func.blocks[block].insts[0] =
        func.make_inst(Op::Jump {}, [], [BlockCall::new(Block::from_u32(9))], Type::Any);
    assert_eq!(errors(&module), ["f: block0: its target block9 is not in the layout"]);

    let func = &mut module.funcs[Func::from_u32(0)];
    func.blocks[block].insts[0] = func.make_inst(Op::Zext {}, [Value::from_u32(99)], [], Type::I64);
    assert_eq!(errors(&module), ["f: block0: `v1: i64 = zext v99`: v99 does not exist"]);
}

#[test]
fn entries_of_tables_fit_their_fields() {
    let text = |entry: &str| {
        format!("table table0 \"t\" {{\nfield \"p\" 9 prefix\nfield \"r\" 68 range\nentry {entry}\n}}")
    };
    for (entry, expect) in [
        ("1/10, 0_1..0_2", &["table0: entry 0: field \"p\": a prefix of 10 bits in a field of 9"][..]),
        ("512/9, 0_1..0_2", &["table0: entry 0: field \"p\": a value wider than 9 bits"]),
        ("1/9, 0_3..0_2", &["table0: entry 0: field \"r\": the range is empty"]),
        ("1/9, 3..4", &["table0: entry 0: field \"r\": 1 words instead of 2"]),
        ("1/9, 0_1..0_2 gives 7\nentry 1/9, 0_1..0_2", &["table0: 1 results of 2 entries"]),
        ("1/9, 0_1..0_2 gives 1073741824", &["table0: result 1073741824 is not below 2^30"]),
        ("1/9, 0_1..0_2", &[]),
    ] {
        assert_eq!(errors(&parse_module(&text(entry)).unwrap()), expect, "{entry}");
    }
}
