//! Peers of interfaces.

use std::time::{Duration, Instant};

use millstream_kernel::{PacketSocket, interface_index};

/// Raw sockets at interfaces, once these exist.
pub(crate) fn wires(names: [&str; 2], start: Instant) -> Vec<PacketSocket> {
    let open = |name| loop {
        assert!(start.elapsed() < Duration::from_secs(60), "{name} never comes");
        match interface_index(name).and_then(PacketSocket::open) {
            Ok(wire) => break wire,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    names.map(open).into()
}
