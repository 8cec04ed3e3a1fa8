//! Model of the firewall: the result that it must give for a frame, by a search through the rules one by one,
//! written without a look at the C.

use std::net::Ipv4Addr;

use super::{AcceptTarget, DEFAULT_RULE, FirewallConfig, FragmentHandling, RuleAction};
use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_VLAN, FiveTuple, TCP, UDP};

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// Next step of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirewallXdpVerdict {
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
pub struct FirewallOutcome {
    /// Verdict of the program.
    pub verdict: FirewallXdpVerdict,
    /// The rule, or [`DEFAULT_RULE`], that decided; `None` if the frame never came to the rules.
    pub rule: Option<u32>,
    /// Action of the rule or of a policy; `None` for ARP.
    pub action: Option<RuleAction>,
}

/// Result of parsing.
enum ParsedFrame {
    Arp,
    NotIpv4,
    Malformed,
    Policy(RuleAction),
    Packet(FiveTuple, bool),
}

/// A model of the firewall with one configuration.
#[derive(Clone, Debug)]
pub struct FirewallModel<'a> {
    config: &'a FirewallConfig,
}

impl<'a> FirewallModel<'a> {
    /// The model of this configuration.
    pub fn new(config: &'a FirewallConfig) -> Self {
        Self { config }
    }

    /// Returns the result for the frame.
    pub fn process(&self, frame: &[u8]) -> FirewallOutcome {
        let (rule, action) = match self.parse(frame) {
            ParsedFrame::Arp => {
                return FirewallOutcome { verdict: FirewallXdpVerdict::Pass, rule: None, action: None };
            }
            ParsedFrame::NotIpv4 => (None, self.config.non_ipv4),
            ParsedFrame::Malformed => (None, RuleAction::Drop),
            ParsedFrame::Policy(action) => (None, action),
            ParsedFrame::Packet(tuple, has_ports) => {
                let (rule, action) = self.first_match(&tuple, has_ports);
                (Some(rule), action)
            }
        };
        let verdict = match (action, &self.config.forward) {
            (RuleAction::Drop, _) => FirewallXdpVerdict::Drop,
            (RuleAction::Reject, _) | (RuleAction::Accept, AcceptTarget::Stack) => FirewallXdpVerdict::Pass,
            (RuleAction::Accept, AcceptTarget::Hairpin) => FirewallXdpVerdict::Transmit,
            (RuleAction::Accept, AcceptTarget::Ports(_)) => FirewallXdpVerdict::Redirect,
        };
        FirewallOutcome { verdict, rule, action: Some(action) }
    }

    /// The first rule that matches, and its action.
    pub fn first_match(&self, tuple: &FiveTuple, has_ports: bool) -> (u32, RuleAction) {
        let found = self.config.rules.iter().enumerate().find(|(_, rule)| rule.matches(tuple, has_ports));
        found.map_or((DEFAULT_RULE, self.config.default), |(index, rule)| (index as u32, rule.action))
    }

    fn parse(&self, frame: &[u8]) -> ParsedFrame {
        let Some(mut ether_type) = be16(frame, 12) else { return ParsedFrame::Malformed };
        let mut at = 14;
        for _ in 0..2 {
            if ![ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN].contains(&ether_type) {
                break;
            }
            let Some(inner) = be16(frame, at + 2) else { return ParsedFrame::Malformed };
            ether_type = inner;
            at += 4;
        }
        match ether_type {
            ETHERTYPE_IPV4 => self.parse_ipv4(&frame[at..]).unwrap_or(ParsedFrame::Malformed),
            ETHERTYPE_ARP => ParsedFrame::Arp,
            _ => ParsedFrame::NotIpv4,
        }
    }

    /// `None` if the packet is malformed.
    fn parse_ipv4(&self, packet: &[u8]) -> Option<ParsedFrame> {
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
                FragmentHandling::Drop => return Some(ParsedFrame::Policy(RuleAction::Drop)),
                _ if offset == 1 && protocol == TCP => return None,
                FragmentHandling::Accept if offset != 0 => {
                    return Some(ParsedFrame::Policy(RuleAction::Accept));
                }
                FragmentHandling::Classify if offset != 0 => return Some(ParsedFrame::Packet(tuple, false)),
                FragmentHandling::Accept | FragmentHandling::Classify => {}
            }
        }
        let has_ports = [TCP, UDP, SCTP, DCCP, UDP_LITE].contains(&protocol);
        if has_ports {
            tuple.src_port = be16(packet, header)?;
            tuple.dst_port = be16(packet, header + 2)?;
        }
        Some(ParsedFrame::Packet(tuple, has_ports))
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
