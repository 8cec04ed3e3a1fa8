//! Model of the firewall: the result that it must give for a frame, by a search through the rules one by one,
//! written without a look at the C.

use std::net::Ipv4Addr;

use super::{Action, Config, DEFAULT_RULE, Forward, Fragments};
use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_VLAN, FiveTuple, TCP, UDP};

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// Next step of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the packet is gone.
    Drop,
    /// Its stack has the packet.
    Pass,
    /// The packet turns around.
    Transmit,
    /// The packet goes out of another port.
    Redirect,
}

/// Result for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Verdict of the program.
    pub verdict: Verdict,
    /// The rule, or [`DEFAULT_RULE`], that decided; `None` if the frame never came to the rules.
    pub rule: Option<u32>,
    /// Action of the rule or of a policy; `None` for ARP.
    pub action: Option<Action>,
}

/// Result of parsing.
enum Parsed {
    Arp,
    NotIpv4,
    Malformed,
    Policy(Action),
    Packet(FiveTuple, bool),
}

/// A model of the firewall with one configuration.
#[derive(Clone, Debug)]
pub struct Model<'a> {
    config: &'a Config,
}

impl<'a> Model<'a> {
    /// The model of this configuration.
    pub fn new(config: &'a Config) -> Self {
        Self { config }
    }

    /// Returns the result for the frame.
    pub fn process(&self, frame: &[u8]) -> Outcome {
        let (rule, action) = match self.parse(frame) {
            Parsed::Arp => return Outcome { verdict: Verdict::Pass, rule: None, action: None },
            Parsed::NotIpv4 => (None, self.config.non_ipv4),
            Parsed::Malformed => (None, Action::Drop),
            Parsed::Policy(action) => (None, action),
            Parsed::Packet(tuple, has_ports) => {
                let (rule, action) = self.first_match(&tuple, has_ports);
                (Some(rule), action)
            }
        };
        let verdict = match (action, &self.config.forward) {
            (Action::Drop, _) => Verdict::Drop,
            (Action::Reject, _) | (Action::Accept, Forward::Stack) => Verdict::Pass,
            (Action::Accept, Forward::Hairpin) => Verdict::Transmit,
            (Action::Accept, Forward::Ports(_)) => Verdict::Redirect,
        };
        Outcome { verdict, rule, action: Some(action) }
    }

    /// The first rule that matches, and its action.
    pub fn first_match(&self, tuple: &FiveTuple, has_ports: bool) -> (u32, Action) {
        let found = self.config.rules.iter().enumerate().find(|(_, rule)| rule.matches(tuple, has_ports));
        found.map_or((DEFAULT_RULE, self.config.default), |(index, rule)| (index as u32, rule.action))
    }

    fn parse(&self, frame: &[u8]) -> Parsed {
        let Some(mut ether_type) = be16(frame, 12) else { return Parsed::Malformed };
        let mut at = 14;
        for _ in 0..2 {
            if ![ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN].contains(&ether_type) {
                break;
            }
            let Some(inner) = be16(frame, at + 2) else { return Parsed::Malformed };
            ether_type = inner;
            at += 4;
        }
        match ether_type {
            ETHERTYPE_IPV4 => self.parse_ipv4(&frame[at..]).unwrap_or(Parsed::Malformed),
            ETHERTYPE_ARP => Parsed::Arp,
            _ => Parsed::NotIpv4,
        }
    }

    /// `None` if the packet is malformed.
    fn parse_ipv4(&self, packet: &[u8]) -> Option<Parsed> {
        packet.get(19)?;
        let header = usize::from(packet[0] & 15) * 4;
        let packet = packet.get(..usize::from(be16(packet, 2)?))?;
        if packet.first()? >> 4 != 4 || header < 20 || packet.len() < header {
            return None;
        }
        let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        let protocol = packet[9];
        let mut tuple = FiveTuple { src: address(12), dst: address(16), src_port: 0, dst_port: 0, protocol };
        let (more, offset) = (be16(packet, 6)? & 0x2000 != 0, be16(packet, 6)? & 0x1fff);
        if more || offset != 0 {
            match self.config.fragments {
                Fragments::Drop => return Some(Parsed::Policy(Action::Drop)),
                _ if offset == 1 && protocol == TCP => return None,
                Fragments::Accept if offset != 0 => return Some(Parsed::Policy(Action::Accept)),
                Fragments::Classify if offset != 0 => return Some(Parsed::Packet(tuple, false)),
                Fragments::Accept | Fragments::Classify => {}
            }
        }
        let has_ports = [TCP, UDP, SCTP, DCCP, UDP_LITE].contains(&protocol);
        if has_ports {
            tuple.src_port = be16(packet, header)?;
            tuple.dst_port = be16(packet, header + 2)?;
        }
        Some(Parsed::Packet(tuple, has_ports))
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
