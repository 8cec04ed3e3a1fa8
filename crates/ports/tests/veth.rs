//! Ports on a veth pair of a network namespace of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_kernel::{
    Namespace, PacketSocket, create_veth, delete_interface, query_xdp, set_down, set_mtu, set_up, testing,
};
use millstream_ports::{
    AnonymousMemory, PortError, ReceivedPart, ScatterMode, XdpInterfaces, XdpPort, XskOptions,
    XskQueuesConfig, ZeroCopy,
};

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

fn open(name: &str) -> XdpPort {
    XdpPort::open(name, &XskOptions::default()).expect("a port")
}

/// Receives on a port until there are so many packets, or none comes for a second.
fn received(port: &mut XdpPort, count: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let start = Instant::now();
    while all.len() < count && start.elapsed() < Duration::from_secs(60) {
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
        let mut port = open("ports1");
        let interface = port.interface();
        assert_eq!((interface.index(), interface.queues(), interface.name()), (far, 1, "ports1"));
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
            while back.len() < FRAMES && start.elapsed() < Duration::from_secs(60) {
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
        let mut port = open("ports1");
        let mut sent = 0;
        // More than there are frames.
        for n in 0..10_000 {
            while !port.send(&frame(n % 40)) {
                port.flush().expect("it sends");
            }
            sent += 1;
        }
        let start = Instant::now();
        while port.unsent() > 0 && start.elapsed() < Duration::from_secs(60) {
            port.flush().expect("it sends");
        }
        assert_eq!((sent, port.unsent()), (10_000, 0));
        assert!(!port.send(&[0; 5000]), "longer than a frame");
    });
}

#[test]
fn all_queues_are_served_and_the_interface_is_left_as_it_was() {
    on_a_pair(4, |near, far| {
        let port = open("ports1");
        assert_eq!(port.interface().queues(), 4);
        assert!(query_xdp(far).expect("asked").is_some(), "the program is there");
        let second = XdpPort::open("ports1", &XskOptions::default()).err().expect("one at a time");
        assert!(second.is_taken(), "{second}");
        let other = open("ports0");
        drop((port, other));
        assert!(query_xdp(far).expect("asked").is_none(), "and gone");
        assert!(query_xdp(near).expect("asked").is_none());
        assert!(XdpPort::open("ports7", &XskOptions::default()).is_err());
    });
}

/// Takes two interfaces of two queues; each of two workers has one queue of each.
fn two(options: &XskOptions) -> Result<XdpInterfaces, PortError> {
    let memory =
        &mut |length| Ok(Arc::new(AnonymousMemory::new(length)?) as Arc<dyn millstream_ports::FrameMemory>);
    XdpInterfaces::open(&["ports1", "ports3"], XskQueuesConfig { workers: 2, at_hand: 64 }, options, memory)
}

/// Runs `f` with the near ends of two pairs of two queues each.
fn on_two_pairs(f: impl FnOnce([u32; 2]) + Send) {
    on_a_pair(2, |first, _| {
        let (third, other) = create_veth("ports2", "ports3", 2).expect("a pair");
        set_up(third).expect("up");
        set_up(other).expect("up");
        f([first, third]);
    });
}

#[test]
fn a_frame_that_came_by_one_interface_leaves_by_another_as_it_lies() {
    on_two_pairs(|near| {
        let wires = near.map(|near| PacketSocket::open(near).expect("a socket"));
        let mut interfaces = two(&XskOptions::default()).expect("they are free");
        let (all, lines) = interfaces.parts();
        assert_eq!(
            all.iter().map(|i| (i.name(), i.queues())).collect::<Vec<_>>(),
            [("ports1", 2), ("ports3", 2)]
        );
        assert!(!all[0].is_zero_copy() && all[0].mode().is_some());
        for (worker, line) in lines.iter().enumerate() {
            let queues: Vec<_> = (0..line.queues()).map(|at| line.queue(at)).collect();
            assert_eq!(queues, [(0, worker as u32), (1, worker as u32)]);
        }
        // More rounds than there are frames: none is lost on the way.
        let start = Instant::now();
        for round in 0..500 {
            let sent: Vec<Vec<u8>> = (0..FRAMES).map(|n| frame(round * FRAMES + n)).collect();
            sent.iter().for_each(|f| wires[0].send(f).expect("it sends"));
            let (mut forwarded, mut back) = (0, Vec::new());
            while forwarded < FRAMES || back.len() < FRAMES {
                assert!(
                    start.elapsed() < Duration::from_secs(60),
                    "round {round}: {forwarded}, {}",
                    back.len()
                );
                for line in &mut *lines {
                    let mut came = Vec::new();
                    line.receive(0, 64, |part| came.push(part)).expect("it receives");
                    for ReceivedPart { frame, place, .. } in came {
                        let from = (place.start - frame.offset()) as usize;
                        match line.bytes(&frame)[from + 12..from + 14] == [0x88, 0xb5] {
                            true => {
                                line.send(1, frame, place).expect("there is room");
                                forwarded += 1;
                            }
                            false => line.give_back(frame),
                        }
                    }
                    line.flush(1).expect("it sends");
                }
                while let Some(f) = wires[1].receive().expect("it receives") {
                    if f[12..14] == [0x88, 0xb5] {
                        back.push(f);
                    }
                }
            }
            assert!(back.iter().all(|f| sent.contains(f)), "round {round}");
        }
        assert_eq!(interfaces.lost(), Default::default());
    });
}

#[test]
fn what_a_line_has_no_room_for_comes_back_and_frames_are_not_lost() {
    on_a_pair(1, |_, _| {
        let memory = &mut |length| {
            Ok(Arc::new(AnonymousMemory::new(length)?) as Arc<dyn millstream_ports::FrameMemory>)
        };
        let lines = XskQueuesConfig { workers: 1, at_hand: 8 };
        let mut interfaces =
            XdpInterfaces::open(&["ports1"], lines, &XskOptions::default(), memory).expect("it is free");
        let line = &mut interfaces.parts().1[0];
        for round in 0..3 {
            let (mut sent, refused) = (
                0,
                loop {
                    let frame = line.take();
                    let Some(frame) = frame else { break None };
                    let start = frame.offset();
                    if let Err(frame) = line.send(0, frame, start..start + 60) {
                        break Some(frame);
                    }
                    // Not flushed: the ring fills.
                },
            );
            let refused = refused.expect("the ring is full before the frames are all gone");
            let outside = refused.offset()..refused.offset() + 4097;
            let refused = line.send(0, refused, outside).expect_err("longer than its frame");
            line.give_back(refused);
            let start = Instant::now();
            while line.unsent() > 0 {
                line.flush(0).expect("it sends");
                assert!(start.elapsed() < Duration::from_secs(60), "round {round}");
                sent += 1;
            }
            assert!(sent > 0);
        }
    });
}

#[test]
fn interfaces_that_cannot_be_taken_are_left_as_they_are() {
    on_two_pairs(|_| {
        let memory = &mut |length| {
            Ok(Arc::new(AnonymousMemory::new(length)?) as Arc<dyn millstream_ports::FrameMemory>)
        };
        let mut open = |names: &[&str], workers, zero_copy| {
            let options = XskOptions { zero_copy, ..XskOptions::default() };
            XdpInterfaces::open(names, XskQueuesConfig { workers, at_hand: 8 }, &options, memory)
                .err()
                .expect("refused")
        };
        let many = open(&["ports1"], 3, ZeroCopy::Auto);
        assert!(matches!(many, PortError::Queues { queues: 2, workers: 3, .. }), "{many}");
        let twice = open(&["ports1", "ports1"], 1, ZeroCopy::Auto);
        assert!(matches!(twice, PortError::Twice { .. }), "{twice}");
        let copied = open(&["ports1"], 1, ZeroCopy::Always);
        assert!(matches!(copied, PortError::NoZeroCopy { .. }), "{copied}");
        let own = XdpPort::open("ports3", &XskOptions::default()).expect("it is free");
        let taken = open(&["ports1", "ports3"], 1, ZeroCopy::Auto);
        assert!(taken.is_taken(), "{taken}");
        drop(own);
        for name in ["ports1", "ports3"] {
            let index = millstream_kernel::interface_index(name).expect("it is there");
            assert!(query_xdp(index).expect("asked").is_none(), "{name} has its program still");
        }
        drop(two(&XskOptions::default()).expect("all are free again"));
    });
}

#[test]
fn an_interface_that_goes_is_noticed() {
    on_a_pair(1, |near, _| {
        let mut port = open("ports1");
        port.receive(64, &mut |_| {}).expect("it is there");
        delete_interface(near).expect("it goes, and its other end");
        let start = Instant::now();
        let gone = loop {
            if let Err(e) = port.wait(Duration::from_millis(10)) {
                break e;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nobody says so");
        };
        assert!(gone.to_string().contains("ports1"), "{gone}");
    });
}

#[test]
fn what_finds_no_free_frame_is_lost_once() {
    on_a_pair(1, |near, _| {
        let wire = PacketSocket::open(near).expect("a socket");
        let mut port = open("ports1");
        let start = Instant::now();
        let mut sent = 0;
        // Nobody receives: frames run out.
        while port.lost().no_room == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "{sent} packets found room");
            for n in 0..FRAMES {
                wire.send(&frame(n)).expect("it sends");
                sent += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(port.lost().unfit, 0);
        let mut received = 0;
        while let got @ 1.. = port.receive(64, &mut |_| {}).expect("it receives") {
            received += got;
        }
        assert!(received >= 2048 && received < sent, "{received} of {sent}");
    });
}

/// A pair whose ends have this MTU.
fn on_a_pair_of_mtu(mtu: u32, f: impl FnOnce(u32, u32) + Send) {
    on_a_pair(1, |near, far| {
        for end in [near, far] {
            set_mtu(end, mtu).expect("an MTU that veth has");
        }
        f(near, far);
    });
}

/// A frame of this length, with other bytes in each place.
fn long_frame(n: usize, length: usize) -> Vec<u8> {
    let mut long = frame(n);
    long.resize(18, 0);
    long.extend((18..length).map(|at| (at * 7 + at / 251 + n) as u8));
    long
}

#[test]
fn packets_longer_than_a_frame_are_received_and_sent_in_several() {
    on_a_pair_of_mtu(9000, |near, _| {
        let wire = PacketSocket::open(near).expect("a socket");
        let mut port = open("ports1");
        if let Some(why) = port.interface().scatter().refusal() {
            assert_eq!(port.interface().scatter(), ScatterMode::NoKernel, "{why}");
            return;
        }
        assert_eq!(port.interface().scatter(), ScatterMode::On);
        // Around the ends of frames, which hold 3,840 bytes each way in and 4,096 out.
        let lengths = [60, 3520, 3521, 3840, 3841, 4096, 4097, 7680, 7681, 8192, 8193, 9014];
        // More rounds than there are frames.
        for round in 0..600 {
            let sent: Vec<Vec<u8>> =
                lengths.iter().map(|&length| long_frame(round + length, length)).collect();
            sent.iter().for_each(|f| wire.send(f).expect("it sends"));
            let got = received(&mut port, sent.len());
            assert!(got == sent, "round {round}: {:?}", got.iter().map(Vec::len).collect::<Vec<_>>());
            for f in &got {
                assert!(port.send(f), "there is room");
            }
            port.flush().expect("it sends");
            let (mut back, start) = (Vec::new(), Instant::now());
            while back.len() < sent.len() && start.elapsed() < Duration::from_secs(60) {
                match wire.receive().expect("it receives") {
                    Some(f) if f[12..14] == [0x88, 0xb5] => back.push(f),
                    Some(_) => {}
                    None => port.flush().expect("it sends"),
                }
            }
            assert!(back == sent, "round {round}: {:?}", back.iter().map(Vec::len).collect::<Vec<_>>());
        }
        assert_eq!(port.lost(), Default::default());
        assert!(!port.send(&[0; 18 * 4096 + 1]), "longer than a packet can be");
    });
}

#[test]
fn packets_of_interfaces_with_a_usual_mtu_are_in_one_frame() {
    on_a_pair(1, |_, _| {
        let mut port = open("ports1");
        assert_eq!(port.interface().scatter(), ScatterMode::Unneeded);
        assert!(!port.send(&[0; 4097]));
    });
}

#[test]
fn an_interface_that_is_down_is_waited_for() {
    on_a_pair(1, |near, far| {
        let wire = PacketSocket::open(near).expect("a socket");
        let mut port = open("ports1");
        let mut sent = 0;
        for round in 0..3 {
            set_down(far).expect("down");
            for n in 0..FRAMES {
                sent += usize::from(port.send(&frame(n)));
                port.flush().expect("it is down, and not gone");
                port.receive(64, &mut |_| {}).expect("it is down, and not gone");
            }
            port.wait(Duration::from_millis(1)).expect("it is down, and not gone");
            set_up(far).expect("up");
            let start = Instant::now();
            let mut back = 0;
            while back < FRAMES || port.unsent() > 0 {
                assert!(start.elapsed() < Duration::from_secs(60), "round {round}: {back} of {FRAMES}");
                port.flush().expect("it sends");
                // An error is the other end's report, once, that it had no carrier.
                if let Ok(Some(f)) = wire.receive() {
                    back += usize::from(f[12..14] == [0x88, 0xb5]);
                }
            }
        }
        assert_eq!(sent, 3 * FRAMES);
    });
}
