//! Search for a program on hooks: by a link, wherever that is, or without one on an interface of this network
//! namespace.

use std::collections::BTreeSet;

use millstream_kernel::{
    AttachType, KernelError, Link, filters, interface_index, link_ids, query_tcx, xdp_program,
};

/// The two directions of TC.
const WAYS: [AttachType; 2] = [AttachType::TCX_INGRESS, AttachType::TCX_EGRESS];

/// Returns true if one of these programs is on a hook. Links are those of all namespaces; programs that were
/// attached without a link in another namespace are not seen.
///
/// # Errors
/// Errors of the kernel. Hooks that vanish meanwhile have no program any more.
pub(crate) fn is_attached(programs: &BTreeSet<u32>) -> Result<bool, KernelError> {
    for id in link_ids()? {
        let info = Link::from_id(id).and_then(|link| link.info());
        if info.is_ok_and(|info| programs.contains(&info.program_id)) {
            return Ok(true);
        }
    }
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    for name in names {
        if let Ok(index) = interface_index(name)
            && is_on(index, programs)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if one is on a hook of an interface.
fn is_on(index: u32, programs: &BTreeSet<u32>) -> Result<bool, KernelError> {
    let gone = |e: &KernelError| e.errno() == Some(libc::ENODEV);
    let on_xdp = match xdp_program(index) {
        Err(e) if gone(&e) => return Ok(false),
        found => found?,
    };
    let mut found: Vec<u32> = on_xdp.into_iter().collect();
    for way in WAYS {
        // Before Linux 6.6 there are only filters.
        found.extend(query_tcx(index, way).into_iter().flatten().map(|state| state.program_id));
        match filters(index, way) {
            Err(e) if gone(&e) => return Ok(false),
            filters => found.extend(filters?.iter().map(|filter| filter.program_id)),
        }
    }
    Ok(found.iter().any(|id| programs.contains(id)))
}
