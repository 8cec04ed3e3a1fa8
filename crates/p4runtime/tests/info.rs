//! P4Info of programs of our own, as text; and programs that have none.

use millstream_p4::{CompileOptions, CompiledProgram, SourceLoader, compile};
use millstream_p4runtime::proto::config::v1::{P4Info, match_field};
use millstream_p4runtime::{InfoError, MessageFormat, decode_message, describe_program, encode_message};

/// One program.
struct TextLoader<'t>(&'t str);

impl SourceLoader for TextLoader<'_> {
    fn load(&mut self, path: &str) -> Option<String> {
        (path == "program.p4").then(|| self.0.to_owned())
    }
}

fn compiled(text: &str) -> CompiledProgram {
    compile("program.p4", &mut TextLoader(text), &CompileOptions::default())
}

fn info(text: &str) -> P4Info {
    let program = compiled(text);
    let errors: Vec<String> =
        program.diagnostics.iter().map(|d| d.render(&program.sources).to_string()).collect();
    describe_program(&program)
        .map(|description| description.info)
        .unwrap_or_else(|error| panic!("{error}: {}", errors.join("\n")))
}

fn printed(info: &P4Info) -> String {
    String::from_utf8(encode_message(info, MessageFormat::Text).unwrap()).unwrap()
}

/// A v1model program around the parts of a control.
fn switch(declarations: &str, locals: &str, apply: &str) -> String {
    format!(
        "#include <v1model.p4>
        header h_t {{ bit<8> a; bit<16> b; }}
        struct H {{ h_t h; }} struct M {{ bit<8> m; }}
        {declarations}
        parser P(packet_in b, out H h, inout M m, inout standard_metadata_t s) {{
            state start {{ transition accept; }}
        }}
        control I(inout H h, inout M m, inout standard_metadata_t s) {{ {locals} apply {{ {apply} }} }}
        control E(inout H h, inout M m, inout standard_metadata_t s) {{ apply {{}} }}
        control V(inout H h, inout M m) {{ apply {{}} }}
        control D(packet_out b, in H h) {{ apply {{}} }}
        V1Switch(P(), V(), I(), E(), V(), D()) main;"
    )
}

#[test]
fn tables_actions_and_packet_headers() {
    insta::assert_snapshot!(printed(&info(include_str!("programs/router.p4"))));
}

#[test]
fn counters_meters_registers_profiles_digests_and_value_sets() {
    insta::assert_snapshot!(printed(&info(include_str!("programs/objects.p4"))));
}

#[test]
fn objects_of_the_portable_switch() {
    insta::assert_snapshot!(printed(&info(include_str!("programs/portable.p4"))));
}

#[test]
fn entries_of_all_match_kinds_and_priorities() {
    let locals = "
        action f(bit<12> x) {}
        table fixed {
            key = {
                h.h.b : lpm; h.h.a : ternary; m.m : range; h.h.isValid() : exact; s.egress_spec : optional;
            }
            actions = { f; NoAction; }
            const entries = {
                (0x1234 &&& 0xff00, 1 &&& 3, 2 .. 5, true, 7) : f(0xabc);
                (_, _, 0 .. 255, false, _) : NoAction();
                (1, 2, 3, true, 0x1ff) : f(1);
            }
        }
        table down {
            key = { h.h.a : ternary; }
            actions = { f; }
            entries = { 1 : f(1); const 2 : f(2); _ : f(3); }
        }
        table up {
            key = { h.h.a : ternary; }
            actions = { f; }
            largest_priority_wins = false;
            priority_delta = 10;
            entries = { priority = 5: 1 : f(1); 2 : f(2); priority = 7: 3 : f(3); }
        }";
    let program = compiled(&switch("", locals, "fixed.apply(); down.apply(); up.apply();"));
    let entries = describe_program(&program).unwrap().entries;
    let text = encode_message(&entries, MessageFormat::Text).unwrap();
    insta::assert_snapshot!(String::from_utf8(text).unwrap());
}

#[test]
fn all_formats_keep_the_message() {
    for program in [include_str!("programs/router.p4"), include_str!("programs/objects.p4")] {
        let info = info(program);
        for format in [MessageFormat::Text, MessageFormat::Json, MessageFormat::Binary] {
            let bytes = encode_message(&info, format).unwrap();
            assert_eq!(decode_message::<P4Info>(&bytes, format).unwrap(), info, "{format:?}");
        }
    }
}

#[test]
fn broken_messages_are_refused() {
    for (bytes, format) in [
        (&b"tables {"[..], MessageFormat::Text),
        (b"\xff", MessageFormat::Text),
        (b"{\"tables\": 3}", MessageFormat::Json),
        (b"{} {}", MessageFormat::Json),
        (b"\x12\xff", MessageFormat::Binary),
    ] {
        assert!(decode_message::<P4Info>(bytes, format).is_err(), "{bytes:?}");
    }
}

#[test]
fn the_end_of_a_path_chooses_the_format() {
    for (path, format) in [
        ("a.p4info.txtpb", MessageFormat::Text),
        ("a.txt", MessageFormat::Text),
        ("a.json", MessageFormat::Json),
        ("a.bin", MessageFormat::Binary),
        ("a", MessageFormat::Binary),
    ] {
        assert_eq!(MessageFormat::of_path(path), format, "{path}");
    }
}

#[test]
fn a_table_without_a_default_action_has_no_action() {
    let info = info(&switch("", "action f() {} table t { actions = { f; } }", "t.apply();"));
    let table = &info.tables[0];
    // Ids of `NoAction` and `I.f`: 0x01 and the low 24 bits of their one-at-a-time hashes.
    assert_eq!(table.initial_default_action.as_ref().unwrap().action_id, 0x0144_5b37);
    assert_eq!(table.action_refs.len(), 2);
    assert_eq!(table.size, 1024);
    assert!(table.match_fields.is_empty());
}

#[test]
fn a_control_plane_name_in_two_tables_is_refused() {
    let locals =
        "action f() {} @name(\"x\") table t { actions = { f; } } @name(\"x\") table u { actions = { f; } }";
    let program = compiled(&switch("", locals, "t.apply(); u.apply();"));
    assert!(matches!(describe_program(&program), Err(InfoError::DuplicateName { name }) if name == "I.x"));
}

#[test]
fn ids_of_annotations_are_checked() {
    for locals in [
        "action f() {} @id(0x01000001) table t { actions = { f; } } table u { actions = { f; } }",
        "action f() {} @id(1) table t { actions = { f; } } @id(1) table u { actions = { f; } }",
        "action f(@id(1) bit<8> a, @id(1) bit<8> b) {} table t { actions = { f; } }
            table u { actions = { f; } }",
        "action f() {} table t { key = { h.h.a : exact @id(0); } actions = { f; } }
            table u { actions = { f; } }",
        "action f() {} @id(\"1\") table t { actions = { f; } } table u { actions = { f; } }",
    ] {
        let program = compiled(&switch("", locals, "t.apply(); u.apply();"));
        assert!(program.is_accepted(), "{locals}");
        assert!(describe_program(&program).is_err(), "{locals}");
    }
}

#[test]
fn what_p4info_cannot_describe_is_refused_with_its_place() {
    for (declarations, locals, reason) in [
        (
            "enum E1 { A }",
            "E1 e = E1.A; action f() {} table t { key = { e : exact; } actions = { f; } }",
            "key",
        ),
        (
            "",
            "action f() {} table t { actions = { f; } counters = direct_counter(CounterType.bytes); }",
            "@name",
        ),
        (
            "",
            "action f(error x) {} table t { actions = { f; } default_action = f(error.NoError); }",
            "default",
        ),
    ] {
        let error = describe_program(&compiled(&switch(declarations, locals, "t.apply();")));
        let error = error.expect_err(locals).to_string();
        assert!(error.starts_with("program.p4:") && error.contains(reason), "{error}");
    }
}

#[test]
fn a_program_with_errors_has_no_p4info() {
    assert!(matches!(describe_program(&compiled("const bit<8> x = y;")), Err(InfoError::BrokenProgram)));
}

#[test]
fn a_program_without_main_has_no_package() {
    let info = info("#include <v1model.p4>\nconst bit<8> x = 1;");
    assert_eq!(info, P4Info::default());
}

#[test]
fn tables_of_filters_have_the_sizes_of_their_maps() {
    let program = "#include <ebpf_model.p4>
        header h_t { bit<8> a; } struct H { h_t h; }
        parser P(packet_in p, out H h) { state start { p.extract(h.h); transition accept; } }
        control F(inout H h, out bool pass) {
            CounterArray(10, true) seen;
            action f() { seen.increment(1); }
            table t { key = { h.h.a : exact; } actions = { f; } implementation = hash_table(1 << 6); }
            apply { pass = t.apply().hit; }
        }
        ebpfFilter(P(), F()) main;";
    let info = info(program);
    assert_eq!(info.pkg_info.as_ref().unwrap().arch, "ebpf");
    assert_eq!(info.tables[0].size, 64);
    assert!(info.counters.is_empty());
}

#[test]
fn errors_in_entries_are_their_names() {
    let locals = "action f() {} table t {
        key = { s.parser_error : exact; }
        actions = { f; }
        const entries = { error.PacketTooShort : f(); }
    }";
    let description = describe_program(&compiled(&switch("", locals, "t.apply();"))).unwrap();
    let text = encode_message(&description.entries, MessageFormat::Text).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("value: \"PacketTooShort\""));
}

#[test]
fn match_kinds_of_an_architecture_keep_their_names() {
    let locals = "action f() {} table t { key = { h.h.a : mine; } actions = { f; } }";
    let info = info(&switch("match_kind { mine }", locals, "t.apply();"));
    let expected = match_field::Match::OtherMatchType("mine".into());
    assert_eq!(info.tables[0].match_fields[0].r#match, Some(expected));
}

#[test]
fn instances_that_multiply_are_bounded() {
    let mut declarations = String::from("control C0(inout M m) { apply { m.m = m.m + 1; } }\n");
    for level in 1..40 {
        let below = level - 1;
        declarations.push_str(&format!(
            "control C{level}(inout M m) {{
                C{below}() a; C{below}() b; apply {{ a.apply(m); b.apply(m); }}
            }}\n"
        ));
    }
    let program = compiled(&switch(&declarations, "C39() c;", "c.apply(m);"));
    assert!(matches!(describe_program(&program), Err(InfoError::TooLarge { .. })));
}
