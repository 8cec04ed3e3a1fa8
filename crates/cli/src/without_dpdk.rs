//! Replaces `dpdk` in builds without that feature: reports that it is missing.

use std::io;
use std::process::ExitCode;

use miette::Result;
use millstream_click::Program;
use millstream_native::Engine;
use millstream_native::io::Ran;
use millstream_native::io::graph::GraphRan;

use crate::exit::Exit;
use crate::native::LostBefore;
use crate::native::control::Control;
use crate::native::live::Until;
use crate::native::taken::Kept;

/// No flags.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {}

/// No ports exist without DPDK.
pub(crate) enum Ports {}

impl Ports {
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
        _: &mut Engine,
        _: (u32, Kept),
        _: &Until,
        _: Option<&Control>,
    ) -> Result<Ran> {
        match *self {}
    }

    pub(crate) fn run_graph(
        &mut self,
        _: &mut Engine,
        _: (u32, Kept),
        _: &Until,
        _: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        match *self {}
    }
}

pub(crate) fn version() -> Option<String> {
    None
}

fn missing() -> ExitCode {
    errln!(
        "--io dpdk:...: this build is without DPDK; build one with `cargo build --release --features dpdk`"
    );
    Exit::NotPermitted.into()
}

pub(crate) fn of_program(_: &Flags, _: &str, _: u32, _: u32) -> Result<Result<Ports, ExitCode>> {
    Ok(Err(missing()))
}

pub(crate) fn of_graph(
    _: &Flags,
    specs: &[String],
    _: &Program,
    _: u32,
) -> Result<Result<Option<Ports>, ExitCode>> {
    match specs.iter().any(|spec| spec.starts_with("dpdk:") || spec.contains("=dpdk:")) {
        true => Ok(Err(missing())),
        false => Ok(Ok(None)),
    }
}
