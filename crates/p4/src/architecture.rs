//! Architecture files that come with the front end, written from their specifications.

/// Returns the text of an architecture file, by the path in an `#include`.
pub fn architecture_file(path: &str) -> Option<&'static str> {
    Some(match path {
        "core.p4" => include_str!("../arch/core.p4"),
        "v1model.p4" => include_str!("../arch/v1model.p4"),
        "ebpf_model.p4" => include_str!("../arch/ebpf_model.p4"),
        "ubpf_model.p4" => include_str!("../arch/ubpf_model.p4"),
        "xdp_model.p4" => include_str!("../arch/xdp_model.p4"),
        "psa.p4" | "bmv2/psa.p4" => include_str!("../arch/psa.p4"),
        "dpdk/psa.p4" => include_str!("../arch/dpdk_psa.p4"),
        "pna.p4" | "bmv2/pna.p4" => include_str!("../arch/pna.p4"),
        "dpdk/pna.p4" => include_str!("../arch/dpdk_pna.p4"),
        "crypto.p4" => include_str!("../arch/crypto.p4"),
        "psa_common.p4" => include_str!("../arch/psa_common.p4"),
        "psa_blocks.p4" => include_str!("../arch/psa_blocks.p4"),
        "pna_blocks.p4" => include_str!("../arch/pna_blocks.p4"),
        _ => return None,
    })
}
