//! Model of the balancer: the result that it must give for a frame, written from the contract in balancer.h
//! and the RFCs, frame by frame.
//!
//! Connections are never evicted here, and limits never reached; tests keep below them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{BalancerConfig, BalancerService, RING_SIZE, hash_client, ring, ring_slot, wire};
use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, MacAddress, TCP, UDP};

const SYN: u8 = 2;
const RST: u8 = 4;

/// Result for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BalancerOutcome {
    /// It leaves, encapsulated.
    Forward {
        /// Index into [`BalancerConfig::reals`].
        real: u32,
        /// The frame that leaves.
        frame: Vec<u8>,
    },
    /// An answer leaves instead.
    Answer(Vec<u8>),
    /// The kernel's stack gets it as it came.
    Stack,
    /// It is dropped.
    Drop,
}

/// A packet of a connection, as the client sends it.
#[derive(Clone, Debug)]
struct ClientPacket<'a> {
    client: IpAddr,
    vip: IpAddr,
    client_port: u16,
    vip_port: u16,
    protocol: u8,
    tos: u8,
    flags: u8,
    /// Quoted by an ICMP error.
    quoted: bool,
    /// The IP packet.
    ip: &'a [u8],
    /// The transport's payload.
    payload: &'a [u8],
}

/// Key of the connection table.
type ConnectionKey = (IpAddr, u16, IpAddr, u16, u8);

/// A model of the balancer with one configuration, and its connection table.
#[derive(Clone, Debug)]
pub struct BalancerModel<'a> {
    config: &'a BalancerConfig,
    rings: Vec<Vec<u32>>,
    /// Real, and when last seen.
    table: HashMap<ConnectionKey, (u32, u64)>,
}

/// A network header, read.
struct NetworkHeader<'a> {
    src: IpAddr,
    dst: IpAddr,
    tos: u8,
    protocol: u8,
    fragment: bool,
    ip: &'a [u8],
    transport: &'a [u8],
}

impl<'a> BalancerModel<'a> {
    /// The model of this configuration; the table is empty.
    pub fn new(config: &'a BalancerConfig) -> Self {
        let rings = config.services.iter().map(|service| ring(&config.reals, &service.reals)).collect();
        Self { config, rings, table: HashMap::new() }
    }

    /// Returns the result for the frame at a time in nanoseconds. Remembers new connections.
    pub fn process(&mut self, frame: &[u8], now: u64) -> BalancerOutcome {
        let Some(ether_type) = be16(frame, 12) else { return BalancerOutcome::Drop };
        let network = match ether_type {
            ETHERTYPE_IPV4 => parse_ipv4(&frame[14..]),
            ETHERTYPE_IPV6 => parse_ipv6(&frame[14..]),
            _ => return BalancerOutcome::Stack,
        };
        let Some(network) = network else { return BalancerOutcome::Drop };
        if network.fragment {
            return if self.config.fragments_to_stack {
                BalancerOutcome::Stack
            } else {
                BalancerOutcome::Drop
            };
        }
        let icmp = if network.src.is_ipv6() { wire::ICMPV6 } else { ICMP };
        let packet = if network.protocol == icmp {
            match self.icmp(&network, frame) {
                Ok(packet) => packet,
                Err(outcome) => return outcome,
            }
        } else if [TCP, UDP].contains(&network.protocol) {
            match parse_transport(&network) {
                Some(packet) => packet,
                None => return BalancerOutcome::Drop,
            }
        } else {
            return BalancerOutcome::Stack;
        };
        self.balance(packet, frame, now)
    }

    fn balance(&mut self, mut packet: ClientPacket<'_>, frame: &[u8], now: u64) -> BalancerOutcome {
        let hash = hash_client(packet.client, packet.client_port);
        let Some((id, service)) = self.service(&packet) else { return BalancerOutcome::Stack };
        packet.vip_port = service.port;
        let Some(real) = self.select(&packet, id, service, hash, now) else { return BalancerOutcome::Drop };
        let own: MacAddress = frame[..6].try_into().unwrap_or_default();
        let inner = usize::from(packet.ip_length());
        let server = self.config.reals[real as usize];
        let overhead = if server.address.is_ipv6() { 40 } else { 20 } + if server.gue { 8 } else { 0 };
        if inner + overhead > self.config.max_length as usize {
            return self.too_big(&packet, frame, self.config.max_length - overhead as u32);
        }
        let mut out = wire::eth(self.config.gateway, own, server.address.is_ipv6());
        out.extend(self.outer_headers(&packet, real, hash, inner));
        out.extend(&frame[14..]);
        BalancerOutcome::Forward { real, frame: out }
    }

    /// The service that the packet is for: by its port, else the one for all ports.
    fn service(&self, packet: &ClientPacket<'_>) -> Option<(usize, &'a BalancerService)> {
        let find = |port| {
            self.config
                .services
                .iter()
                .enumerate()
                .find(|(_, s)| s.address == packet.vip && s.port == port && s.protocol == packet.protocol)
        };
        find(packet.vip_port).or_else(|| find(0))
    }

    fn up(&self, real: u32) -> Option<u32> {
        self.config.reals.get(real as usize).filter(|r| r.up).map(|_| real)
    }

    /// Index of the real that gets the packet.
    fn select(
        &mut self,
        packet: &ClientPacket<'_>,
        id: usize,
        service: &BalancerService,
        hash: u32,
        now: u64,
    ) -> Option<u32> {
        let by_id = service.quic && packet.protocol == UDP && !packet.quoted;
        let named = if by_id { self.quic_server(packet.payload) } else { None };
        if let Some(real) = named.and_then(|real| self.up(real)) {
            return Some(real);
        }
        let port = if service.client_affinity { 0 } else { packet.client_port };
        let flow = (packet.client, port, packet.vip, packet.vip_port, packet.protocol);
        let may_be_known = !service.stateless && packet.flags & SYN == 0;
        let known = if may_be_known { self.find_connection(&flow, packet.quoted, now) } else { None };
        if let Some(real) = known.and_then(|real| self.up(real)) {
            return Some(real);
        }
        let hash = if service.client_affinity { hash_client(packet.client, 0) } else { hash };
        let entry = self.rings[id][(ring_slot(hash) % RING_SIZE) as usize];
        let real = self.up(entry.checked_sub(1)?)?;
        if !service.stateless && !packet.quoted && packet.flags & RST == 0 {
            self.table.insert(flow, (real, now));
        }
        Some(real)
    }

    /// The real that the connection table has for the flow. A packet of UDP keeps it there, unless it is
    /// quoted.
    fn find_connection(&mut self, flow: &ConnectionKey, quoted: bool, now: u64) -> Option<u32> {
        let (real, last_seen) = self.table.get_mut(flow)?;
        if flow.4 == UDP && !quoted {
            if now - *last_seen > self.config.udp_idle_ns {
                return None;
            }
            *last_seen = now;
        }
        Some(*real)
    }

    /// The server that a QUIC packet's connection id names.
    fn quic_server(&self, payload: &[u8]) -> Option<u32> {
        let first = *payload.first()?;
        let id = if first & 0x80 != 0 {
            let version = payload.get(1..5)?;
            let kind = first >> 4 & 3;
            let client_chosen = match version {
                [0x6b, 0x33, 0x43, 0xcf] => kind == 1 || kind == 2,
                _ => kind == 0 || kind == 1,
            };
            if client_chosen || *payload.get(5)? < 5 {
                return None;
            }
            payload.get(6..11)?
        } else if first & 0x40 != 0 {
            payload.get(1..6)?
        } else {
            return None;
        };
        let config = id[0] >> 5;
        let octets = self.config.quic_id_length[usize::from(config)];
        let number = id.get(1..1 + usize::from(octets)).filter(|number| !number.is_empty())?;
        let number = number.iter().fold(0u32, |n, &octet| n << 8 | u32::from(octet));
        self.config.quic_servers.iter().find(|s| s.config == config && s.id == number).map(|s| s.real)
    }

    /// Answers a ping, or gives the packet that an error quotes, turned around.
    fn icmp<'f>(
        &self,
        network: &NetworkHeader<'f>,
        frame: &[u8],
    ) -> Result<ClientPacket<'f>, BalancerOutcome> {
        let message = network.transport;
        if message.len() < 8 {
            return Err(BalancerOutcome::Drop);
        }
        let ipv6 = network.src.is_ipv6();
        let known = self.config.services.iter().any(|service| service.address == network.dst);
        if message[0] == (if ipv6 { 128 } else { 8 }) && message[1] == 0 && known {
            return Err(BalancerOutcome::Answer(echo_reply(frame, network)));
        }
        let error = if ipv6 { (1..=4).contains(&message[0]) } else { [3, 11, 12].contains(&message[0]) };
        if !error {
            return Err(BalancerOutcome::Stack);
        }
        let quoted = read_quote(&message[8..], ipv6)?;
        if quoted.0.0 != network.dst {
            return Err(BalancerOutcome::Stack);
        }
        let ((vip, vip_port), (client, client_port), protocol) = quoted;
        Ok(ClientPacket {
            client,
            vip,
            client_port,
            vip_port,
            protocol,
            tos: network.tos,
            flags: 0,
            quoted: true,
            ip: network.ip,
            payload: &[],
        })
    }

    fn outer_headers(&self, packet: &ClientPacket<'_>, real: u32, hash: u32, inner: usize) -> Vec<u8> {
        let server = self.config.reals[real as usize];
        let inner_protocol = if packet.client.is_ipv6() { 41 } else { 4 };
        let protocol = if server.gue { UDP } else { inner_protocol };
        let mut udp = Vec::new();
        if server.gue {
            udp.extend((0xc000 | (hash & 0x3fff) as u16).to_be_bytes());
            udp.extend(self.config.gue_port.to_be_bytes());
            udp.extend((inner as u16 + 8).to_be_bytes());
            udp.extend([0, 0]);
        }
        // The data plane treats the hash as four bytes of an address, in the order that memory has them.
        let hash = u32::from_be_bytes(hash.to_ne_bytes());
        let mut out = match server.address {
            IpAddr::V4(dst) => {
                let src = u32::from(self.config.source4) | (hash & self.config.source4_hash_mask);
                wire::ipv4_header(packet.tos, 20 + udp.len() + inner, protocol, Ipv4Addr::from(src), dst)
            }
            IpAddr::V6(dst) => {
                let src = u128::from(self.config.source6) ^ u128::from(hash);
                wire::ipv6_header(packet.tos, udp.len() + inner, protocol, Ipv6Addr::from(src), dst)
            }
        };
        out.extend(udp);
        out
    }

    /// An ICMP error to the client, if it may be told.
    fn too_big(&self, packet: &ClientPacket<'_>, frame: &[u8], mtu: u32) -> BalancerOutcome {
        let [to, from]: [MacAddress; 2] =
            [&frame[6..12], &frame[..6]].map(|mac| mac.try_into().unwrap_or_default());
        let hosts = ip_addresses(packet.ip);
        let dont_fragment = packet.ip[6] & 0x40 != 0;
        match hosts {
            _ if packet.quoted || self.config.icmp_limit == 0 => BalancerOutcome::Drop,
            (IpAddr::V4(client), IpAddr::V4(vip)) if dont_fragment => {
                let message = wire::icmp((vip.into(), client.into()), [3, 4], mtu & 0xffff, &packet.ip[..68]);
                let header = wire::ipv4_header(0, 20 + message.len(), ICMP, vip, client);
                BalancerOutcome::Answer([wire::eth(to, from, false), header, message].concat())
            }
            (IpAddr::V6(client), IpAddr::V6(vip)) => {
                let message = wire::icmp((vip.into(), client.into()), [2, 0], mtu, &packet.ip[..232]);
                let header = wire::ipv6_header(0, message.len(), wire::ICMPV6, vip, client);
                BalancerOutcome::Answer([wire::eth(to, from, true), header, message].concat())
            }
            _ => BalancerOutcome::Drop,
        }
    }
}

impl ClientPacket<'_> {
    fn ip_length(&self) -> u16 {
        self.ip.len() as u16
    }
}

/// Source and destination of a whole IP packet.
fn ip_addresses(ip: &[u8]) -> (IpAddr, IpAddr) {
    if ip[0] >> 4 == 4 { (v4(ip, 12), v4(ip, 16)) } else { (v6(ip, 8), v6(ip, 24)) }
}

fn parse_ipv4(bytes: &[u8]) -> Option<NetworkHeader<'_>> {
    bytes.get(19)?;
    let header = usize::from(bytes[0] & 15) * 4;
    let ip = bytes.get(..usize::from(be16(bytes, 2)?))?;
    if bytes[0] >> 4 != 4 || header < 20 || ip.len() < header {
        return None;
    }
    Some(NetworkHeader {
        src: v4(ip, 12),
        dst: v4(ip, 16),
        tos: ip[1],
        protocol: ip[9],
        fragment: be16(ip, 6)? & 0x3fff != 0,
        ip,
        transport: &ip[header..],
    })
}

fn parse_ipv6(bytes: &[u8]) -> Option<NetworkHeader<'_>> {
    bytes.get(39)?;
    let ip = bytes.get(..40 + usize::from(be16(bytes, 4)?))?;
    if bytes[0] >> 4 != 6 {
        return None;
    }
    let mut next = ip[6];
    let mut at = 40;
    for _ in 0..4 {
        if ![0, 43, 60].contains(&next) {
            break;
        }
        let extension = bytes.get(at..at + 2)?;
        next = extension[0];
        at += 8 * (usize::from(extension[1]) + 1);
    }
    Some(NetworkHeader {
        src: v6(ip, 8),
        dst: v6(ip, 24),
        tos: (be16(ip, 0)? >> 4) as u8,
        protocol: next,
        fragment: next == 44,
        ip,
        transport: ip.get(at..).unwrap_or(&[]),
    })
}

fn parse_transport<'f>(network: &NetworkHeader<'f>) -> Option<ClientPacket<'f>> {
    let tcp = network.protocol == TCP;
    let header = network.transport.get(..if tcp { 20 } else { 8 })?;
    Some(ClientPacket {
        client: network.src,
        vip: network.dst,
        client_port: be16(header, 0)?,
        vip_port: be16(header, 2)?,
        protocol: network.protocol,
        tos: network.tos,
        flags: if tcp { header[13] } else { 0 },
        quoted: false,
        ip: network.ip,
        payload: network.transport.get(8..)?,
    })
}

/// One end of a connection.
type FlowEndpoint = (IpAddr, u16);

/// Sender, receiver and protocol of a quoted packet.
fn read_quote(quote: &[u8], ipv6: bool) -> Result<(FlowEndpoint, FlowEndpoint, u8), BalancerOutcome> {
    let (src, dst, protocol, ports, offset) = if ipv6 {
        let ports = quote.get(40..44).ok_or(BalancerOutcome::Drop)?;
        (v6(quote, 8), v6(quote, 24), quote[6], ports, 0)
    } else {
        quote.get(19).ok_or(BalancerOutcome::Drop)?;
        let header = usize::from(quote[0] & 15) * 4;
        if quote[0] >> 4 != 4 || header < 20 {
            return Err(BalancerOutcome::Drop);
        }
        let ports = quote.get(header..header + 4).ok_or(BalancerOutcome::Drop)?;
        (v4(quote, 12), v4(quote, 16), quote[9], ports, be16(quote, 6).unwrap_or(0) & 0x1fff)
    };
    if ![TCP, UDP].contains(&protocol) || offset != 0 {
        return Err(BalancerOutcome::Stack);
    }
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    Ok(((src, port(0)), (dst, port(2)), protocol))
}

/// The frame with its ends exchanged, a fresh time to live and the message's type turned into a reply's.
fn echo_reply(frame: &[u8], network: &NetworkHeader<'_>) -> Vec<u8> {
    let mut reply = frame.to_vec();
    reply[..6].copy_from_slice(&frame[6..12]);
    reply[6..12].copy_from_slice(&frame[..6]);
    let ipv6 = network.src.is_ipv6();
    let (addresses, size) = if ipv6 { (14 + 8, 16) } else { (14 + 12, 4) };
    reply[addresses..addresses + size].copy_from_slice(&frame[addresses + size..addresses + 2 * size]);
    reply[addresses + size..addresses + 2 * size].copy_from_slice(&frame[addresses..addresses + size]);
    let icmp = 14 + network.ip.len() - network.transport.len();
    if ipv6 {
        reply[14 + 7] = 64;
        reply[icmp] = 129;
        adjust(&mut reply, icmp + 2, 0x8000, 0x8100);
    } else {
        let word = |ttl: u8| u16::from_be_bytes([ttl, network.protocol]);
        reply[14 + 8] = 64;
        adjust(&mut reply, 14 + 10, word(frame[14 + 8]), word(64));
        reply[icmp] = 0;
        adjust(&mut reply, icmp + 2, 0x0800, 0);
    }
    reply
}

/// The checksum at `at` after a word has changed (RFC 1624, equation 3): also where it was wrong before.
fn adjust(bytes: &mut [u8], at: usize, from: u16, to: u16) {
    let sum = u32::from(!u16::from_be_bytes([bytes[at], bytes[at + 1]])) + u32::from(!from) + u32::from(to);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn v4(bytes: &[u8], at: usize) -> IpAddr {
    let mut octets = [0; 4];
    octets.copy_from_slice(&bytes[at..at + 4]);
    octets.into()
}

fn v6(bytes: &[u8], at: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    octets.into()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
