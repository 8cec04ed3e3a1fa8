//! Fields of lines, and what all lines of a source have in common.

use serde::{Deserialize, Serialize};

/// A field of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SummaryField {
    /// Time, in seconds with a fraction.
    Timestamp,
    /// Seconds of the time.
    Seconds,
    /// Microseconds of the time, behind the seconds.
    Microseconds,
    /// Time in microseconds.
    AllMicroseconds,
    /// Source address.
    Source,
    /// Destination address.
    Destination,
    /// Letter for the place among fragments.
    Fragment,
    /// Offset of a fragment in bytes, with its flags.
    FragmentOffset,
    /// Length of the IP packet.
    Length,
    /// Options of IP.
    IpOptions,
    /// Protocol, by number or letter.
    Protocol,
    /// Length of the IP header.
    HeaderLength,
    /// Identification.
    Identification,
    /// Type of service.
    Service,
    /// Codepoint of differentiated services.
    Codepoint,
    /// Congestion: `no`, `ect1`, `ect2` or `ce`.
    Congestion,
    /// Time to live.
    TimeToLive,
    /// Checksum of the IP header.
    Checksum,
    /// Source port.
    SourcePort,
    /// Destination port.
    DestinationPort,
    /// Sequence number of TCP.
    Sequence,
    /// Acknowledgement number of TCP.
    Acknowledgement,
    /// Length of the TCP header.
    TcpOffset,
    /// Flags of TCP, by letters.
    TcpFlags,
    /// Options of TCP.
    TcpOptions,
    /// Options of TCP but for timestamps.
    TcpOptionsButTime,
    /// Selective acknowledgements of TCP.
    TcpSack,
    /// Window of TCP.
    Window,
    /// Urgent pointer of TCP.
    Urgent,
    /// Length according to UDP.
    UdpLength,
    /// Type of an ICMP message.
    IcmpType,
    /// Code of an ICMP message.
    IcmpCode,
    /// Type of an ICMP message, by name if it has one.
    IcmpTypeName,
    /// Code of an ICMP message, by name if it has one.
    IcmpCodeName,
    /// Identifier of an echo.
    IcmpFlow,
    /// Sequence number of an echo.
    IcmpSequence,
    /// Maximum length that an ICMP message tells of.
    IcmpNextMtu,
    /// The bytes behind the headers, quoted.
    Payload,
    /// Their MD5 digest, as letters.
    PayloadDigest,
    /// Their MD5 digest in hexadecimal.
    PayloadDigestHex,
    /// Their number.
    PayloadLength,
    /// Number of bytes of the IP packet that are there.
    CaptureLength,
    /// Number of packets.
    Count,
    /// The paint: `>` for 0, `<` for 1.
    Direction,
    /// The paint.
    Link,
    /// The aggregate.
    Aggregate,
}

use SummaryField as Field;

/// Fields by their names in `!data` lines; behind these, other names that are read.
pub(super) const NAMES: &[(&str, SummaryField)] = &[
    ("timestamp", Field::Timestamp),
    ("ts_sec", Field::Seconds),
    ("ts_usec", Field::Microseconds),
    ("ts_usec1", Field::AllMicroseconds),
    ("ip_src", Field::Source),
    ("ip_dst", Field::Destination),
    ("ip_frag", Field::Fragment),
    ("ip_fragoff", Field::FragmentOffset),
    ("ip_len", Field::Length),
    ("ip_opt", Field::IpOptions),
    ("ip_proto", Field::Protocol),
    ("ip_hl", Field::HeaderLength),
    ("ip_id", Field::Identification),
    ("ip_tos", Field::Service),
    ("ip_dscp", Field::Codepoint),
    ("ip_ecn", Field::Congestion),
    ("ip_ttl", Field::TimeToLive),
    ("ip_sum", Field::Checksum),
    ("sport", Field::SourcePort),
    ("dport", Field::DestinationPort),
    ("tcp_seq", Field::Sequence),
    ("tcp_ack", Field::Acknowledgement),
    ("tcp_off", Field::TcpOffset),
    ("tcp_flags", Field::TcpFlags),
    ("tcp_opt", Field::TcpOptions),
    ("tcp_ntopt", Field::TcpOptionsButTime),
    ("tcp_sack", Field::TcpSack),
    ("tcp_window", Field::Window),
    ("tcp_urp", Field::Urgent),
    ("udp_len", Field::UdpLength),
    ("icmp_type", Field::IcmpType),
    ("icmp_code", Field::IcmpCode),
    ("icmp_type_name", Field::IcmpTypeName),
    ("icmp_code_name", Field::IcmpCodeName),
    ("icmp_flowid", Field::IcmpFlow),
    ("icmp_seq", Field::IcmpSequence),
    ("icmp_nextmtu", Field::IcmpNextMtu),
    ("payload", Field::Payload),
    ("payload_md5", Field::PayloadDigest),
    ("payload_md5_hex", Field::PayloadDigestHex),
    ("payload_len", Field::PayloadLength),
    ("ip_capture_len", Field::CaptureLength),
    ("count", Field::Count),
    ("direction", Field::Direction),
    ("link", Field::Link),
    ("aggregate", Field::Aggregate),
    ("paint", Field::Link),
    ("tcp_win", Field::Window),
    ("tcp_wind", Field::Window),
    ("src", Field::Source),
    ("dst", Field::Destination),
    ("frag", Field::Fragment),
    ("fragoff", Field::FragmentOffset),
    ("len", Field::Length),
    ("proto", Field::Protocol),
    ("hl", Field::HeaderLength),
    ("id", Field::Identification),
    ("tos", Field::Service),
    ("ttl", Field::TimeToLive),
    ("pkt_count", Field::Count),
];

impl SummaryField {
    /// The field of a name; words may be apart by blanks, and IP fields need no `ip_`.
    pub fn of_name(name: &str) -> Option<SummaryField> {
        let name = name.replace(' ', "_");
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, field)| *field)
    }

    /// Its name in the format.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, field)| *field == self).map_or("", |(name, _)| name)
    }

    /// The names of all fields.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }
}

/// Lines in front of the first packet.
pub fn summary_header(fields: &[SummaryField], banner: Option<&str>) -> String {
    let banner = banner.map_or(String::new(), |banner| format!("!creator \"{banner}\"\n"));
    let names: Vec<&str> = fields.iter().map(|field| field.name()).collect();
    format!("!IPSummaryDump 1.3\n{banner}!data {}\n", names.join(" "))
}

/// Origin of packets that are written as lines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SummarySource {
    /// The lines.
    pub input: SummaryInput,
    /// Fields of each line, until a line `!data` names others.
    pub fields: Vec<SummaryField>,
    /// Addresses and ports, source first, and the protocol, of packets that do not say them.
    pub flow: SummaryFlow,
    /// True if packets come at their times, and not as fast as they are taken.
    pub timing: bool,
    /// True if a line with a count of packets is as many packets.
    pub multiple: bool,
    /// True if packets have all bytes of their length, and right checksums; otherwise bytes that no field
    /// gives are left out, and checksums are zero.
    pub whole: bool,
    /// Number of packets of which the earliest one comes next.
    pub window: usize,
}

/// Lines of summaries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SummaryInput {
    /// In a file of this name; `-` is standard input.
    File(String),
    /// In a text.
    Text(String),
}

/// Addresses, ports and protocol, where lines do not say them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SummaryFlow {
    /// Source and destination.
    pub addresses: [u32; 2],
    /// Source and destination.
    pub ports: [u16; 2],
    /// Protocol.
    pub protocol: u8,
}

impl SummaryFlow {
    /// Reads `SRC SPORT DST DPORT [PROTO]`; a minus leaves a value as it is.
    pub fn parse(self, text: &str) -> Option<SummaryFlow> {
        let mut flow = self;
        let words: Vec<&str> = text.split_whitespace().collect();
        let ([source, from, destination, to] | [source, from, destination, to, _]) = words[..] else {
            return None;
        };
        for (place, text) in flow.addresses.iter_mut().zip([source, destination]) {
            *place = if text == "-" { *place } else { text.parse::<std::net::Ipv4Addr>().ok()?.into() };
        }
        for (place, text) in flow.ports.iter_mut().zip([from, to]) {
            *place = if text == "-" { *place } else { text.parse().ok()? };
        }
        if let Some(text) = words.get(4).filter(|text| **text != "-") {
            flow.protocol = protocol(text)?;
        }
        Some(flow)
    }
}

/// Bytes in front of a packet that was made of a line, in network order: its paint, its aggregate, the number
/// of bytes that its line leaves out, 4 bytes each; and, in 8 bytes, one nanosecond more than its time, or 0
/// if it has none.
pub const SUMMARY_PREFIX: usize = 20;

/// Types of ICMP messages by their names. Source: ipsumdump(1).
pub(super) const ICMP_TYPES: &[(&str, u8)] = &[
    ("echo-reply", 0),
    ("unreach", 3),
    ("sourcequench", 4),
    ("redirect", 5),
    ("echo", 8),
    ("routeradvert", 9),
    ("routersolicit", 10),
    ("timxceed", 11),
    ("paramprob", 12),
    ("tstamp", 13),
    ("tstamp-reply", 14),
    ("ireq", 15),
    ("ireq-reply", 16),
    ("maskreq", 17),
    ("maskreq-reply", 18),
];

/// Codes of ICMP messages by their names, each with the type.
pub(super) const ICMP_CODES: &[(u8, &str, u8)] = &[
    (3, "net", 0),
    (3, "host", 1),
    (3, "protocol", 2),
    (3, "port", 3),
    (3, "needfrag", 4),
    (3, "srcfail", 5),
    (5, "net", 0),
    (5, "host", 1),
    (5, "tosnet", 2),
    (5, "toshost", 3),
    (11, "transit", 0),
    (11, "reassembly", 1),
    (12, "erroratptr", 0),
    (12, "missingopt", 1),
    (12, "length", 2),
];

/// Letters of the flags of TCP, lowest bit first.
pub(super) const TCP_FLAGS: &[u8; 9] = b"FSRPAUECN";

/// Protocol by number, letter or name.
pub(super) fn protocol(text: &str) -> Option<u8> {
    match text {
        "T" | "tcp" | "TCP" => Some(6),
        "U" | "udp" | "UDP" => Some(17),
        "I" | "icmp" | "ICMP" => Some(1),
        number => number.parse().ok(),
    }
}
