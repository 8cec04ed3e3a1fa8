//! From a configuration to map entries.

use std::net::IpAddr;

use super::*;
use crate::MapEntry;

impl BalancerConfig {
    /// Everything to write into the maps, in an order that never shows a ring before its reals, nor a service
    /// before its ring.
    pub fn entries(&self) -> Result<Vec<MapEntry>, BalancerError> {
        self.check()?;
        let mut entries = vec![MapEntry::new(SETTINGS, 0u32.to_ne_bytes(), self.settings())];
        for (index, real) in (1u32..).zip(&self.reals) {
            entries.push(MapEntry::new(REALS, index.to_ne_bytes(), real.encode()));
        }
        for server in &self.quic_servers {
            let key = [u32::from(server.config), server.id].map(u32::to_ne_bytes).concat();
            entries.push(MapEntry::new(QUIC_SERVERS, key, (server.real + 1).to_ne_bytes()));
        }
        for (id, service) in (0u32..).zip(&self.services) {
            entries.extend(ring_entries(id, &ring(&self.reals, &service.reals)));
            let address = address_words(service.address);
            entries.push(MapEntry::new(VIP_ADDRESSES, address, 1u32.to_ne_bytes()));
            entries.push(service.entry(id));
        }
        Ok(entries)
    }

    /// `struct settings`.
    fn settings(&self) -> Vec<u8> {
        let mut value = self.gateway.to_vec();
        value.extend(self.gue_port.to_be_bytes());
        value.extend(self.source4.octets());
        value.extend(self.source4_hash_mask.to_be_bytes());
        value.extend(self.source6.octets());
        value.extend(self.udp_idle_ns.to_ne_bytes());
        let fragments = u32::from(self.fragments_to_stack);
        for word in [self.max_length, fragments, self.new_flow_limit, self.icmp_limit] {
            value.extend(word.to_ne_bytes());
        }
        value.extend(self.quic_id_length);
        value
    }

    fn check(&self) -> Result<(), BalancerError> {
        for (what, count, limit) in [
            ("services", self.services.len(), MAX_SERVICES),
            ("reals", self.reals.len(), MAX_REALS),
            ("QUIC servers", self.quic_servers.len(), MAX_QUIC_SERVERS),
        ] {
            if count > limit {
                return Err(BalancerError::TooMany { what, count, limit });
            }
        }
        let count = self.reals.len();
        let exists = |what: String, real: u32| {
            if (real as usize) < count {
                Ok(())
            } else {
                Err(BalancerError::NoSuchReal { what, real, count })
            }
        };
        for service in &self.services {
            for &(real, _) in &service.reals {
                exists(format!("service {} port {}", service.address, service.port), real)?;
            }
        }
        for server in &self.quic_servers {
            exists(format!("QUIC server {}", server.id), server.real)?;
            let octets = self.quic_id_length.get(usize::from(server.config)).copied().unwrap_or(0);
            if octets == 0 || octets > 4 || u64::from(server.id) >> (8 * octets) != 0 {
                return Err(BalancerError::QuicId { config: server.config, id: server.id, octets });
            }
        }
        Ok(())
    }
}

/// The entries of one row of [`RINGS`].
pub fn ring_entries(id: u32, ring: &[u32]) -> impl Iterator<Item = MapEntry> + '_ {
    (id * RING_SIZE..)
        .zip(ring)
        .map(|(slot, real)| MapEntry::new(RINGS, slot.to_ne_bytes(), real.to_ne_bytes()))
}

/// `struct address`.
fn address_words(address: IpAddr) -> Vec<u8> {
    let mut words = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    words.resize(16, 0);
    words
}

impl BalancerReal {
    /// As it stands in the map: `struct real`.
    pub fn encode(&self) -> Vec<u8> {
        let flag = |bit: u32, set: bool| if set { bit } else { 0 };
        let flags = flag(1, self.up) | flag(2, self.address.is_ipv6()) | flag(4, self.gue);
        let mut value = address_words(self.address);
        value.extend(flags.to_ne_bytes());
        value
    }

    /// Reads a value of [`REALS`]; `None` if it is none.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let flags = u32::from_ne_bytes(value.get(16..20)?.try_into().ok()?);
        let address = match flags & 2 {
            0 => IpAddr::from(<[u8; 4]>::try_from(value.get(..4)?).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(value.get(..16)?).ok()?),
        };
        Some(Self { address, gue: flags & 4 != 0, up: flags & 1 != 0 })
    }
}

impl BalancerConnection {
    /// Reads an entry of [`FLOWS4`] or [`FLOWS6`]; `None` if it is none.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let width = match key.len() {
            16 => 4,
            40 => 16,
            _ => return None,
        };
        let address = |at: usize| -> Option<IpAddr> {
            let bytes = key.get(at..at + width)?;
            match width {
                4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
                _ => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
            }
        };
        let port = |at: usize| Some(u16::from_be_bytes(key.get(at..at + 2)?.try_into().ok()?));
        let ports = 2 * width;
        Some(Self {
            client: (address(0)?, port(ports)?),
            service: (address(width)?, port(ports + 2)?),
            protocol: *key.get(ports + 4)?,
            real: u32::from_ne_bytes(value.get(8..12)?.try_into().ok()?),
        })
    }
}

impl BalancerService {
    /// As it stands in [`VIPS4`] or [`VIPS6`], with the number of its ring.
    pub fn entry(&self, id: u32) -> MapEntry {
        let flag = |bit: u32, set: bool| if set { bit } else { 0 };
        let flags = flag(1, self.client_affinity) | flag(2, self.stateless) | flag(4, self.quic);
        let (map, mut key) = match self.address {
            IpAddr::V4(address) => (VIPS4, address.octets().to_vec()),
            IpAddr::V6(address) => (VIPS6, address.octets().to_vec()),
        };
        key.extend(self.port.to_be_bytes());
        key.extend([self.protocol, 0]);
        MapEntry::new(map, key, [id, flags].map(u32::to_ne_bytes).concat())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ServiceMix, generate};
    use super::*;

    #[test]
    fn ten_services_of_a_hundred_reals_fill_ten_rings() {
        let entries = generate(ServiceMix::Web, 10, 100, 1).entries().unwrap();
        let of = |map| entries.iter().filter(|e| e.map == map).count();
        assert_eq!((of(RINGS), of(REALS), of(VIPS4), of(VIPS6)), (655_370, 1000, 10, 0));
        assert!(entries.iter().filter(|e| e.map == RINGS).all(|e| e.value != [0; 4]));
        assert_eq!(entries[0].value.len(), 64, "struct settings");
    }

    #[test]
    fn connections_and_reals_are_read_as_the_header_lays_them_out() {
        let mut key = vec![10, 0, 0, 1, 192, 0, 2, 1];
        key.extend([0x12, 0x34, 0x01, 0xbb, 6, 0, 0, 0]);
        let value = [0u64.to_ne_bytes(), 7u64.to_le_bytes()].concat();
        let expected = BalancerConnection {
            client: ([10, 0, 0, 1].into(), 0x1234),
            service: ([192, 0, 2, 1].into(), 443),
            protocol: 6,
            real: u32::from_ne_bytes(value[8..12].try_into().unwrap()),
        };
        assert_eq!(BalancerConnection::decode(&key, &value), Some(expected));
        assert_eq!(BalancerConnection::decode(&key[1..], &value), None);
        for real in generate(ServiceMix::Mixed, 4, 5, 1).reals {
            assert_eq!(BalancerReal::decode(&real.encode()), Some(real));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut config = generate(ServiceMix::Mixed, 4, 5, 1);
        assert!(config.entries().is_ok());
        config.services[1].reals.push((99, 1));
        assert!(matches!(config.entries(), Err(BalancerError::NoSuchReal { real: 99, count: 20, .. })));
        config.services[1].reals.pop();
        config.quic_servers.push(QuicServer { config: QUIC_CONFIG, id: 1 << 16, real: 0 });
        assert!(matches!(config.entries(), Err(BalancerError::QuicId { octets: 2, .. })));
        config.quic_servers.clear();
        config.services = vec![config.services[0].clone(); 65];
        assert!(matches!(config.entries(), Err(BalancerError::TooMany { what: "services", .. })));
    }
}
