//! Truncated and random packets through every program of the tests: no panic, no fault.

use millstream_p4_switch::SwitchError;
use millstream_rng::Rng;

use crate::common::{bytes, lowered, program_files, switch};

#[test]
fn hostile_packets_neither_panic_nor_fault() {
    let mut random = Rng::new(2);
    for file in program_files("stf") {
        let path = file.with_extension("p4");
        let program = lowered(&path.to_string_lossy(), None).unwrap();
        let mut switch = switch(&program);
        for round in 0..200 {
            let packet = bytes(&mut random, round % 97);
            match switch.receive(random.next_u64() % 512, &packet) {
                Ok(_) | Err(SwitchError::Endless) => {}
                Err(error) => panic!("{}: {error} on {packet:02x?}", path.display()),
            }
        }
    }
}
