//! Objects, and what is refused.

use millstream_kernel::testing;
use millstream_object::Object;
use millstream_p4_kernel::{KernelBuildError, KernelExecutor, KernelHook, build_program, lower_options};
use millstream_p4_switch::{SentPacket, Switch};

use crate::common::{lowered, test_files};

/// A v1model program with this ingress control.
fn program(ingress: &str) -> String {
    format!(
        "#include <v1model.p4>
header h_t {{ bit<8> a; bit<8> b; }}
struct headers {{ h_t h; }}
struct meta {{}}
parser P(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {{
    state start {{ p.extract(h.h); transition accept; }}
}}
control V(inout headers h, inout meta m) {{ apply {{}} }}
control I(inout headers h, inout meta m, inout standard_metadata_t s) {{ {ingress} }}
control E(inout headers h, inout meta m, inout standard_metadata_t s) {{ apply {{}} }}
control C(inout headers h, inout meta m) {{ apply {{}} }}
control D(packet_out p, in headers h) {{ apply {{ p.emit(h.h); }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"
    )
}

#[test]
fn an_object_has_one_program_and_maps_with_names_of_c() {
    let (path, _) = test_files("tables");
    let program = lowered(&path.to_string_lossy(), "", lower_options());
    for (hook, section) in [(KernelHook::Xdp, "xdp"), (KernelHook::Tc, "tc")] {
        let built = build_program(&program, "my-tables", hook).unwrap();
        let object = Object::parse("tables.o", &built.bytes).unwrap();
        let [entry] = &object.programs[..] else { panic!("{:?}", object.programs) };
        assert_eq!((entry.name.as_str(), entry.section.as_str()), ("my_tables", section));
        assert!(object.notes.is_empty() && object.frozen.is_none(), "{:?}", object.notes);
        for map in &object.maps {
            assert!(map.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{}", map.name);
        }
        assert!(object.functions.iter().all(|function| !function.line_info.is_empty()));
    }
}

#[test]
fn a_construct_that_the_kernel_cannot_do_is_refused_with_its_name_and_place() {
    let cases = [
        ("apply { clone(CloneType.I2E, 1); }", "`clone` of an ingress packet"),
        ("apply { recirculate_preserving_field_list(0); }", "`recirculate`"),
        ("apply { resubmit_preserving_field_list(0); }", "`resubmit`"),
        ("apply { s.mcast_grp = 1; }", "multicast (`mcast_grp`)"),
    ];
    for (ingress, wanted) in cases {
        let program = lowered("test.p4", &program(ingress), lower_options());
        match build_program(&program, "test", KernelHook::Xdp) {
            Err(KernelBuildError::Refused { place, construct, .. }) => {
                assert_eq!((construct.as_str(), place.as_str()), (wanted, "test.p4:9"), "{ingress}");
            }
            other => panic!("{ingress}: {:?}", other.map(|object| object.bytes.len())),
        }
    }
}

/// The verifier follows each iteration of a loop, so that a product of two bytes of a packet is too much.
#[test]
fn nested_loops_that_the_verifier_does_not_follow_are_refused_with_their_place() {
    let nested = |from: &str, to: &str| {
        format!(
            "apply {{
    for (bit<8> i = 0; i < {from}; i = i + 1) {{
        for (bit<8> j = 0; j < {to}; j = j + 1) {{
            s.priority = s.priority + 1;
        }}
    }} }}"
        )
    };
    let build = |ingress: &str| {
        let program = lowered("test.p4", &program(ingress), lower_options());
        build_program(&program, "test", KernelHook::Tc)
    };
    match build(&nested("h.h.a", "h.h.b")) {
        Err(KernelBuildError::Refused { place, construct, .. }) => {
            assert_eq!(
                (construct.as_str(), place.as_str()),
                ("a loop with so many iterations", "test.p4:11")
            );
        }
        other => panic!("{:?}", other.map(|object| object.bytes.len())),
    }
    for accepted in [nested("h.h.a & 15", "h.h.b & 15"), nested("h.h.a", "10"), nested("10", "h.h.b")] {
        let object = build(&accepted).unwrap();
        if testing::require() {
            let program = lowered("test.p4", &program(&accepted), lower_options());
            KernelExecutor::load(object, &program.pipeline).unwrap();
        }
    }
}

#[test]
fn a_frame_that_becomes_too_short_for_xdp_is_dropped_and_the_engine_knows() {
    if !testing::require() {
        return;
    }
    let program =
        lowered("test.p4", &program("apply { s.egress_spec = 3; h.h.setInvalid(); }"), lower_options());
    let object = build_program(&program, "strip", KernelHook::Xdp).unwrap();
    let executor = KernelExecutor::load(object, &program.pipeline).unwrap();
    let mut switch = Switch::new(program, executor).unwrap();
    assert_eq!(switch.receive(1, &[7; 16]).unwrap(), [SentPacket { port: 3, data: vec![7; 14] }]);
    assert!(!switch.executor().has_lacked_frame());
    assert_eq!(switch.receive(1, &[7; 15]).unwrap(), []);
    assert!(switch.executor().has_lacked_frame());
}

/// A port has 9 bits in v1model. The index of an interface may be larger, and would be another port.
#[test]
fn a_packet_from_a_port_that_does_not_fit_its_field_is_dropped() {
    if !testing::require() {
        return;
    }
    let program = lowered("test.p4", &program("apply { s.egress_spec = s.ingress_port; }"), lower_options());
    let object = build_program(&program, "ports", KernelHook::Xdp).unwrap();
    let executor = KernelExecutor::load(object, &program.pipeline).unwrap();
    let mut switch = Switch::new(program, executor).unwrap();
    assert_eq!(switch.receive(5, &[7; 20]).unwrap(), [SentPacket { port: 5, data: vec![7; 20] }]);
    assert_eq!(switch.receive(512 + 5, &[7; 20]).unwrap(), []);
}
