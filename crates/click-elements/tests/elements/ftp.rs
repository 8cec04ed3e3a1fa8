//! FTP through address translation: addresses at which clients wait for data, and sequence numbers behind a
//! command that has become longer.

use crate::common::{Bed, packet, pseudo, seal, sealed};

const CLIENT: [u8; 4] = [10, 0, 0, 2];
const SERVER: [u8; 4] = [198, 51, 100, 9];
const OUTSIDE: [u8; 4] = [192, 0, 2, 101];

const CONFIGURATION: &str = "FromDump(a) -> MarkIPHeader -> f :: FTPPortMapper(control, data, 0) \
    -> control :: TCPRewriter(pattern 192.0.2.101 4000-4000 - - 0 1, drop)
    -> ToDump(0); data :: IPRewriter(pattern 192.0.2.101 50001-50009# - - 0 1, drop);
    FromDump(b) -> MarkIPHeader -> c :: IPClassifier(src port 20, -) -> [1] data; c[1] -> [1] control; \
        control[1] -> ToDump(1); data[1] -> ToDump(2);
    Idle -> data; data[0] -> Discard";

/// A segment with numbers and text.
fn segment(ends: [[u8; 4]; 2], ports: [u16; 2], [seq, ack]: [u32; 2], text: &[u8]) -> Vec<u8> {
    let mut packet = packet(6, ends, ports, 0x18);
    packet[24..28].copy_from_slice(&seq.to_be_bytes());
    packet[28..32].copy_from_slice(&ack.to_be_bytes());
    packet.extend(text);
    packet[3] = packet.len() as u8;
    let more = pseudo(&packet);
    seal(&mut packet[20..], 16, more);
    seal(&mut packet[..20], 10, 0);
    packet
}

fn from_client(numbers: [u32; 2], text: &str) -> Vec<u8> {
    segment([CLIENT, SERVER], [6587, 21], numbers, text.as_bytes())
}

fn from_server(numbers: [u32; 2], text: &str) -> Vec<u8> {
    segment([SERVER, OUTSIDE], [21, 4000], numbers, text.as_bytes())
}

/// Numbers and text of the one segment that is sent of one.
fn through(bed: &mut Bed, inside: bool, packet: Vec<u8>) -> ([u32; 2], String) {
    let packets = [packet];
    let mut sent = bed.at(1, if inside { [&packets, &[]] } else { [&[], &packets] });
    assert_eq!(sent.len(), 1);
    let packet = sent.remove(0).1;
    assert!(sealed(&packet), "{packet:02x?}");
    assert_eq!(usize::from(packet[3]), packet.len());
    let number = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"));
    ([number(24), number(28)], String::from_utf8(packet[40..].to_vec()).expect("text"))
}

#[test]
fn data_connections_find_the_client_and_the_stream_stays_whole() {
    let mut bed = Bed::new(CONFIGURATION);
    assert_eq!(
        through(&mut bed, true, from_client([1000, 5], "USER x\r\n")),
        ([1000, 5], "USER x\r\n".into())
    );
    // 19 bytes become 25: 192.0.2.101 and port 50001.
    let command = "PORT 10,0,0,2,3,9\r\n";
    let said = "PORT 192,0,2,101,195,81\r\n";
    let grown = (said.len() - command.len()) as u32;
    let end = 1008 + command.len() as u32;
    assert_eq!(through(&mut bed, true, from_client([1008, 5], command)), ([1008, 5], said.into()));
    assert_eq!(
        through(&mut bed, true, from_client([1008, 5], command)),
        ([1008, 5], said.into()),
        "sent again"
    );
    // The data come from port 20 to where the client was said to wait, and reach it where it does.
    let data = segment([SERVER, OUTSIDE], [20, 50001], [1, 0], b"data");
    let sent = bed.at(1, [&[], &[data]]);
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].0, &sent[0].1[16..20], &sent[0].1[22..24]),
        (2, &CLIENT[..], &777u16.to_be_bytes()[..])
    );
    assert!(sealed(&sent[0].1));
    // Acknowledgements up to the command are unchanged, and behind it they are lower.
    assert_eq!(through(&mut bed, false, from_server([5, 1008], "")).0, [5, 1008]);
    assert_eq!(through(&mut bed, false, from_server([5, end + grown], "200 OK\r\n")).0, [5, end]);
    // Later bytes have later numbers.
    assert_eq!(through(&mut bed, true, from_client([end, 13], "LIST\r\n")).0, [end + grown, 13]);
    let shorter = "PORT 10,0,0,2,003,010\r\n";
    let (numbers, text) = through(&mut bed, true, from_client([end + 6, 13], shorter));
    assert_eq!((numbers, text.as_str()), ([end + 6 + grown, 13], "PORT 192,0,2,101,195,82\r\n"));
    let more = grown + (text.len() - shorter.len()) as u32;
    let end = end + 6 + shorter.len() as u32;
    assert_eq!(through(&mut bed, true, from_client([end, 13], "QUIT\r\n")).0, [end + more, 13]);
    assert_eq!(through(&mut bed, false, from_server([13, end + more], "")).0, [13, end]);
}

#[test]
fn what_is_no_command_or_is_about_somebody_else_stays() {
    for text in [
        "PORT 10,0,0,2,3\r\n",
        "PORT 10,0,0,2,3,9,1\r\n",
        "PORT 10,0,0,2,3,256\r\n",
        "PORT 10,0,0,2,3,0009\r\n",
        "PORT 10,0,0,2,3,,9\r\n",
        "PORT 10,0,0,9,3,9\r\n",
        "PORT 10,0,0,2,3,9\r\nLIST\r\n",
        "PORT 10,0,0,2,3,9\r",
        "PORT 10,0,0,2,3,9",
        "PORT ",
        "PASV\r\n",
    ] {
        let mut bed = Bed::new(CONFIGURATION);
        assert_eq!(through(&mut bed, true, from_client([7, 8], text)), ([7, 8], text.into()));
        let later = through(&mut bed, true, from_client([70, 8], "x"));
        assert_eq!(later.0, [70, 8], "{text}");
    }
    let mut feed = Bed::new(CONFIGURATION);
    assert_eq!(
        through(&mut feed, true, from_client([7, 8], "PORT 10,0,0,2,3,9\n")).1,
        "PORT 192,0,2,101,195,81\n"
    );
}
