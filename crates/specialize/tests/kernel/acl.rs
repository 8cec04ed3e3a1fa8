//! The fixtures `acl` and `hosts`: the effect of an entry on a packet, and the answer of a program.

use millstream_kernel::{KernelProgram, TestRun};

/// Verdict for packets with an entry.
pub(crate) const TX: u32 = 3;

/// The key of a frame's rule: both addresses and the protocol.
pub(crate) fn key(frame: &[u8]) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&frame[26..34]);
    key[8] = frame[23];
    key
}

/// An entry: this verdict, and these first bytes of the frame.
pub(crate) fn entry(verdict: u32, n: u32) -> Vec<u8> {
    [&verdict.to_ne_bytes()[..], &n.to_ne_bytes(), &[1, 2, 3, 4]].concat()
}

/// The number of the entry that a program finds for a frame and sends it out again with.
pub(crate) fn answer(program: &KernelProgram, frame: &[u8]) -> Option<u32> {
    let out = program.test_run(&TestRun::packet(frame)).expect("a test run");
    (out.retval == TX).then(|| u32::from_ne_bytes(out.data[..4].try_into().expect("a frame")))
}
