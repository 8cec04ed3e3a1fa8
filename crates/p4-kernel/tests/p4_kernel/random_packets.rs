//! Random packets through the kernel and the interpreter.

use millstream_kernel::testing;
use millstream_p4_kernel::KernelHook;
use millstream_p4_switch::stf::{StfCommand, run_stf};
use millstream_rng::Rng;

use crate::common::{interpreter_switch, kernel_switch, test_files};

/// Packets for each program and hook.
const PACKETS: u64 = 200;

/// A packet of a test with a few bytes changed, and another length; at least `least` bytes.
fn packet(random: &mut Rng, samples: &[Vec<u8>], least: usize) -> Vec<u8> {
    let mut packet = samples[random.below(samples.len() as u64) as usize].clone();
    let length = packet.len() as u64;
    match random.below(4) {
        0 => packet.truncate(random.below(length + 1) as usize),
        1 => packet.extend((0..random.below(64)).map(|_| random.next_u64() as u8)),
        _ => {}
    }
    for _ in 0..random.below(4) {
        let at = random.below(packet.len().max(1) as u64) as usize;
        if let Some(byte) = packet.get_mut(at) {
            *byte = random.next_u64() as u8;
        }
    }
    while packet.len() < least.max(1) {
        packet.push(random.next_u64() as u8);
    }
    packet
}

fn compare(name: &str, hook: KernelHook, least: usize) {
    let (path, commands) = test_files(name);
    let mut kernel = kernel_switch(&path, hook).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut interpreter = interpreter_switch(&path);
    let samples = commands.iter().filter_map(|line| match &line.command {
        StfCommand::Packet(_, data) => Some(data.clone()),
        _ => None,
    });
    let samples: Vec<Vec<u8>> = samples.collect();
    let is_entry = |command: &StfCommand| matches!(command, StfCommand::Add(..) | StfCommand::SetDefault(..));
    let settings: Vec<_> = commands.into_iter().filter(|line| is_entry(&line.command)).collect();
    run_stf(&mut kernel, &settings).unwrap();
    run_stf(&mut interpreter, &settings).unwrap();
    let mut random = Rng::new(7);
    for number in 0..PACKETS {
        let data = packet(&mut random, &samples, least);
        let port = random.below(8);
        let expected = interpreter.receive(port, &data).unwrap();
        let sent = kernel.receive(port, &data).unwrap_or_else(|error| panic!("{name}, {data:02x?}: {error}"));
        assert_eq!(sent, expected, "{name}, packet {number} on port {port}: {data:02x?}");
    }
}

#[test]
fn random_packets_leave_the_tc_program_as_they_leave_the_interpreter() {
    if !testing::require() {
        return;
    }
    for name in ["control", "express", "filter", "headers", "sets", "tables"] {
        compare(name, KernelHook::Tc, 1);
    }
}

#[test]
fn random_packets_leave_the_xdp_program_as_they_leave_the_interpreter() {
    if !testing::require() {
        return;
    }
    for name in ["control", "express", "filter", "headers", "sets", "tables"] {
        compare(name, KernelHook::Xdp, 64);
    }
}
