//! Truncated and random packets through every program of the tests: no panic, no fault.

mod common;

use common::{TestRandom, lowered, program_files, switch};
use millstream_p4_switch::SwitchError;

#[test]
fn hostile_packets_neither_panic_nor_fault() {
    let mut random = TestRandom(0x0123_4567_89ab_cdef);
    for file in program_files("stf") {
        let path = file.with_extension("p4");
        let program = lowered(&path.to_string_lossy(), None).unwrap();
        let mut switch = switch(&program);
        for round in 0..200 {
            let packet = random.bytes(round % 97);
            match switch.receive(random.next() % 512, &packet) {
                Ok(_) | Err(SwitchError::Endless) => {}
                Err(error) => panic!("{}: {error} on {packet:02x?}", path.display()),
            }
        }
    }
}
