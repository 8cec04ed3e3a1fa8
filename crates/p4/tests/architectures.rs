//! Architecture files that come with the crate.

mod common;

use millstream_p4::{NominalKind, architecture_file};

const FILES: [&str; 11] = [
    "core.p4",
    "v1model.p4",
    "ebpf_model.p4",
    "ubpf_model.p4",
    "xdp_model.p4",
    "psa.p4",
    "bmv2/psa.p4",
    "dpdk/psa.p4",
    "pna.p4",
    "bmv2/pna.p4",
    "dpdk/pna.p4",
];

#[test]
fn each_file_is_accepted_without_warnings() {
    for file in FILES {
        assert!(architecture_file(file).is_some(), "{file}");
        let program = common::through(&format!("#include <{file}>\n#include <{file}>\n"), None);
        let found: Vec<String> =
            program.diagnostics.iter().map(|d| d.render(&program.sources).to_string()).collect();
        assert!(found.is_empty(), "{file}: {}", found.join("\n"));
    }
}

#[test]
fn versions_of_v1model_decide_its_types() {
    let program = |version: &str, text: &str| {
        let text = format!("#define V1MODEL_VERSION {version}\n#include <v1model.p4>\n{text}");
        common::through(&text, None).is_accepted()
    };
    let typed =
        "const PortId_t port = 1; control c() { counter<bit<9>>(4, CounterType.packets) x; apply {} }";
    let untyped = "control c() { counter(4, CounterType.packets) x; register<bit<8>>(4) y; apply {} }";
    assert!(program("20200408", typed) && !program("20180101", typed));
    assert!(program("20180101", untyped) && !program("20200408", untyped));
    assert!(!program("20000101", ""));
}

#[test]
fn numbers_of_psa_have_their_names_for_the_control_plane() {
    let program = common::through("#include <psa.p4>\n", None);
    let ports = program.declarations.iter().find(|declaration| &*declaration.name.text == "PortId_t");
    let annotation = &ports.expect("a type of ports").annotations[0];
    let millstream_p4::ast::AnnotationBody::Unstructured(tokens) = &annotation.body else {
        panic!("a free annotation");
    };
    assert_eq!(tokens[0].kind, millstream_p4::TokenKind::Text("p4.org/psa/v1/PortId_t".into()));
}

#[test]
fn a_checked_program_has_types_and_values() {
    let program =
        common::through("const bit<8> a = 3;\nstruct S { bit<8> b; }\nconst bit<16> c = a ++ 8w1;\n", None);
    let is_struct =
        |n: &millstream_p4::NominalType| matches!(n.kind, NominalKind::Aggregate(..)) && &*n.name == "S";
    assert!(program.types.nominals.iter().any(is_struct));
    let Some(millstream_p4::ast::DeclarationKind::Constant(_, value)) =
        program.declarations.last().map(|declaration| &declaration.kind)
    else {
        panic!("a constant");
    };
    let type_id = program.facts.type_id(value.id).expect("a type");
    assert_eq!(program.types.name(type_id), "bit<16>");
    assert_eq!(program.facts.constant(value.id), Some(&millstream_p4::ConstantValue::Number(0x301.into())));
}
