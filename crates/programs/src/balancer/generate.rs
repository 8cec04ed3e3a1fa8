//! Configurations of real size, and traffic to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millstream_rng::Rng;

use super::{BalancerConfig, BalancerReal, BalancerService, QuicServer, wire};
use crate::packet::{EthernetFrame, FiveTuple, TCP, UDP};
use crate::traffic::{FlowLocality, WeightedFlows};

/// Mix of the services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceMix {
    /// HTTP over IPv4, reals behind IPIP: the configuration that published measurements use.
    Web,
    /// In turn: HTTP over IPv4, HTTP over IPv6, QUIC over IPv4, QUIC over IPv6; reals of both families,
    /// behind IPIP and GUE, in turn.
    Mixed,
}

/// The configuration of connection ids that generated QUIC servers have.
pub const QUIC_CONFIG: u8 = 2;

/// `services` services with `reals` reals each, no real in two of them.
pub fn generate(mix: ServiceMix, services: usize, reals: usize, seed: u64) -> BalancerConfig {
    let mut rng = Rng::new(seed);
    let mut config = BalancerConfig::default();
    config.quic_id_length[usize::from(QUIC_CONFIG)] = 2;
    for number in 0..services {
        let (ipv6, quic) =
            if mix == ServiceMix::Web { (false, false) } else { (number % 2 == 1, number % 4 >= 2) };
        let first = config.reals.len() as u32;
        for real in 0..reals {
            let v6 = mix == ServiceMix::Mixed && real % 2 == 1;
            config.reals.push(BalancerReal {
                address: random_address(v6, [10, 1], &mut rng),
                gue: mix == ServiceMix::Mixed && real % 4 >= 2,
                up: true,
            });
            if quic {
                let index = first + real as u32;
                config.quic_servers.push(QuicServer { config: QUIC_CONFIG, id: index + 1, real: index });
            }
        }
        config.services.push(BalancerService {
            address: random_address(ipv6, [198, 18], &mut rng),
            port: if quic { 443 } else { 80 },
            protocol: if quic { UDP } else { TCP },
            client_affinity: false,
            stateless: false,
            quic,
            reals: (first..config.reals.len() as u32).map(|index| (index, 1)).collect(),
        });
    }
    config
}

/// An address in a /16 of IPv4, or in a /32 of IPv6 that is called alike.
fn random_address(ipv6: bool, [a, b]: [u8; 2], rng: &mut Rng) -> IpAddr {
    let host = rng.next_u64();
    let [c, d, ..] = host.to_be_bytes();
    if ipv6 {
        let high = u16::from_be_bytes([a, b]);
        let [e, f, g, h] = [48, 32, 16, 0].map(|shift| (host >> shift) as u16);
        Ipv6Addr::new(0xfd00, high, 0, 0, e, f, g, h).into()
    } else {
        Ipv4Addr::new(a, b, c, d).into()
    }
}

/// `count` flows of clients from everywhere, each to a service drawn evenly: TCP segments with ACK alone, as
/// most packets of a connection are, or QUIC packets of a server drawn evenly.
pub fn flows(config: &BalancerConfig, count: usize, locality: FlowLocality, seed: u64) -> WeightedFlows {
    let mut rng = Rng::new(seed);
    let count = if config.services.is_empty() { 0 } else { count };
    let packets = (0..count)
        .map(|_| {
            let service = &config.services[rng.below(config.services.len() as u64) as usize];
            random_packet(config, service, &mut rng)
        })
        .collect();
    WeightedFlows::new(packets, locality, rng.next_u64())
}

fn random_packet(config: &BalancerConfig, service: &BalancerService, rng: &mut Rng) -> Vec<u8> {
    let src_port = 1024 + rng.below(64_512) as u16;
    let payload = if service.quic { quic_payload(config, service, rng) } else { Vec::new() };
    match service.address {
        IpAddr::V4(dst) => {
            let src = Ipv4Addr::from(0x0b00_0000 + rng.below(0x5000_0000) as u32);
            let tuple = FiveTuple { src, dst, src_port, dst_port: service.port, protocol: service.protocol };
            let mut bytes = EthernetFrame { length: 64.max(42 + payload.len()), ..tuple.frame() }.to_bytes();
            if service.protocol == UDP {
                wire::fill_udp4(&mut bytes, &payload);
            }
            bytes
        }
        IpAddr::V6(dst) => {
            let src = Ipv6Addr::from(0x2001_0db8u128 << 96 | u128::from(rng.next_u64()));
            let transport =
                wire::transport6(service.protocol, src, dst, [src_port, service.port], 0x10, &payload);
            wire::ipv6_frame(src, dst, service.protocol, &transport)
        }
    }
}

/// A packet with a short header, whose connection id names one of the service's servers.
fn quic_payload(config: &BalancerConfig, service: &BalancerService, rng: &mut Rng) -> Vec<u8> {
    let real = service.reals.get(rng.below(service.reals.len() as u64) as usize).map_or(0, |&(real, _)| real);
    let server = config.quic_servers.iter().find(|server| server.real == real);
    let octets = config.quic_id_length[usize::from(QUIC_CONFIG)];
    let id = server.map_or(0, |server| server.id) << (32 - 8 * u32::from(octets));
    let mut payload = vec![0x40, QUIC_CONFIG << 5 | 8];
    payload.extend(&id.to_be_bytes()[..usize::from(octets)]);
    payload.extend(rng.next_u64().to_be_bytes());
    payload.resize(22, 0);
    payload
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::{BalancerModel, BalancerOutcome};
    use super::*;

    #[test]
    fn every_flow_is_balanced_and_every_real_is_used() {
        for mix in [ServiceMix::Web, ServiceMix::Mixed] {
            let config = generate(mix, 10, 100, 1);
            let flows = flows(&config, 10_000, FlowLocality::NONE, 2);
            let mut model = BalancerModel::new(&config);
            let reals: HashSet<u32> = flows
                .packets
                .iter()
                .map(|packet| match model.process(packet, 0) {
                    BalancerOutcome::Forward { real, .. } => real,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert!(reals.len() > 990, "{mix:?}: {} of 1,000 reals", reals.len());
            assert_eq!(config, generate(mix, 10, 100, 1));
        }
    }
}
