//! Names of the objects that each architecture declares for controllers.

use millstream_p4::{CompiledProgram, NominalKind};

use crate::proto::config::v1::{counter_spec, meter_spec};

/// Architecture that a program is written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetArchitecture {
    /// The v1model of bmv2.
    V1Model,
    /// The Portable Switch Architecture, DPDK's too.
    Psa,
    /// The Portable NIC Architecture, DPDK's too.
    Pna,
    /// The model of user-space BPF.
    Ubpf,
    /// The models of packet filters and of XDP programs in the kernel.
    Ebpf,
}

/// Kinds of objects that architectures declare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExternKind {
    Counter,
    DirectCounter,
    Meter,
    DirectMeter,
    Register,
    ActionProfile,
    ActionSelector,
    Digest,
}

impl TargetArchitecture {
    /// Finds the architecture by the packages that a program's files declare; v1model is that of all others.
    pub fn of_program(program: &CompiledProgram) -> TargetArchitecture {
        let packages = program.types.nominals.iter().filter(|n| matches!(n.kind, NominalKind::Package(_)));
        let found = packages.into_iter().find_map(|package| {
            Some(match &*package.name {
                "V1Switch" => TargetArchitecture::V1Model,
                "PSA_Switch" => TargetArchitecture::Psa,
                "PNA_NIC" => TargetArchitecture::Pna,
                "ubpf" => TargetArchitecture::Ubpf,
                "ebpfFilter" | "xdp" => TargetArchitecture::Ebpf,
                _ => return None,
            })
        });
        found.unwrap_or(TargetArchitecture::V1Model)
    }

    /// Name in `pkg_info`.
    pub fn name(self) -> &'static str {
        match self {
            TargetArchitecture::V1Model => "v1model",
            TargetArchitecture::Psa => "psa",
            TargetArchitecture::Pna => "pna",
            TargetArchitecture::Ubpf => "ubpf",
            TargetArchitecture::Ebpf => "ebpf",
        }
    }

    /// Kind of the instances of an extern type.
    pub(crate) fn extern_kind(self, name: &str) -> Option<ExternKind> {
        use ExternKind::*;
        Some(match (self, name) {
            (TargetArchitecture::V1Model, "counter") => Counter,
            (TargetArchitecture::V1Model, "direct_counter") => DirectCounter,
            (TargetArchitecture::V1Model, "meter") => Meter,
            (TargetArchitecture::V1Model, "direct_meter") => DirectMeter,
            (TargetArchitecture::V1Model, "register") => Register,
            (TargetArchitecture::V1Model, "action_profile") => ActionProfile,
            (TargetArchitecture::V1Model, "action_selector") => ActionSelector,
            (TargetArchitecture::V1Model | TargetArchitecture::Ebpf, _) => return None,
            (_, "Register") => Register,
            (TargetArchitecture::Ubpf, _) => return None,
            (_, "Counter") => Counter,
            (_, "DirectCounter") => DirectCounter,
            (_, "Meter") => Meter,
            (_, "DirectMeter") => DirectMeter,
            (_, "ActionProfile") => ActionProfile,
            (_, "ActionSelector") => ActionSelector,
            (_, "Digest") => Digest,
            _ => return None,
        })
    }

    /// Table property that names an object of a kind.
    pub(crate) fn table_property(self, kind: ExternKind) -> Option<&'static str> {
        use TargetArchitecture::*;
        Some(match (self, kind) {
            (Ebpf, _) => return None,
            (V1Model, ExternKind::DirectCounter) => "counters",
            (V1Model, ExternKind::DirectMeter) => "meters",
            (V1Model, _) => "implementation",
            (Pna, ExternKind::DirectCounter) => "pna_direct_counter",
            (Pna, ExternKind::DirectMeter) => "pna_direct_meter",
            (Pna, _) => "pna_implementation",
            (Psa | Ubpf, ExternKind::DirectCounter) => "psa_direct_counter",
            (Psa | Ubpf, ExternKind::DirectMeter) => "psa_direct_meter",
            (Psa | Ubpf, _) => "psa_implementation",
        })
    }

    /// Table property whose value is a map with a size.
    pub(crate) fn map_property(self) -> Option<&'static str> {
        (self == TargetArchitecture::Ebpf).then_some("implementation")
    }

    /// Table property that asks for idle timeouts.
    pub(crate) fn timeout_property(self) -> Option<&'static str> {
        match self {
            TargetArchitecture::V1Model => Some("support_timeout"),
            TargetArchitecture::Psa => Some("psa_idle_timeout"),
            TargetArchitecture::Pna => Some("pna_idle_timeout"),
            TargetArchitecture::Ubpf | TargetArchitecture::Ebpf => None,
        }
    }

    /// Index of the type argument that is an object's index type. Those of v1model are not described.
    pub(crate) fn index_argument(self, kind: ExternKind) -> Option<usize> {
        match (self, kind) {
            (TargetArchitecture::V1Model, _) => None,
            (_, ExternKind::Meter) => Some(0),
            (_, ExternKind::Counter | ExternKind::Register) => Some(1),
            _ => None,
        }
    }
}

/// Unit of a counter by the name of its enumeration's member.
pub(crate) fn counter_unit(member: &str) -> counter_spec::Unit {
    match member {
        "packets" | "PACKETS" => counter_spec::Unit::Packets,
        "bytes" | "BYTES" => counter_spec::Unit::Bytes,
        "packets_and_bytes" | "PACKETS_AND_BYTES" => counter_spec::Unit::Both,
        _ => counter_spec::Unit::Unspecified,
    }
}

/// Unit of a meter by the name of its enumeration's member.
pub(crate) fn meter_unit(member: &str) -> meter_spec::Unit {
    match member {
        "packets" | "PACKETS" => meter_spec::Unit::Packets,
        "bytes" | "BYTES" => meter_spec::Unit::Bytes,
        _ => meter_spec::Unit::Unspecified,
    }
}
