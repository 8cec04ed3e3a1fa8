//! Programs that are refused, with the construct's name; and programs that would run without end.

use millstream_p4_lower::{ActionChoice, EntryMatch, EntrySpec};
use millstream_p4_switch::SwitchError;

use crate::common::{lowered, switch};

/// A v1model program with declarations, statements of the ingress control, and states of the parser.
fn program(declarations: &str, locals: &str, statements: &str, states: &str) -> String {
    format!(
        "#include <v1model.p4>
{declarations}
header in_t {{ bit<8> a; bit<8> b; }}
struct headers {{ in_t i; in_t[2] more; }}
struct meta {{ bit<8> x; }}
parser P(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {{
    state start {{ p.extract(h.i); {states} }}
}}
control V(inout headers h, inout meta m) {{ apply {{ }} }}
control I(inout headers h, inout meta m, inout standard_metadata_t s) {{
    {locals}
    apply {{ s.egress_spec = 1; {statements} }}
}}
control E(inout headers h, inout meta m, inout standard_metadata_t s) {{ apply {{ }} }}
control D(packet_out p, in headers h) {{ apply {{ p.emit(h); }} }}
V1Switch(P(), V(), I(), E(), V(), D()) main;
"
    )
}

const ACCEPT: &str = "transition accept;";

#[test]
fn what_is_not_supported_is_refused_with_its_place() {
    let doubling: String =
        (1..30).map(|n| format!("action a{n}() {{ a{}(); a{}(); }}\n", n - 1, n - 1)).collect();
    let doubling = format!("action a0() {{ h.i.a = h.i.a + 1; }}\n{doubling}");
    let many = "bit<2048> v = 5; v = v * v;".to_owned() + &" v = v * v * v * v;".repeat(400);
    for (declarations, locals, statements, message) in [
        ("extern void other(in bit<8> x);", "", "other(h.i.a);", "the function `other` is not supported"),
        ("extern Thing { Thing(); void go(); }", "Thing() t;", "t.go();", "the extern `Thing`"),
        ("", "register<bit<512>>(1 << 30) r;", "r.write(0, 0);", "needs 68719476736 bytes"),
        ("", "register<bit<64>>(1 << 29) r;", "r.write(0, 0);", "needs 4294967296 bytes"),
        ("", "", "bit<128> w = (bit<128>)h.i.a; w = w / 3; h.i.a = (bit<8>)w;", "division"),
        ("", doubling.as_str(), "a29();", "more than 1000000 instructions"),
        ("", "", many.as_str(), "more than 1000000 instructions"),
        ("header h_t { bit<8> x; } struct big { h_t[200000] s; }", "", "big b;", "more than 1048576 bytes"),
        ("", "", "bit<8192> w = 1; w = w * w; h.i.a = w[7:0];", "a product of more than 4096 bits"),
        ("", "", "h.i.a = (bit<8>)h.i.b; resubmit({ h.i.a + 1 });", "only metadata of the packet"),
    ] {
        let text = program(declarations, locals, statements, ACCEPT);
        let error = lowered("test.p4", Some(text)).unwrap_err();
        assert!(error.contains(message), "{message}: {error}");
        assert!(error.starts_with("test.p4:"), "{error}");
    }
}

#[test]
fn numbers_of_field_lists_are_of_any_form_and_size() {
    let text = |annotations: &str, list: &str| {
        let statements = format!(
            "if (s.instance_type == 0) {{ m.x = 7; resubmit_preserving_field_list({list}); }} else {{ h.i.b = m.x; }}"
        );
        program("", "", &statements, ACCEPT)
            .replace("struct meta { bit<8> x; }", &format!("struct meta {{ {annotations} bit<8> x; }}"))
    };
    let greatest = "@field_list(18446744073709551615)";
    for (annotations, list, kept) in [
        ("@field_list(0x1)", "1", 7),
        ("@field_list(8w1)", "1", 7),
        (greatest, "1", 0),
        (greatest, "4294967295", 0),
    ] {
        let program = lowered("test.p4", Some(text(annotations, list))).unwrap();
        let sent = switch(&program).receive(0, &[1, 2]).unwrap();
        assert_eq!(sent[0].data, [1, kept], "{annotations} {list}");
    }
}

#[test]
fn a_meter_of_another_part_of_the_pipeline_is_refused() {
    let meter = "direct_meter<bit<2>>(MeterType.packets) dm;";
    let table =
        "action a() { dm.read(m.c); } table t { key = { h.i.a : exact; } actions = { a; } meters = dm; }";
    let text = program(meter, table, "t.apply();", ACCEPT)
        .replace("struct meta { bit<8> x; }", "struct meta { bit<8> x; bit<2> c; }")
        .replace(
            "control E(inout headers h, inout meta m, inout standard_metadata_t s) { apply { } }",
            "control E(inout headers h, inout meta m, inout standard_metadata_t s) { apply { dm.read(m.c); } }",
        );
    let error = lowered("test.p4", Some(text)).unwrap_err();
    assert!(error.starts_with("test.p4:"), "{error}");
}

#[test]
fn a_table_of_four_gibibytes_costs_what_its_entries_take() {
    let table = "action a() { h.i.b = 9; } \
                 table t { key = { h.i.a : exact; } actions = { a; } size = 268435456; }";
    let program = lowered("test.p4", Some(program("", table, "t.apply();", ACCEPT))).unwrap();
    let mut switch = switch(&program);
    let choice = ActionChoice { action: 0, arguments: Vec::new() };
    let matches = vec![EntryMatch::Exact(1u8.into())];
    switch.set_entry(0, &EntrySpec { matches, choice, priority: 0, group: None }).unwrap();
    assert_eq!(switch.receive(0, &[1, 2]).unwrap()[0].data, [1, 9]);
    assert_eq!(switch.receive(0, &[2, 2]).unwrap()[0].data, [2, 2]);
}

#[test]
fn chains_of_declarations_do_not_exhaust_the_stack() {
    let chain = |first: &str, link: fn(usize) -> String| {
        first.to_owned() + &(1..20_000).map(link).collect::<String>()
    };
    let structs = chain("struct s0 { bit<8> x; }\n", |n| format!("struct s{n} {{ s{} x; }}\n", n - 1));
    let aliases = chain("typedef bit<8> s0;\n", |n| format!("typedef s{} s{n};\n", n - 1));
    let types = chain("type bit<8> s0;\n", |n| format!("type s{} s{n};\n", n - 1));
    for declarations in [structs, aliases, types] {
        let text = program(&declarations, "", "s19999 y;", ACCEPT);
        let error = lowered("test.p4", Some(text)).unwrap_err();
        assert!(error.contains("nested more than 128 deep"), "{error}");
    }
    let constants =
        chain("const tuple<bit<8>> s0 = { 1 };\n", |n| format!("const tuple<bit<8>> s{n} = s{};\n", n - 1));
    let text = program(&constants, "", "tuple<bit<8>> y = s19999;", ACCEPT);
    assert!(lowered("test.p4", Some(text)).unwrap_err().contains("nested more than 128 deep"));
}

#[test]
fn a_parser_without_end_stops_with_a_timeout() {
    let statements = "if (s.parser_error == error.ParserTimeout) { h.i.a = 0xdd; }";
    let states = "transition again; } state again { transition select(h.i.b) { 0: accept; default: again; }";
    let program = lowered("test.p4", Some(program("", "", statements, states))).unwrap();
    let mut switch = switch(&program);
    assert_eq!(switch.receive(0, &[1, 0]).unwrap()[0].data, [1, 0]);
    assert_eq!(switch.receive(0, &[1, 2]).unwrap()[0].data, [0xdd, 2]);
}

#[test]
fn endless_loops_and_endless_circulation_are_errors_of_the_packet() {
    let statements = "if (h.i.a == 1) { for (bit<8> n = 0; n < 5; n = n + 0) { h.i.b = n; } }
        if (h.i.a == 2) { resubmit_preserving_field_list(0); }";
    let program = lowered("test.p4", Some(program("", "", statements, ACCEPT))).unwrap();
    let mut switch = switch(&program);
    assert!(matches!(switch.receive(0, &[1, 0]), Err(SwitchError::Executor(_))));
    assert_eq!(switch.receive(0, &[2, 0]), Err(SwitchError::Endless));
    assert_eq!(switch.receive(0, &[3, 0]).unwrap()[0].data, [3, 0]);
}
