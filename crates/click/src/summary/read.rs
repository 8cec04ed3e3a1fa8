//! Packets from lines.

use super::fields::{
    ICMP_CODES, ICMP_TYPES, SummaryField as Field, SummaryFlow, SummarySource, TCP_FLAGS, protocol,
};
use super::packet::{HEADER, LONGEST_HEADER, PacketFields};
use super::{ip_options, tcp_options};
use crate::config::unquote;

/// A packet that a line describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SummaryPacket {
    /// Nanoseconds, if the line says them.
    pub time: Option<u64>,
    /// [`SUMMARY_PREFIX`](super::SUMMARY_PREFIX) bytes, and the packet from its IP header on.
    pub bytes: Vec<u8>,
    /// Number of such packets.
    pub count: u64,
}

/// Reads lines; what some say about all that follow is kept.
#[derive(Clone, Debug)]
pub struct SummaryReader {
    fields: Vec<Field>,
    flow: SummaryFlow,
    aggregate: u32,
    /// True if offsets of fragments count eights of bytes.
    old_offsets: bool,
    multiple: bool,
    whole: bool,
}

/// Time to live of packets that do not say it.
const HOPS: u8 = 100;
/// Bytes of payload of a packet, at most.
const MOST_PAYLOAD: usize = 65_000;
/// Packets of a line, at most.
const MOST_PACKETS: u64 = 1 << 24;

/// A packet that is being read.
#[derive(Default)]
struct LinePacket {
    fields: PacketFields,
    seconds: Option<u64>,
    nanoseconds: u64,
    paint: u32,
    aggregate: u32,
    count: u64,
    /// Name or number of the code of an ICMP message, whose type may come behind it.
    code: Option<String>,
    payload_length: Option<usize>,
}

impl SummaryReader {
    /// Reads the lines of a source.
    pub fn new(source: &SummarySource) -> SummaryReader {
        SummaryReader {
            fields: source.fields.clone(),
            flow: source.flow,
            aggregate: 0,
            old_offsets: false,
            multiple: source.multiple,
            whole: source.whole,
        }
    }

    /// The packet that a line describes, if it does.
    ///
    /// # Errors
    /// Text about a field that cannot be read.
    pub fn line(&mut self, line: &str) -> Result<Option<SummaryPacket>, String> {
        let line = line.trim();
        if let Some(about) = line.strip_prefix('!') {
            return self.about(about).map(|()| None);
        }
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let mut packet = LinePacket { aggregate: self.aggregate, count: 1, ..LinePacket::default() };
        (packet.fields.ip.addresses, packet.fields.ports) = (self.flow.addresses, self.flow.ports);
        (packet.fields.ip.protocol, packet.fields.ip.hops) = (self.flow.protocol, HOPS);
        packet.fields.whole = self.whole;
        if self.fields.is_empty() {
            return Err("no line in front of this one says what its fields are: `!data FIELD...`".to_owned());
        }
        for (field, text) in self.fields.iter().zip(words(line)) {
            if text != "-" {
                let known = packet.set(*field, &text, self.old_offsets);
                known.ok_or_else(|| format!("`{text}` is no {}", field.name()))?;
            }
        }
        packet.finish(self.multiple).map(Some)
    }

    /// Reads a line about those that follow.
    fn about(&mut self, text: &str) -> Result<(), String> {
        let (what, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let wrong = || format!("`!{text}` cannot be read");
        match what {
            "data" | "contents" => {
                let field = |name: String| {
                    Field::of_name(&name).ok_or_else(|| format!("`{name}` is no field that is supported"))
                };
                self.fields = words(rest).into_iter().map(field).collect::<Result<_, _>>()?;
            }
            "proto" => self.flow.protocol = protocol(rest.trim()).ok_or_else(wrong)?,
            "flowid" => self.flow = self.flow.parse(rest).ok_or_else(wrong)?,
            "aggregate" => self.aggregate = rest.trim().parse().map_err(|_| wrong())?,
            "binary" => return Err("the binary form of summaries is not supported".to_owned()),
            "IPSummaryDump" => self.old_offsets = rest.trim() == "1.0",
            // Others are remarks.
            _ => {}
        }
        Ok(())
    }
}

/// Words, of which those in quotes may have blanks and escapes; they are without their quotes, and the
/// payload's bytes are Latin-1.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word) = (Vec::new(), String::new());
    let (mut quoted, mut escaped, mut began) = (false, false, false);
    for c in line.chars() {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' if quoted => {
                word.push(c);
                escaped = true;
            }
            '"' => {
                word.push(c);
                (quoted, began) = (!quoted, true);
            }
            c if c.is_whitespace() && !quoted => {
                if began {
                    all.push(std::mem::take(&mut word));
                }
                began = false;
            }
            c => {
                word.push(c);
                began = true;
            }
        }
    }
    all.extend(began.then_some(word));
    let plain = |word: String| {
        if !word.starts_with('"') {
            return word;
        }
        unquote(&word).into_iter().map(char::from).collect()
    };
    all.into_iter().map(plain).collect()
}

/// A number, decimal or hexadecimal.
fn number<N: TryFrom<u64>>(text: &str) -> Option<N> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    N::try_from(value).ok()
}

/// Seconds and nanoseconds of a time with a fraction.
fn time(text: &str) -> Option<(u64, u64)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let fraction = format!("{:0<9.9}", fraction);
    let seconds = if seconds.is_empty() && digits { 0 } else { seconds.parse().ok()? };
    Some((seconds, fraction.parse().ok().filter(|_| digits)?))
}

/// Bytes of a header, in words of four.
fn header_length(text: &str) -> Option<u8> {
    number(text).filter(|length: &u8| {
        (HEADER..=LONGEST_HEADER).contains(&usize::from(*length)) && length.is_multiple_of(4)
    })
}

fn flags(text: &str) -> Option<u16> {
    if text == "." {
        return Some(0);
    }
    if let Some(bits) = number(text) {
        return Some(bits);
    }
    let bit = |letter: u8| match letter {
        b'W' | b'Y' => Some(7),
        b'X' => Some(6),
        letter => TCP_FLAGS.iter().position(|known| *known == letter),
    };
    text.bytes().try_fold(0, |all, letter| Some(all | 1 << bit(letter)?))
}

impl LinePacket {
    /// Reads a field.
    fn set(&mut self, field: Field, text: &str, old_offsets: bool) -> Option<()> {
        let address = || text.parse::<std::net::Ipv4Addr>().ok().map(u32::from);
        let to = &mut self.fields;
        match field {
            Field::Timestamp => {
                let (seconds, rest) = time(text)?;
                (self.seconds, self.nanoseconds) = (Some(seconds), rest);
            }
            Field::Seconds => self.seconds = Some(number(text)?),
            Field::Microseconds => {
                self.nanoseconds = 1000 * number::<u64>(text).filter(|number| *number < 1_000_000)?;
            }
            Field::AllMicroseconds => {
                let all: u64 = number(text)?;
                (self.seconds, self.nanoseconds) = (Some(all / 1_000_000), all % 1_000_000 * 1000);
            }
            Field::Source => to.ip.addresses[0] = address()?,
            Field::Destination => to.ip.addresses[1] = address()?,
            Field::Length => to.ip.length = Some(number(text)?),
            Field::Protocol => to.ip.protocol = protocol(text)?,
            Field::Identification => to.ip.id = number(text)?,
            Field::Service => to.ip.service = number(text)?,
            Field::Codepoint => {
                to.ip.service =
                    to.ip.service & 3 | number::<u8>(text).filter(|codepoint| *codepoint < 64)? << 2;
            }
            Field::Congestion => {
                let names = ["no", "ect1", "ect2", "ce"];
                let bits = names.iter().position(|name| *name == text).or_else(|| number(text))?;
                to.ip.service = to.ip.service & !3 | (bits as u8 & 3);
            }
            Field::TimeToLive => to.ip.hops = number(text)?,
            Field::SourcePort => to.ports[0] = number(text)?,
            Field::DestinationPort => to.ports[1] = number(text)?,
            Field::Fragment | Field::FragmentOffset => self.set_fragment(field, text, old_offsets)?,
            Field::Payload => {
                to.payload = text.chars().map(|c| u32::from(c) as u8).collect();
                to.is_cut = true;
            }
            Field::PayloadLength => self.payload_length = Some(number(text)?),
            Field::Count => self.count = number(text)?,
            Field::Direction | Field::Link => {
                self.paint = match text {
                    ">" | "L" => 0,
                    "<" | "R" | "X" => 1,
                    text => number::<u8>(text)?.into(),
                };
            }
            Field::Aggregate => self.aggregate = number(text)?,
            Field::Checksum => to.ip.checksum = number(text)?,
            // It follows from the others.
            Field::CaptureLength => drop(number::<u64>(text)?),
            Field::IpOptions => to.ip.options = ip_options::parse(text)?,
            Field::HeaderLength => to.ip.header_length = header_length(text)?,
            Field::TcpOffset => to.tcp.header_length = Some(header_length(text)?),
            _ => return self.set_transport(field, text),
        }
        Some(())
    }

    fn set_transport(&mut self, field: Field, text: &str) -> Option<()> {
        let to = &mut self.fields;
        match field {
            Field::Sequence => to.tcp.sequence = number(text)?,
            Field::Acknowledgement => to.tcp.acknowledgement = number(text)?,
            Field::TcpFlags => to.tcp.flags = flags(text).filter(|flags| *flags < 512)?,
            Field::TcpOptions | Field::TcpOptionsButTime | Field::TcpSack => {
                to.tcp.options = tcp_options::parse(text)?;
            }
            Field::Window => to.tcp.window = number(text)?,
            Field::Urgent => to.tcp.urgent = number(text)?,
            Field::UdpLength => to.udp_length = Some(number(text)?),
            Field::IcmpType | Field::IcmpTypeName => {
                let named = ICMP_TYPES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
                to.icmp.kind = named.or_else(|| number(text))?;
            }
            Field::IcmpCode | Field::IcmpCodeName => self.code = Some(text.to_owned()),
            Field::IcmpFlow => to.icmp.rest[0] = number(text)?,
            Field::IcmpSequence | Field::IcmpNextMtu => to.icmp.rest[1] = number(text)?,
            _ => return None,
        }
        Some(())
    }

    fn set_fragment(&mut self, field: Field, text: &str, old_offsets: bool) -> Option<()> {
        const MORE: u16 = 0x2000;
        const WHOLE: u16 = 0x4000;
        let to = &mut self.fields.ip.fragment;
        if field == Field::Fragment {
            *to = match text {
                "F" => MORE,
                "!" => WHOLE,
                "." => 0,
                // Somewhere behind the first one.
                "f" => *to & 0x1fff | u16::from(*to & 0x1fff == 0),
                _ => return None,
            };
            return Some(());
        }
        let digits = text.trim_end_matches(['+', '!']);
        let offset: u32 = number(digits)?;
        let units = if old_offsets { offset } else { offset >> 3 };
        let known = old_offsets || offset.is_multiple_of(8);
        let units = u16::try_from(units).ok().filter(|units| known && *units < 0x2000)?;
        let behind = &text[digits.len()..];
        let flag = |letter: char, bit: u16| if behind.contains(letter) { bit } else { 0 };
        *to = units | flag('+', MORE) | flag('!', WHOLE);
        Some(())
    }

    /// The packet, when all fields are read.
    fn finish(mut self, multiple: bool) -> Result<SummaryPacket, String> {
        if let Some(code) = &self.code {
            let kind = self.fields.icmp.kind;
            let named = ICMP_CODES.iter().find(|(of, name, _)| *of == kind && name == code);
            let known = named.map(|(.., code)| *code).or_else(|| number(code));
            self.fields.icmp.code = known.ok_or_else(|| format!("`{code}` is no icmp_code"))?;
        }
        if let Some(length) = self.payload_length.filter(|length| *length > self.fields.payload.len()) {
            if length > MOST_PAYLOAD {
                return Err(format!("{length} bytes of payload: there may be {MOST_PAYLOAD}"));
            }
            self.fields.payload.resize(length, 0);
        }
        if self.fields.payload.len() > MOST_PAYLOAD {
            return Err(format!("a payload may have {MOST_PAYLOAD} bytes"));
        }
        if self.count > 1 && !multiple {
            return Err(
                "a packet cannot stand for several: with `MULTIPACKET true` they come one by one".into()
            );
        }
        if self.count > MOST_PACKETS {
            return Err(format!("a line may be {MOST_PACKETS} packets"));
        }
        let time = self.seconds.map(|seconds| seconds.saturating_mul(1_000_000_000) + self.nanoseconds);
        let (packet, left_out) = self.fields.packet();
        let stamp = time.map_or(0, |time| time.saturating_add(1)).to_be_bytes();
        let prefix = [self.paint, self.aggregate, left_out].map(u32::to_be_bytes).concat();
        let bytes = [&prefix[..], &stamp, &packet].concat();
        Ok(SummaryPacket { time, bytes, count: self.count.max(1) })
    }
}
