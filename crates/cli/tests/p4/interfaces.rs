//! A switch on interfaces: a host's IP stack answers through it, also after its port vanished and came back.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_kernel::{
    Namespace, PacketSocket, create_veth, delete_interface, interface_index, set_up_pair, testing,
};

use crate::common::Files;

/// The router of `programs/p4`.
const ROUTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/p4/router.p4");
/// Both networks, as the P4 tutorials write entries.
const ROUTES: &str = r#"{"table_entries": [
    {"table": "Routing.routes", "match": {"hdr.ipv4.destination": ["10.0.1.0", 24]},
     "action_name": "Routing.forward", "action_params": {"next_hop": "08:00:00:00:01:11", "port": 1}},
    {"table": "Routing.routes", "match": {"hdr.ipv4.destination": ["10.0.2.0", 24]},
     "action_name": "Routing.forward", "action_params": {"next_hop": "08:00:00:00:02:22", "port": 2}}]}"#;
/// Address of the switch in both networks, and of the host that asks.
const SWITCH: [u8; 6] = [8, 0, 0, 0, 1, 0];
const ASKING: [u8; 6] = [8, 0, 0, 0, 1, 0x11];
/// Longest wait for what has to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sum of the words of a header as RFC 1071 has it; 0 for a header with its checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + sum) as u16
}

/// A frame with an echo request to 10.0.2.2.
fn request(sequence: u16) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x51, 0x52];
    icmp.extend(sequence.to_be_bytes());
    icmp.extend(0..48u8);
    let sum = checksum(&icmp).to_be_bytes();
    icmp[2..4].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0, 0, 20 + icmp.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 1, 1, 10, 0, 2, 2];
    let sum = checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    [&SWITCH[..], &ASKING, &[8, 0], &ip, &icmp].concat()
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// Both ends of port 2: that of the switch, and that of a host with an IP stack.
fn connect_host() {
    set_up_pair(create_veth("p4s2", "p4h2", 1).unwrap()).unwrap();
    for words in [
        "link set p4h2 address 08:00:00:00:02:22",
        "addr add 10.0.2.2/24 dev p4h2",
        "neigh replace 10.0.2.20 lladdr 08:00:00:00:02:00 dev p4h2",
        "route replace 10.0.1.0/24 via 10.0.2.20 dev p4h2",
    ] {
        ip(words);
    }
}

/// A switch that runs.
struct RunningSwitch(Child);

impl RunningSwitch {
    fn start(namespace: &Namespace, files: &Files, flags: &[&str]) -> RunningSwitch {
        let entries = files.path("routes.json");
        std::fs::write(&entries, ROUTES).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(["p4", "run", ROUTER, "-i", "1@p4s1", "-i", "2@p4s2", "--runtime-json", &entries]);
        command.args(["--cli", "127.0.0.1:0", "--on"]).args(flags).stderr(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn().unwrap()).unwrap();
        let mut line = String::new();
        let mut text = BufReader::new(child.stderr.take().unwrap());
        text.read_line(&mut line).unwrap();
        assert!(line.starts_with("commands at "), "{line}");
        child.stderr = Some(text.into_inner());
        RunningSwitch(child)
    }

    /// Ends it as Ctrl-C does; returns what it said last.
    fn interrupt(mut self) -> String {
        assert!(Command::new("kill").args(["-INT", &self.0.id().to_string()]).status().unwrap().success());
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0), "{text}");
        text
    }
}

impl Drop for RunningSwitch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until an answer comes, and checks the answer; returns the number of requests.
fn ask(wire: &PacketSocket, first: u16) -> u16 {
    let start = Instant::now();
    for sequence in first.. {
        wire.send(&request(sequence)).unwrap();
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            PacketSocket::wait(std::slice::from_ref(wire), Duration::from_millis(20)).unwrap();
            let Some(frame) = wire.receive().unwrap() else { continue };
            let is_answer = frame.len() >= 42 && frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 0;
            if !is_answer || frame[40..42] != sequence.to_be_bytes() {
                continue;
            }
            assert_eq!((&frame[..6], &frame[26..34]), (&ASKING[..], &[10, 0, 2, 2, 10, 0, 1, 1][..]));
            assert_eq!((frame[22], checksum(&frame[14..34]), checksum(&frame[34..])), (63, 0, 0));
            return sequence - first + 1;
        }
        assert!(start.elapsed() < PATIENCE, "no answer to {} requests", sequence - first + 1);
    }
    unreachable!("a range without end")
}

/// Runs the router by this execution and further flags; returns what it said at the end.
fn routed(flags: &[&str]) -> Option<String> {
    if !testing::require() {
        return None;
    }
    let files = Files::new(&format!("p4-interfaces-{}", flags.concat()));
    let namespace = Namespace::new().unwrap();
    let wire = namespace.enter(|| {
        ip("link set lo up");
        let ends = create_veth("p4s1", "p4h1", 1).unwrap();
        set_up_pair(ends).unwrap();
        connect_host();
        PacketSocket::open(ends.1).unwrap()
    });
    let wire = wire.unwrap();
    let switch = RunningSwitch::start(&namespace, &files, flags);
    for number in 0..20 {
        ask(&wire, number * 100);
    }
    namespace.enter(|| delete_interface(interface_index("p4s2").unwrap()).unwrap()).unwrap();
    wire.send(&request(2100)).unwrap();
    namespace.enter(connect_host).unwrap();
    ask(&wire, 2200);
    let said = switch.interrupt();
    let line = said.lines().find(|line| line.starts_with("port 1: ")).unwrap_or_else(|| panic!("{said}"));
    let counts: Vec<u64> = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [1, received, 0, sent, 0] = counts[..] else { panic!("{said}") };
    assert!(received >= 22 && sent >= 21, "{said}");
    Some(said)
}

#[test]
fn an_interpreted_router_forwards_between_interfaces() {
    routed(&["interpreter"]);
}

#[test]
fn a_native_router_forwards_between_interfaces() {
    routed(&["native"]);
}

#[test]
fn an_adapted_router_forwards_between_interfaces_and_reports() {
    let Some(said) = routed(&["native", "--adapt"]) else { return };
    assert!(said.contains("adaptation: ended") && said.contains(" 0 differences"), "{said}");
}
