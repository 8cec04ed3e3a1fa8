//! PSA: an ingress and an egress function, each from the parser to the deparser. The replication engine
//! between them works on deparsed packets.

use crate::blocks::{
    package_blocks, packet_state, parameter_type, run_control, run_deparser, run_parser, stage,
};
use crate::error::Lowered;
use crate::lowerer::Lowerer;
use crate::pipeline::Architecture;
use crate::values::Place;

/// Lowers a `PSA_Switch`.
pub(crate) fn lower_psa(l: &mut Lowerer<'_>) -> Lowered<()> {
    l.pipeline.architecture = Architecture::Psa;
    let [ip, ig, id, ep, eg, ed] = package_blocks(l)?;
    let fields = [
        ("ingress_parser_input", parameter_type(l, &ip, 3)?),
        ("resubmit_meta", parameter_type(l, &ip, 4)?),
        ("recirculate_meta", parameter_type(l, &ip, 5)?),
        ("ingress_input", parameter_type(l, &ig, 2)?),
        ("ingress_output", parameter_type(l, &ig, 3)?),
        ("clone_i2e_meta", parameter_type(l, &id, 1)?),
        ("normal_meta", parameter_type(l, &id, 3)?),
        ("egress_parser_input", parameter_type(l, &ep, 3)?),
        ("clone_e2e_meta", parameter_type(l, &ep, 6)?),
        ("egress_input", parameter_type(l, &eg, 2)?),
        ("egress_output", parameter_type(l, &eg, 3)?),
        ("egress_deparser_input", parameter_type(l, &ed, 6)?),
        ("ingress_metadata", parameter_type(l, &ip, 2)?),
        ("egress_metadata", parameter_type(l, &ep, 2)?),
        ("ingress_headers", parameter_type(l, &ip, 1)?),
        ("egress_headers", parameter_type(l, &ep, 1)?),
    ];
    let state = packet_state(l, fields);
    stage(l, "ingress", &state, |l, places| {
        let parser = ["ingress_headers", "ingress_metadata", "ingress_parser_input", "resubmit_meta"];
        run_parser(l, &ip, places, &[&parser[..], &["recirculate_meta"]].concat(), true)?;
        keep_error(l, places, "ingress_input");
        let control = ["ingress_headers", "ingress_metadata", "ingress_input", "ingress_output"];
        run_control(l, &ig, places, &control)?;
        let outputs = ["clone_i2e_meta", "resubmit_meta", "normal_meta"];
        let inputs = ["ingress_headers", "ingress_metadata", "ingress_output"];
        run_deparser(l, &id, places, &[outputs, inputs].concat())
    })?;
    stage(l, "egress", &state, |l, places| {
        let parser = ["egress_headers", "egress_metadata", "egress_parser_input"];
        let metadata = ["normal_meta", "clone_i2e_meta", "clone_e2e_meta"];
        run_parser(l, &ep, places, &[parser, metadata].concat(), true)?;
        keep_error(l, places, "egress_input");
        let control = ["egress_headers", "egress_metadata", "egress_input", "egress_output"];
        run_control(l, &eg, places, &control)?;
        let outputs = ["clone_e2e_meta", "recirculate_meta", "egress_headers"];
        let inputs = ["egress_metadata", "egress_output", "egress_deparser_input"];
        run_deparser(l, &ed, places, &[outputs, inputs].concat())
    })
}

/// Copies the parser's error to the metadata of a control.
fn keep_error(l: &mut Lowerer<'_>, places: &Place, input: &str) {
    let from = places.field("engine").and_then(|engine| engine.field("parser_error"));
    let to = places.field(input).and_then(|input| input.field("parser_error"));
    if let (Some(from), Some(to)) = (from, to) {
        l.emitter.copy(&from, &to);
    }
}
