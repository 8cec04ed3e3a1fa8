//! Lines about packets.

use std::net::Ipv4Addr;

use super::fields::{ICMP_CODES, ICMP_TYPES, SummaryField as Field, TCP_FLAGS};
use super::{ip_options, md5, tcp_options};

/// Facts about a packet that are not in its bytes.
pub(crate) struct PacketNotes {
    /// Nanoseconds, which may be negative.
    pub(crate) time: i64,
    pub(crate) paint: u8,
    pub(crate) aggregate: u32,
}

/// Headers of a packet, as far as they are there.
struct PacketHeaders<'p> {
    /// From the IP header on, at least 20 bytes.
    ip: &'p [u8],
    /// From the transport header on; empty in fragments but the first.
    transport: &'p [u8],
    /// Bytes of the packet behind the IP header, as its length says.
    carried: usize,
    protocol: u8,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// 16 bits, if they are there.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

impl<'p> PacketHeaders<'p> {
    /// Those of an IPv4 packet.
    fn of(ip: &'p [u8]) -> Option<PacketHeaders<'p>> {
        let first = ip.first().copied().filter(|first| first >> 4 == 4)?;
        let header = usize::from(first & 15) * 4;
        let (length, fragment) = (usize::from(half(ip, 2)?), half(ip, 6)?);
        if header < 20 || ip.len() < 20 {
            return None;
        }
        let carried = length.saturating_sub(header);
        let rest = ip.get(header..).unwrap_or_default();
        let transport = if fragment & 0x1fff == 0 { &rest[..rest.len().min(carried)] } else { &[] };
        Some(PacketHeaders { ip, transport, carried, protocol: ip[9] })
    }

    fn of_protocol(&self, protocol: u8) -> Option<&'p [u8]> {
        (self.protocol == protocol).then_some(self.transport)
    }

    fn port(&self, at: usize) -> Option<u16> {
        [TCP, UDP].contains(&self.protocol).then(|| half(self.transport, at))?
    }

    /// Length of the transport header.
    fn transport_length(&self) -> usize {
        match (self.protocol, self.transport) {
            (_, []) => 0,
            (TCP, transport) => transport.get(12).map_or(0, |offset| usize::from(offset >> 4) * 4),
            (UDP, _) => 8,
            _ => 0,
        }
    }

    /// ICMP messages about echoes, whose header has an identifier and a number.
    fn echo(&self, at: usize) -> Option<u16> {
        let message = self.of_protocol(ICMP)?;
        [0, 8, 13, 14, 15, 16, 17, 18].contains(message.first()?).then(|| half(message, at))?
    }
}

/// The header of a packet that is wrong or not all there, if there is one; `packet` begins with the IP
/// header.
pub(crate) fn bad_header(packet: Option<&[u8]>) -> Option<&'static str> {
    let Some(packet) = packet else { return Some("no IP header") };
    let Some(headers) = PacketHeaders::of(packet) else {
        return Some(if packet.len() < 20 { "truncated IP" } else { "IP header" });
    };
    let is_first = half(packet, 6).is_some_and(|fragment| fragment & 0x1fff == 0);
    match headers.protocol {
        TCP if is_first && headers.transport.len() < 20 => Some("truncated TCP"),
        UDP if is_first && headers.transport.len() < 8 => Some("truncated UDP"),
        _ => None,
    }
}

/// The line about a packet, without its end; `packet` begins with the IP header.
pub(crate) fn summary_line(fields: &[Field], packet: Option<&[u8]>, about: &PacketNotes) -> Vec<u8> {
    let headers = packet.and_then(PacketHeaders::of);
    let mut line = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        if at > 0 {
            line.push(b' ');
        }
        let text = of_notes(*field, about).or_else(|| match (field, &headers) {
            (_, None) => None,
            (Field::Payload, Some(headers)) => Some(quoted(payload(headers))),
            (Field::PayloadDigest, Some(headers)) => Some(md5::letters_text(payload(headers))),
            (Field::PayloadDigestHex, Some(headers)) => Some(md5::hex_text(payload(headers))),
            (field, Some(headers)) => of_headers(*field, headers),
        });
        line.extend_from_slice(text.as_deref().unwrap_or("-").as_bytes());
    }
    line
}

fn of_notes(field: Field, about: &PacketNotes) -> Option<String> {
    let (seconds, rest) = (about.time.div_euclid(1_000_000_000), about.time.rem_euclid(1_000_000_000));
    Some(match field {
        Field::Timestamp => seconds_text(about.time),
        Field::Seconds => seconds.to_string(),
        Field::Microseconds => (rest / 1000).to_string(),
        Field::AllMicroseconds => (about.time / 1000).to_string(),
        Field::Count => "1".to_owned(),
        Field::Direction if about.paint == 0 => ">".to_owned(),
        Field::Direction if about.paint == 1 => "<".to_owned(),
        Field::Direction | Field::Link => about.paint.to_string(),
        Field::Aggregate => about.aggregate.to_string(),
        _ => return None,
    })
}

fn of_headers(field: Field, headers: &PacketHeaders<'_>) -> Option<String> {
    let ip = headers.ip;
    let address = |at| word(ip, at).map(|address| Ipv4Addr::from(address).to_string());
    let number = |value: Option<u16>| value.map(|value| value.to_string());
    let byte = |at: usize| ip.get(at).map(u8::to_string);
    match field {
        Field::Source => address(12),
        Field::Destination => address(16),
        Field::Fragment | Field::FragmentOffset => fragment(field, half(ip, 6)?),
        Field::Length => number(half(ip, 2)),
        Field::Protocol => Some(match headers.protocol {
            TCP => "T".to_owned(),
            UDP => "U".to_owned(),
            ICMP => "I".to_owned(),
            other => other.to_string(),
        }),
        Field::IpOptions => {
            let end = usize::from(ip[0] & 15) * 4;
            ip.get(20..end).map(ip_options::text)
        }
        Field::HeaderLength => Some((usize::from(ip[0] & 15) * 4).to_string()),
        Field::Identification => number(half(ip, 4)),
        Field::Service => byte(1),
        Field::Codepoint => ip.get(1).map(|service| (service >> 2).to_string()),
        Field::Congestion => {
            ip.get(1).map(|service| ["no", "ect1", "ect2", "ce"][usize::from(service & 3)].to_owned())
        }
        Field::TimeToLive => byte(8),
        Field::Checksum => number(half(ip, 10)),
        Field::SourcePort => number(headers.port(0)),
        Field::DestinationPort => number(headers.port(2)),
        Field::UdpLength => number(half(headers.of_protocol(UDP)?, 4)),
        Field::PayloadLength => Some(headers.carried.saturating_sub(headers.transport_length()).to_string()),
        Field::CaptureLength => Some(ip.len().min(usize::from(half(ip, 2)?)).to_string()),
        _ => of_tcp(field, headers).or_else(|| of_icmp(field, headers)),
    }
}

fn fragment(field: Field, fragment: u16) -> Option<String> {
    let (offset, more, whole) = (fragment & 0x1fff, fragment & 0x2000 != 0, fragment & 0x4000 != 0);
    if field == Field::FragmentOffset {
        let flags = [(more, "+"), (whole, "!")].map(|(set, flag)| if set { flag } else { "" }).concat();
        return Some(format!("{}{flags}", u32::from(offset) << 3));
    }
    Some(
        match (offset, more, whole) {
            (0, true, _) => "F",
            (0, false, true) => "!",
            (0, false, false) => ".",
            _ => "f",
        }
        .to_owned(),
    )
}

fn of_tcp(field: Field, headers: &PacketHeaders<'_>) -> Option<String> {
    let tcp = headers.of_protocol(TCP)?;
    match field {
        Field::Sequence => word(tcp, 4).map(|number| number.to_string()),
        Field::Acknowledgement => word(tcp, 8).map(|number| number.to_string()),
        Field::TcpOffset => tcp.get(12).map(|offset| (u32::from(offset >> 4) * 4).to_string()),
        Field::TcpFlags => half(tcp, 12).map(|bits| {
            let set = TCP_FLAGS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
            let letters: String = set.map(|(_, letter)| char::from(*letter)).collect();
            if letters.is_empty() { ".".to_owned() } else { letters }
        }),
        Field::TcpOptions | Field::TcpOptionsButTime | Field::TcpSack => {
            let end = usize::from(tcp.get(12)? >> 4) * 4;
            tcp.get(20..end).map(|options| tcp_options::text(options, field))
        }
        Field::Window => half(tcp, 14).map(|number| number.to_string()),
        Field::Urgent => half(tcp, 18).map(|number| number.to_string()),
        _ => None,
    }
}

fn of_icmp(field: Field, headers: &PacketHeaders<'_>) -> Option<String> {
    let message = headers.of_protocol(ICMP)?;
    let (kind, code) = (*message.first()?, *message.get(1)?);
    match field {
        Field::IcmpType => Some(kind.to_string()),
        Field::IcmpCode => Some(code.to_string()),
        Field::IcmpTypeName => {
            let named = ICMP_TYPES.iter().find(|(_, number)| *number == kind);
            Some(named.map_or_else(|| kind.to_string(), |(name, _)| (*name).to_owned()))
        }
        Field::IcmpCodeName => {
            let named = ICMP_CODES.iter().find(|(of, _, number)| *of == kind && *number == code);
            Some(named.map_or_else(|| code.to_string(), |(_, name, _)| (*name).to_owned()))
        }
        Field::IcmpFlow => headers.echo(4).map(|number| number.to_string()),
        Field::IcmpSequence => headers.echo(6).map(|number| number.to_string()),
        Field::IcmpNextMtu if (kind, code) == (3, 4) => half(message, 6).map(|number| number.to_string()),
        _ => None,
    }
}

/// The bytes behind all headers.
fn payload<'p>(headers: &PacketHeaders<'p>) -> &'p [u8] {
    let header = usize::from(headers.ip[0] & 15) * 4;
    let end = headers.ip.len().min(header + headers.carried);
    headers.ip.get(header + headers.transport_length()..end).unwrap_or_default()
}

/// Bytes quoted as Click quotes strings.
fn quoted(payload: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in payload {
        text += &match byte {
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'\t' => "\\t".to_owned(),
            b'"' | b'\\' | b'$' => format!("\\{}", char::from(*byte)),
            32..=126 => char::from(*byte).to_string(),
            _ => format!("\\{byte:03o}"),
        };
    }
    text + "\""
}

/// A time as seconds, with microseconds, or nanoseconds where these are needed.
pub fn seconds_text(time: i64) -> String {
    let (sign, whole) = (if time < 0 { "-" } else { "" }, time.unsigned_abs());
    let (seconds, rest) = (whole / 1_000_000_000, whole % 1_000_000_000);
    match rest % 1_000 {
        0 => format!("{sign}{seconds}.{:06}", rest / 1_000),
        _ => format!("{sign}{seconds}.{rest:09}"),
    }
}
