//! The eBPF, uBPF and XDP models: one function each, from the parser to the deparser. A packet that the
//! parser rejects leaves the function at once.

use crate::blocks::{
    package_blocks, packet_state, parameter_type, run_control, run_deparser, run_parser, stage,
};
use crate::error::Lowered;
use crate::lowerer::Lowerer;
use crate::pipeline::Architecture;
use crate::types::RuntimeType;

/// Lowers an `ebpfFilter`: the packet passes unchanged, or is dropped.
pub(crate) fn lower_filter(l: &mut Lowerer<'_>) -> Lowered<()> {
    l.pipeline.architecture = Architecture::Filter;
    let [parser, filter] = package_blocks(l)?;
    let headers = parameter_type(l, &parser, 1)?;
    let state = packet_state(l, [("headers", headers), ("accept", RuntimeType::Bool)]);
    stage(l, "filter", &state, |l, places| {
        run_parser(l, &parser, places, &["headers"], false)?;
        run_control(l, &filter, places, &["headers", "accept"])
    })
}

/// Lowers a `ubpf` program.
pub(crate) fn lower_ubpf(l: &mut Lowerer<'_>) -> Lowered<()> {
    const PARAMETERS: [&str; 3] = ["headers", "metadata", "standard_metadata"];
    l.pipeline.architecture = Architecture::Ubpf;
    let [parser, pipeline, deparser] = package_blocks(l)?;
    let fields = [
        ("headers", parameter_type(l, &parser, 1)?),
        ("metadata", parameter_type(l, &parser, 2)?),
        ("standard_metadata", parameter_type(l, &parser, 3)?),
    ];
    let state = packet_state(l, fields);
    stage(l, "filter", &state, |l, places| {
        run_parser(l, &parser, places, &PARAMETERS, false)?;
        run_control(l, &pipeline, places, &PARAMETERS)?;
        run_deparser(l, &deparser, places, &PARAMETERS)
    })
}

/// Lowers an `xdp` program.
pub(crate) fn lower_xdp(l: &mut Lowerer<'_>) -> Lowered<()> {
    l.pipeline.architecture = Architecture::Xdp;
    let [parser, switch, deparser] = package_blocks(l)?;
    let fields = [
        ("headers", parameter_type(l, &parser, 1)?),
        ("input", parameter_type(l, &switch, 1)?),
        ("output", parameter_type(l, &switch, 2)?),
    ];
    let state = packet_state(l, fields);
    stage(l, "filter", &state, |l, places| {
        run_parser(l, &parser, places, &["headers"], false)?;
        run_control(l, &switch, places, &["headers", "input", "output"])?;
        run_deparser(l, &deparser, places, &["headers"])
    })
}
