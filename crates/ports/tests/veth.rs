//! Ports on a veth pair of a network namespace of their own.

use std::time::{Duration, Instant};

use millstream_kernel::{Namespace, PacketSocket, create_veth, query_xdp, set_up, testing};
use millstream_ports::Port;

/// Frames that are sent at once: fewer than the socket at the other end has room for.
const FRAMES: usize = 40;

fn frame(n: usize) -> Vec<u8> {
    let mut frame = vec![0; 60 + n % 1400];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame[14..18].copy_from_slice(&(n as u32).to_be_bytes());
    frame
}

/// Runs `f` with the two ends of a pair.
fn on_a_pair(queues: u32, f: impl FnOnce(u32, u32) + Send) {
    if !testing::require() {
        return;
    }
    let namespace = Namespace::new().expect("a namespace");
    let done = namespace.enter(|| {
        let (near, far) = create_veth("ports0", "ports1", queues).expect("a pair");
        set_up(near).expect("up");
        set_up(far).expect("up");
        f(near, far);
    });
    done.expect("entered");
}

/// What a port receives until there are so many, or nothing comes for a second.
fn received(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let start = Instant::now();
    while all.len() < count && start.elapsed() < Duration::from_secs(10) {
        let got = port.receive(64, &mut |bytes| all.push(bytes.to_vec())).expect("it receives");
        if got == 0 {
            port.wait(Duration::from_millis(20)).expect("it waits");
        }
    }
    // Not those of the stack, such as router solicitations.
    all.retain(|f| f[12..14] == [0x88, 0xb5]);
    all
}

#[test]
fn what_one_end_sends_the_other_receives_and_sends_back() {
    on_a_pair(1, |near, far| {
        let wire = PacketSocket::open(near).expect("a socket");
        let mut port = Port::open("ports1").expect("a port");
        assert_eq!((port.index(), port.queues(), port.name()), (far, 1, "ports1"));
        for round in 0..100 {
            let sent: Vec<Vec<u8>> = (0..FRAMES).map(|n| frame(round * FRAMES + n)).collect();
            for f in &sent {
                wire.send(f).expect("it sends");
            }
            let got = received(&mut port, FRAMES);
            assert_eq!(got, sent, "in order, none lost, round {round}");
            for f in &got {
                assert!(port.send(f), "there is room");
            }
            port.flush().expect("it sends");
            let mut back = Vec::new();
            let start = Instant::now();
            while back.len() < FRAMES && start.elapsed() < Duration::from_secs(10) {
                match wire.receive().expect("it receives") {
                    Some(f) if f[12..14] == [0x88, 0xb5] => back.push(f),
                    Some(_) => {}
                    None => port.flush().expect("it sends"),
                }
            }
            assert!(back == sent, "all come back: {} of {FRAMES}", back.len());
        }
        assert_eq!(port.lost(), Default::default());
    });
}

#[test]
fn frames_of_sent_packets_come_back() {
    on_a_pair(1, |_, _| {
        let mut port = Port::open("ports1").expect("a port");
        let mut sent = 0;
        // More than there are frames.
        for n in 0..10_000 {
            while !port.send(&frame(n % 40)) {
                port.flush().expect("it sends");
            }
            sent += 1;
        }
        let start = Instant::now();
        while port.unsent() > 0 && start.elapsed() < Duration::from_secs(10) {
            port.flush().expect("it sends");
        }
        assert_eq!((sent, port.unsent()), (10_000, 0));
        assert!(!port.send(&[0; 5000]), "longer than a frame");
    });
}

#[test]
fn all_queues_are_served_and_the_interface_is_left_as_it_was() {
    on_a_pair(4, |near, far| {
        let port = Port::open("ports1").expect("a port");
        assert_eq!(port.queues(), 4);
        assert!(query_xdp(far).expect("asked").is_some(), "the program is there");
        let second = Port::open("ports1").err().expect("one at a time");
        assert!(second.is_taken(), "{second}");
        let other = Port::open("ports0").expect("the other end");
        drop((port, other));
        assert!(query_xdp(far).expect("asked").is_none(), "and gone");
        assert!(query_xdp(near).expect("asked").is_none());
        assert!(Port::open("ports7").is_err());
    });
}
