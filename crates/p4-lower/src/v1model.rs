//! v1model: a parser function, an ingress function (checksum verification, ingress control) and an egress
//! function (egress control, checksum computation, deparser), with the traffic manager between the last two.
//! The parser is apart because a clone of an ingress packet is parsed and goes on to egress.

use crate::blocks::{
    package_blocks, packet_state, parameter_type, run_control, run_deparser, run_parser, stage,
};
use crate::error::Lowered;
use crate::lowerer::Lowerer;
use crate::pipeline::Architecture;

/// Fields of the state that the blocks have as parameters, in their order.
const PARAMETERS: [&str; 3] = ["headers", "metadata", "standard_metadata"];

/// Lowers a `V1Switch`.
pub(crate) fn lower_switch(l: &mut Lowerer<'_>) -> Lowered<()> {
    l.pipeline.architecture = Architecture::V1Model;
    let [parser, verify, ingress, egress, compute, deparser] = package_blocks(l)?;
    let fields = [
        ("standard_metadata", parameter_type(l, &parser, 3)?),
        ("metadata", parameter_type(l, &parser, 2)?),
        ("headers", parameter_type(l, &parser, 1)?),
    ];
    let state = packet_state(l, fields);
    stage(l, "parser", &state, |l, places| run_parser(l, &parser, places, &PARAMETERS, true))?;
    stage(l, "ingress", &state, |l, places| {
        run_control(l, &verify, places, &PARAMETERS)?;
        run_control(l, &ingress, places, &PARAMETERS)
    })?;
    stage(l, "egress", &state, |l, places| {
        run_control(l, &egress, places, &PARAMETERS)?;
        run_control(l, &compute, places, &PARAMETERS)?;
        run_deparser(l, &deparser, places, &PARAMETERS)
    })
}
