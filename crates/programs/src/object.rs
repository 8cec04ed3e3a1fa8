//! The compiled objects, as bytes.

/// A compiled data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPlaneProgram {
    /// Its name on the command line.
    pub name: &'static str,
    /// The name of its program (a C function) in the object.
    pub function: &'static str,
    /// The ELF object, at an address that suits any ELF reader.
    pub object: &'static [u8],
}

/// Makes the bytes of an object start at a multiple of eight.
#[repr(C, align(8))]
struct AlignedBytes<T: ?Sized>(T);

macro_rules! program {
    ($(#[$doc:meta])* $constant:ident = $name:literal, $function:literal) => {
        $(#[$doc])*
        pub const $constant: DataPlaneProgram = DataPlaneProgram {
            name: $name,
            function: $function,
            object: {
                static OBJECT: &AlignedBytes<[u8]> =
                    &AlignedBytes(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")));
                &OBJECT.0
            },
        };
    };
}

program! {
    /// IPv4 router after RFC 1812: longest prefix match, next hops, counters per port.
    ROUTER = "router", "router"
}

program! {
    /// Ethernet switch after IEEE 802.1Q: VLANs, learning, spanning-tree states.
    SWITCH = "switch", "switch_frame"
}

program! {
    /// Source NAT with port translation, both directions.
    NAT = "nat", "nat"
}

program! {
    /// Packet filter: thousands of ordered 5-tuple rules, first match, by aggregated bit vectors.
    FIREWALL = "firewall", "firewall"
}

program! {
    /// Transport-layer load balancer: consistent hashing, connection table, encapsulation.
    BALANCER = "balancer", "balancer"
}

program! {
    /// No data plane: sees map writes before the kernel applies them, for `millstream run`. Has a second
    /// program, `guard_exit`.
    GUARD = "guard", "guard_enter"
}

program! {
    /// No data plane: counts stale packets behind a router, for `millstream demo` and tests.
    STALE = "stale", "count_stale"
}
