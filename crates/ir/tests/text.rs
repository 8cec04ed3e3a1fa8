//! The text form: printed text reads back unchanged, and errors name the place and the cause.

use millstream_ir::text::{PrintOptions, parse_module, print_module};

const SAMPLE: &str = r#"module "sample \"one\""
map map0 "routes" kind=11 key=8 value=4 entries=2592 flags=1
map map1 ".rodata" kind=2 key=4 value=64 entries=1 flags=0 global=rodata
map map2 "outer" kind=12 key=4 value=4 entries=8 flags=0 inner=map0
extern extern0 "bpf_rcu_read_lock" kfunc weak
core core0 12
table table0 "acl" {
  field "src" 128 prefix
  field "port" 16 range
  field "proto" 8 exact
  field "flags" 8 ternary
  entry 0x2001_0x1/64, 0x50..0x1bb, 0x6, 0x2&0x3f gives 3
}
fn0 "xdp_router" program(6) returns {
  ss0 size=512 align=8 fixed=-512
  ss1 size=4 align=4
  locs 7 9
block0(v0: ptr(ctx)):
  v1: ptr(packet) = load.w.u.0.plain v0 !0
  v2: ptr(packet_end) = load.w.u.4.volatile+core0 v0 !1
  v7: i64 = const.-14
  v3: i64 = alu.add.w64 v1, v7
  br.ugt.w64 v3, v2, block4, block2(v1)
block2(v9: ptr(packet)):
  v10: ptr(value?:map0) = map_lookup.map0.[w@0+w@4] v7, v3
  v11: i64 = map_update.map0.[w@0+w@4].[] v7, v3, v7
  v12: any = helper.5
  store.dw.-8.plain v9, v12
  jump block4
block4:
  v13: i32 = verdict.pass
  return v13
}
fn1 "callee" static {
block0(v0: any, v1: i8):
  unreachable
}
"#;

#[test]
fn sample_prints_as_it_was_written() {
    let module = parse_module(SAMPLE).unwrap();
    assert_eq!(print_module(&module, PrintOptions { locs: true }), SAMPLE);
}

#[test]
fn line_records_are_left_out_unless_asked_for() {
    let module = parse_module(SAMPLE).unwrap();
    let text = module.to_string();
    assert!(!text.contains('!') && !text.contains("locs"));
    assert_eq!(parse_module(&text).unwrap().to_string(), text);
}

#[test]
fn comments_and_space_do_not_matter() {
    let module =
        parse_module("; c\n\nmodule \"a;b\" ; d\n  fn0   \"f\"  static {\nblock0 : ; e\n return\n}").unwrap();
    assert_eq!(module.to_string(), "module \"a;b\"\nfn0 \"f\" static {\nblock0:\n  return\n}\n");
}

#[track_caller]
fn check_error(text: &str, expect: &str) {
    assert_eq!(parse_module(text).unwrap_err().to_string(), expect);
}

#[test]
fn errors_are_located() {
    check_error("mop \"x\"", "1:1: expected module, map, extern, core, table or fn, found `mop`");
    check_error("\nmap map1 \"x\"", "2:5: expected map0, found map1");
    check_error("map map0 \"x\" kind=q", "1:19: expected a number, found `q`");
    check_error("module \"x", "1:8: the name has no closing quote");
    let body = |line: &str| format!("fn0 \"f\" static {{\nblock0(v0: i64):\n  {line}\n}}");
    check_error(&body("v0: i64 = const.1"), "3:3: v0 is defined twice");
    check_error(&body("return v4"), "3:10: v4 is not defined");
    check_error(&body("jump block7(v0)"), "3:8: block7 is not defined");
    check_error(&body("v1: i64 = const"), "3:13: `const` lacks its attribute `value`");
    check_error(&body("v1: i64 = frob.w64 v0"), "3:13: unknown operation `frob`");
    check_error(&body("const.4"), "3:3: expected `vN: type =` before `const`");
    check_error(&body("v1: i64 = return v0"), "3:13: `return` has no result");
    check_error(&body("v1: i65 = const.4"), "3:7: `i65` is no type");
    check_error(&body("return v0 v0"), "3:13: expected the end of the line, found `v0`");
    check_error(&body("v99999999: i64 = const.4"), "3:3: v99999999 is above the limit of v1048576");
    check_error("fn0 \"f\" static {\n", "1:1: the text ends before the function's closing brace");
}
