//! Replaces `dpdk` in builds without that feature: reports that it is missing.

use std::io;
use std::process::ExitCode;

use miette::Result;
use millstream_click::ClickProgram;
use millstream_native::NativeEngine;
use millstream_native_io::RunStats;
use millstream_native_io::graph::GraphRunStats;

use crate::exit::Exit;
use crate::native::LostBefore;
use crate::native::control::MapControlSocket;
use crate::native::port_options::MetadataMode;
use crate::native::stop_condition::StopCondition;

/// No flags.
#[derive(Debug, clap::Args)]
pub(crate) struct DpdkArgs {}

/// No ports exist without DPDK.
pub(crate) enum DpdkDevicePorts {}

impl DpdkDevicePorts {
    pub(crate) fn description(&self) -> String {
        match *self {}
    }

    pub(crate) fn descriptions(&self) -> Vec<String> {
        match *self {}
    }

    pub(crate) fn lost(&self) -> LostBefore {
        match *self {}
    }

    pub(crate) fn run(
        &mut self,
        _: &mut NativeEngine,
        _: (u32, MetadataMode),
        _: &StopCondition,
        _: Option<&MapControlSocket>,
    ) -> Result<RunStats> {
        match *self {}
    }

    pub(crate) fn run_graph(
        &mut self,
        _: &mut NativeEngine,
        _: (u32, MetadataMode),
        _: &StopCondition,
        _: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        match *self {}
    }
}

/// Version of DPDK: none, in a build without it.
pub fn version() -> Option<String> {
    None
}

fn missing() -> ExitCode {
    errln!(
        "--io dpdk:...: this build is without DPDK; build one with `cargo build --release --features dpdk`"
    );
    Exit::NotPermitted.into()
}

pub(crate) fn of_program(_: &DpdkArgs, _: &str, _: u32, _: u32) -> Result<Result<DpdkDevicePorts, ExitCode>> {
    Ok(Err(missing()))
}

pub(crate) fn of_graph(
    _: &DpdkArgs,
    specs: &[String],
    _: &ClickProgram,
    _: u32,
) -> Result<Result<Option<DpdkDevicePorts>, ExitCode>> {
    match specs.iter().any(|spec| spec.starts_with("dpdk:") || spec.contains("=dpdk:")) {
        true => Ok(Err(missing())),
        false => Ok(Ok(None)),
    }
}
