//! Addresses of this machine's interfaces, by whose names configurations refer to them.

use millstream_click::{Graph, HostInterface};
use millstream_kernel as kernel;

/// Interfaces of this machine, for a configuration. The list is empty if the kernel reports nothing: a
/// configuration that names an interface then gets an error about its address, and others need none.
pub(super) fn of(graph: &Graph) -> Vec<HostInterface> {
    let addresses = kernel::addresses().unwrap_or_default();
    let gateways = match asks_for_gateways(graph) {
        true => kernel::gateways().unwrap_or_default(),
        false => Vec::new(),
    };
    let one = |interface: kernel::NetInterface| {
        let own = addresses.iter().find(|(index, ..)| *index == interface.index);
        let gateway = gateways.iter().find(|(index, _)| *index == interface.index);
        HostInterface {
            ether: interface.ethernet.then(|| interface.address.try_into().ok()).flatten(),
            ip: own.map(|&(_, address, bits)| (address.into(), mask(bits))),
            gateway: gateway.map(|(_, address)| u32::from(*address)),
            name: interface.name,
        }
    };
    kernel::interfaces().unwrap_or_default().into_iter().map(one).collect()
}

/// Returns true if a graph has `NAME:gw` anywhere. The kernel lists all its routes or none, and there may be
/// many.
fn asks_for_gateways(graph: &Graph) -> bool {
    let mut arguments = graph.elements.iter().flat_map(|element| &element.arguments);
    arguments.any(|argument| argument.text.to_ascii_lowercase().contains(":gw"))
}

fn mask(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0)
}
