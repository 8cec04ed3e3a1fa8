//! One packet and tables that are said to tell two programs apart, run in the kernel.

use std::collections::BTreeSet;

use millstream_interp::ContextKind;
use millstream_kernel::ProgramType;
use millstream_object::Object;
use serde::Serialize;

use super::replica::InitialStack;
use super::tables::TableEntry;
use super::{FuzzRound, ObservedDifference, ProgramPair, context};
use crate::error::{Error, Result};

/// Least packet that the kernel runs a program on: an Ethernet header.
const SHORTEST: usize = 14;
/// Fields of `struct __sk_buff` that user space may set: mark, priority, control block.
const SETTABLE: [std::ops::Range<usize>; 3] = [8..12, 32..36, 48..68];

/// Inputs of a program run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TestRunInput {
    /// The packet.
    pub packet: Vec<u8>,
    /// Bytes of the context that are not zero, by offset.
    pub context: Vec<(usize, u8)>,
    /// Entries by name of the map: key and value. All other maps are as the object has them.
    pub entries: Vec<(String, Vec<u8>, Vec<u8>)>,
}

/// Result in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum KernelReplay {
    /// They differ, each time.
    Different(ObservedDifference),
    /// They do the same: they differ only in what a test run cannot control or show (the clock, random
    /// numbers, calls).
    Same {
        /// Bytes of the context that the scene sets and a test run cannot.
        unset: Vec<usize>,
    },
    /// It cannot be tried.
    NotTried {
        /// Why.
        reason: String,
    },
}

/// Runs the programs of this name on a scene, each with maps of its own.
///
/// # Errors
/// If one of the objects has no such program or lacks a map of the other; or if the kernel refuses anything
/// but programs.
pub fn replay(first: &Object, second: &Object, name: &str, scene: &TestRunInput) -> Result<KernelReplay> {
    let pair = ProgramPair::new(first, second, name)?;
    let not = |reason: String| Ok(KernelReplay::NotTried { reason });
    let told = ProgramType(pair.programs[0].kind.program_type.0);
    let kind = match told {
        ProgramType::UNSPEC => match pair.load(0, "the first", InitialStack::Unwritten) {
            Ok(replica) => replica.program_type()?,
            Err(e @ (Error::Program { .. } | Error::Loader(_))) => return not(e.error_chain()),
            Err(e) => return Err(e),
        },
        told => told,
    };
    let Some(kind) = context(kind) else {
        return not(format!("a program of type {kind} is not run on packets"));
    };
    if scene.packet.len() < SHORTEST {
        return not(format!("a packet of {} bytes is too short for a test run", scene.packet.len()));
    }
    let (context, unset) = given(kind, &scene.context);
    let number = |name: &str| first.maps.iter().position(|m| m.name == name);
    let entries = scene.entries.iter().filter_map(|(map, key, value)| {
        Some(TableEntry { map: number(map)?, key: key.clone(), value: value.clone() })
    });
    let round = FuzzRound {
        entries: entries.collect(),
        packets: vec![scene.packet.clone()],
        context,
        visits: Vec::new(),
    };
    match pair.difference(&round, &mut BTreeSet::new()) {
        Ok(Some(found)) => Ok(KernelReplay::Different(found.observable)),
        Ok(None) => Ok(KernelReplay::Same { unset }),
        Err(e @ (Error::Program { .. } | Error::Loader(_))) => not(e.error_chain()),
        Err(e) if e.is_environment_error() => not(e.error_chain()),
        Err(e) => Err(e),
    }
}

/// The context as a test run takes it, and what of it no test run has.
fn given(kind: ContextKind, bytes: &[(usize, u8)]) -> (Vec<u8>, Vec<usize>) {
    let settable = |at: usize| kind == ContextKind::Skb && SETTABLE.iter().any(|r| r.contains(&at));
    let (set, unset): (Vec<(usize, u8)>, Vec<_>) =
        bytes.iter().filter(|(_, b)| *b != 0).partition(|(at, _)| settable(*at));
    let mut context = if kind == ContextKind::Skb { vec![0; kind.size()] } else { Vec::new() };
    for (at, byte) in set {
        context[at] = byte;
    }
    (context, unset.into_iter().map(|(at, _)| at).collect())
}
