//! Packet sockets at the ends of a veth pair.

use millstream_kernel::{Namespace, PacketSocket, create_veth, set_up_pair, testing};

/// The kernel's usual room, 208 KiB, is that of about 270 short frames. On a busy machine frames are lost in front
/// of the socket, where at most 1,000 wait for a processor (`net.core.netdev_max_backlog`).
#[test]
fn frames_wait_for_a_reader_that_is_late() {
    if !testing::require() {
        return;
    }
    let counts = Namespace::new().unwrap().enter(|| {
        let (near, far) = create_veth("near", "far", 1).unwrap();
        set_up_pair((near, far)).unwrap();
        let (sender, reader) = (PacketSocket::open(near).unwrap(), PacketSocket::open(far).unwrap());
        let mut frame = [0u8; 64];
        // An experimental type of frame (IEEE 802), which the stack does not answer.
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        for _ in 0..5_000 {
            sender.send(&frame).unwrap();
        }
        // The stack has frames of its own.
        let read = std::iter::from_fn(|| reader.receive().unwrap());
        (read.filter(|read| read[..] == frame).count(), reader.take_drop_count().unwrap())
    });
    let (read, lost) = counts.unwrap();
    assert_eq!(lost, 0, "{read} were read");
    assert!(read >= 900, "{read}");
}
