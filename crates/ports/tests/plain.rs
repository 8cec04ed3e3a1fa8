//! Raw sockets and TAP interfaces, in a network namespace of their own.

use std::time::{Duration, Instant};

use millstream_kernel::{Namespace, PacketSocket, create_veth, interface_index, set_up_pair, testing};
use millstream_ports::SyscallPort;

/// Ethernet type of frames that no stack sends.
const OURS: [u8; 2] = [0x88, 0xb5];
/// As many as a socket has room for.
const FRAMES: usize = 40;

/// A frame with so many VLAN tags.
fn frame(n: usize, tags: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        frame.extend([0x81, 0, 0, 7 + tag as u8]);
    }
    frame.extend(OURS);
    frame.extend((n as u32).to_be_bytes());
    frame.resize(60 + n % 1400, 0);
    frame
}

fn is_ours(frame: &[u8]) -> bool {
    (0..3).any(|tags| frame.get(12 + 4 * tags..14 + 4 * tags) == Some(&OURS))
}

/// Receives packets until there are so many, or none comes for a while.
fn received(port: &mut SyscallPort, count: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let start = Instant::now();
    while all.len() < count && start.elapsed() < Duration::from_secs(60) {
        let mut take = |bytes: &[u8]| all.extend(Some(bytes.to_vec()).filter(|bytes| is_ours(bytes)));
        if port.receive(64, &mut take).expect("it receives") == 0 {
            port.wait(Duration::from_millis(20)).expect("it waits");
        }
    }
    all
}

/// As [`received`], at the other end.
fn back(wire: &PacketSocket, count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let start = Instant::now();
    while all.len() < count && start.elapsed() < Duration::from_secs(60) {
        all.extend(wire.receive().expect("it receives").filter(|frame| is_ours(frame)));
    }
    all
}

fn in_a_namespace(f: impl FnOnce() + Send) {
    if testing::require() {
        Namespace::new().expect("a namespace").enter(f).expect("entered");
    }
}

fn a_pair() -> (u32, u32) {
    let (near, far) = create_veth("plain0", "plain1", 1).expect("a pair");
    set_up_pair((near, far)).expect("up");
    (near, far)
}

/// Sends there and back, with and without tags.
fn both_ways(wire: &PacketSocket, port: &mut SyscallPort) {
    for round in 0..30 {
        let sent: Vec<Vec<u8>> = (0..FRAMES).map(|n| frame(round * FRAMES + n, n % 3)).collect();
        sent.iter().for_each(|frame| wire.send(frame).expect("it sends"));
        // The kernel has a queue for each CPU: a test that is moved to another one may find its frames in
        // another order.
        let sorted = |mut frames: Vec<Vec<u8>>| {
            frames.sort_unstable();
            frames
        };
        let sent = sorted(sent);
        assert!(sorted(received(port, FRAMES)) == sent, "none lost, round {round}");
        assert!(sent.iter().all(|frame| port.send(frame)), "there is room");
        assert!(sorted(back(wire, FRAMES)) == sent, "round {round}");
    }
}

#[test]
fn a_raw_socket_has_what_comes_and_not_what_it_sends() {
    in_a_namespace(|| {
        let (near, far) = a_pair();
        let wire = PacketSocket::open(near).expect("a socket");
        let mut port = SyscallPort::raw("plain1").expect("a port");
        assert_eq!((port.index(), port.name()), (far, "plain1"));
        both_ways(&wire, &mut port);
        assert!(!port.send(&[0; 3000]), "longer than the interface's packets");
        assert!(SyscallPort::raw("plain7").is_err());
    });
}

#[test]
fn what_a_raw_socket_has_no_room_for_is_counted() {
    in_a_namespace(|| {
        const MANY: u64 = 20_000;
        let (near, _) = a_pair();
        let wire = PacketSocket::open(near).expect("a socket");
        let mut port = SyscallPort::raw("plain1").expect("a port");
        for n in 0..MANY as usize {
            while wire.send(&frame(n, 0)).is_err() {}
        }
        let mut taken = 0;
        while port.receive(64, &mut |_| taken += 1).expect("it receives") > 0 {}
        let lost = port.lost().expect("known").no_room;
        assert!(taken > 0 && lost > 0, "{taken} {lost}");
        // The stack sends a few of its own, such as router solicitations; and drops some before there is a
        // socket.
        assert!(taken + lost < MANY + 50, "{taken} {lost}");
        assert_eq!(port.lost().expect("known").no_room, lost, "each is counted once");
    });
}

#[test]
fn a_tap_interface_is_the_hosts_as_long_as_it_is_held() {
    in_a_namespace(|| {
        let mut port = SyscallPort::tap("plaintap").expect("a port");
        assert_eq!(port.index(), interface_index("plaintap").expect("it is there"));
        let wire = PacketSocket::open(port.index()).expect("a socket");
        both_ways(&wire, &mut port);
        assert!(SyscallPort::tap("plaintap").is_err(), "one at a time");
        assert!(SyscallPort::tap("a-name-that-is-too-long").is_err());
        drop(port);
        assert!(interface_index("plaintap").is_err(), "it goes with the port");
    });
}
