//! Summaries of packets as lines of text, in the format of Click's `ToIPSummaryDump`: the fields, the lines
//! that packets become, and the packets that lines become.
//!
//! Source: ToIPSummaryDump(n), FromIPSummaryDump(n), version 1.3 of the format.

mod fields;
mod header_options;
mod ip_options;
mod md5;
mod packet;
mod read;
mod tcp_options;
mod write;

pub use fields::{SUMMARY_PREFIX, SummaryField, SummaryFlow, SummaryInput, SummarySource, summary_header};
pub use read::{SummaryPacket, SummaryReader};
pub use write::seconds_text;
pub(crate) use write::{PacketNotes, bad_header, summary_line};

#[cfg(test)]
mod tests {
    use super::fields::{NAMES, SummaryField as Field};
    use super::*;

    fn line(fields: &str, of: &[SummaryField]) -> String {
        let source = SummarySource {
            input: SummaryInput::Text(String::new()),
            fields: Vec::new(),
            flow: SummaryFlow { protocol: 6, ..SummaryFlow::default() },
            timing: false,
            multiple: true,
            whole: true,
            window: 1,
        };
        let mut reader = SummaryReader::new(&source);
        let mut lines = fields.lines();
        let last = lines.next_back().expect("a line");
        lines.for_each(|line| assert!(reader.line(line).expect("read").is_none()));
        let packet = reader.line(last).expect("read").expect("a packet");
        let paint = u32::from_be_bytes(*packet.bytes.first_chunk().expect("a prefix"));
        let aggregate = u32::from_be_bytes(*packet.bytes[4..].first_chunk().expect("a prefix"));
        let time = packet.time.unwrap_or(0) as i64;
        let about = write::PacketNotes { time, paint: paint as u8, aggregate };
        let bytes = &packet.bytes[SUMMARY_PREFIX..];
        String::from_utf8(summary_line(of, Some(bytes), &about)).expect("text")
    }

    #[test]
    fn lines_become_packets_that_become_the_same_lines() {
        for (fields, text) in [
            ("timestamp ip_src sport ip_dst dport ip_proto", "1.000002 10.0.0.1 80 10.0.0.2 99 T"),
            ("timestamp ip_src sport ip_dst dport ip_proto", "996033261.451094 10.0.0.1 53 10.0.0.2 99 U"),
            ("ip_src ip_proto sport tcp_flags tcp_seq tcp_ack tcp_window", "1.2.3.4 T 1 SA 93167339 5 480"),
            ("ip_src ip_proto ip_frag ip_len ip_ttl ip_tos ip_id", "1.2.3.4 U F 132 254 29 48759"),
            ("ip_src ip_fragoff sport ip_proto", "1.2.3.4 552+ - T"),
            ("ip_src ip_proto icmp_type_name icmp_code_name icmp_seq", "1.2.3.4 I echo 0 7"),
            ("ip_src ip_proto icmp_type_name icmp_code_name icmp_seq", "1.2.3.4 I unreach needfrag -"),
            ("ip_src ip_proto payload payload_len", r#"1.2.3.4 U "hi \"there\"\n" 11"#),
            ("ip_src ip_proto tcp_opt", "1.2.3.4 T mss1400;wscale10;sackok;sack1-10;sack18-20"),
            ("ip_src ip_proto tcp_opt payload", r#"1.2.3.4 T ts669063908:38382731;99=0:5:10;98 "x""#),
            ("ip_src ip_proto tcp_opt", "1.2.3.4 T ."),
            ("link aggregate ip_ecn ip_dscp ip_proto", "3 973 ect1 9 47"),
            ("direction ip_src", "< 1.2.3.4"),
        ] {
            let of: Vec<SummaryField> =
                fields.split(' ').map(|name| SummaryField::of_name(name).expect("a field")).collect();
            assert_eq!(line(&format!("!data {fields}\n{text}"), &of), text, "{fields}");
        }
    }

    #[test]
    fn protocol_and_flow_hold_until_a_line_says_otherwise() {
        let of =
            [Field::Source, Field::SourcePort, Field::Destination, Field::DestinationPort, Field::Protocol];
        let text = "!data ip_len\n!flowid 1.0.0.1 5 2.0.0.2 6 U\n40";
        assert_eq!(line(text, &of), "1.0.0.1 5 2.0.0.2 6 U");
        assert_eq!(line("!data src dst\n!proto I\n1.0.0.1 2.0.0.2", &of), "1.0.0.1 - 2.0.0.2 - I");
    }

    #[test]
    fn packets_that_are_cut_off_have_dashes() {
        let about = write::PacketNotes { time: 0, paint: 0, aggregate: 0 };
        for bytes in [None, Some(&[0x45u8, 0, 0][..]), Some(&[0x65; 40][..])] {
            let all: Vec<SummaryField> = NAMES.iter().map(|(_, field)| *field).collect();
            let text = String::from_utf8(summary_line(&all, bytes, &about)).expect("text");
            assert!(text.starts_with("0.000000 0 0 0 - - - - - "), "{text}");
        }
    }
}
