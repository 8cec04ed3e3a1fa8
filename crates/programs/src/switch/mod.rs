//! The switch's control tool: ports, VLANs and stations to map entries; ageing and flooding.
//!
//! Layouts are as in `programs/switch/switch.h`.

mod generate;
mod model;

pub use generate::{VlanLayout, flows, generate};
pub use model::{SwitchModel, SwitchOutcome};

use crate::MapEntry;
use crate::packet::{ETHERTYPE_VLAN, MacAddress};
use crate::router::devmap_entry;

/// Per interface: state, mode and VLANs.
pub const PORTS: &str = "ports";
/// Places of stations, learned and static.
pub const STATIONS: &str = "stations";
/// The devmap of egress interfaces.
pub const TX_PORTS: &str = "tx_ports";
/// Per port and CPU: [`crate::router::PortCounters`].
pub const COUNTERS: &str = "counters";
/// Per VLAN and CPU: packets and bytes that were admitted.
pub const VLAN_COUNTERS: &str = "vlan_counters";
/// Per event and CPU: a count.
pub const EVENTS: &str = "events";
/// Capacity of the object's map, in stations.
pub const MAX_STATIONS: usize = 4096;
/// Ports are interface indices below this.
pub const MAX_PORTS: u32 = 4096;
/// Time that a learned station is kept after its last frame, in ns: 300 s (IEEE 802.1Q, table 8-6).
pub const DEFAULT_AGE: u64 = 300_000_000_000;

/// A spanning-tree state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum StpState {
    /// Not a port of the switch.
    Disabled = 0,
    /// Frames are dropped, except those of the control plane.
    Blocking = 1,
    /// As blocking, but stations are learned.
    Learning = 2,
    /// In service.
    Forwarding = 3,
}

/// Way of distinguishing VLANs on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanMode {
    /// One VLAN, no tags.
    Access(u16),
    /// Tags; untagged frames are of the native VLAN, if there is one.
    Trunk {
        /// The VLAN that goes without a tag.
        native: Option<u16>,
        /// The VLANs that may pass (the native one included).
        vlans: Vec<u16>,
    },
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// The interface's index.
    pub port: u32,
    /// Its spanning-tree state.
    pub state: StpState,
    /// Its VLANs.
    pub mode: VlanMode,
}

/// Place of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FdbDestination {
    /// Behind this interface.
    Port(u32),
    /// It is this machine.
    Local,
}

/// A station in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FdbEntry {
    /// Its address.
    pub mac: MacAddress,
    /// The VLAN.
    pub vlan: u16,
    /// Destination of frames for it.
    pub place: FdbDestination,
    /// Set by the operator: not moved by learning, not aged.
    pub is_static: bool,
    /// When it was last seen, `CLOCK_MONOTONIC` in ns.
    pub seen: u64,
}

/// Everything that the switch is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its ports.
    pub ports: Vec<BridgePort>,
    /// Stations known from the start.
    pub stations: Vec<FdbEntry>,
}

/// A configuration that the maps cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// A port beyond the maps, or 0.
    #[error("{0} is not the index of an interface below {MAX_PORTS}")]
    BadPort(u32),
    /// A VLAN that is none.
    #[error("{0} is not a VLAN between 1 and 4094")]
    BadVlan(u16),
    /// A group address.
    #[error("{0:02x?} is a group address, not a station's")]
    GroupAddress(MacAddress),
    /// More stations than the map holds.
    #[error("{0} stations are more than the switch's {MAX_STATIONS}")]
    TooManyStations(usize),
}

impl BridgePort {
    /// The VLAN of untagged frames.
    pub fn native(&self) -> Option<u16> {
        match self.mode {
            VlanMode::Access(vlan) => Some(vlan),
            VlanMode::Trunk { native, .. } => native,
        }
    }

    /// The VLANs that may pass.
    pub fn vlans(&self) -> &[u16] {
        match &self.mode {
            VlanMode::Access(vlan) => std::slice::from_ref(vlan),
            VlanMode::Trunk { vlans, .. } => vlans,
        }
    }

    /// Reads an entry of [`PORTS`]; `None` for an interface that is no port, or if a length is wrong.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_ne_bytes(value.get(at..at + 2)?.try_into().ok()?));
        let state = match word(0)? {
            1 => StpState::Blocking,
            2 => StpState::Learning,
            3 => StpState::Forwarding,
            _ => return None,
        };
        let pvid = Some(word(4)?).filter(|&vlan| vlan != 0);
        let members = value.get(8..8 + 512)?.chunks_exact(8).filter_map(|w| w.try_into().ok());
        let members: Vec<u64> = members.map(u64::from_ne_bytes).collect();
        let vlans = (1..4095u16).filter(|vlan| members[usize::from(*vlan) / 64] >> (vlan % 64) & 1 == 1);
        let mode = match word(2)? {
            0 => VlanMode::Access(pvid?),
            _ => VlanMode::Trunk { native: pvid, vlans: vlans.collect() },
        };
        Some(Self { port: u32::from_ne_bytes(key.try_into().ok()?), state, mode })
    }

    /// As it stands in the map: `struct switch_port`.
    pub fn encode(&self) -> Vec<u8> {
        let mode = u16::from(matches!(self.mode, VlanMode::Trunk { .. }));
        let words = [self.state as u16, mode, self.native().unwrap_or(0), 0];
        let mut members = [0u64; 64];
        for &vlan in self.vlans() {
            members[usize::from(vlan & 0xfff) / 64] |= 1 << (vlan % 64);
        }
        let head = words.iter().flat_map(|w| w.to_ne_bytes());
        head.chain(members.iter().flat_map(|w| w.to_ne_bytes())).collect()
    }
}

/// The key of a station in [`STATIONS`].
pub fn station_key(mac: MacAddress, vlan: u16) -> Vec<u8> {
    [&mac[..], &vlan.to_ne_bytes()].concat()
}

impl FdbEntry {
    /// As it stands in the map.
    pub fn entry(&self) -> MapEntry {
        let port = match self.place {
            FdbDestination::Port(port) => port,
            FdbDestination::Local => 0,
        };
        let mut value = port.to_ne_bytes().to_vec();
        value.extend(u32::from(self.is_static).to_ne_bytes());
        value.extend(self.seen.to_ne_bytes());
        MapEntry::new(STATIONS, station_key(self.mac, self.vlan), value)
    }

    /// Reads an entry of the map; `None` if its lengths are wrong.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(value.get(at..at + 4)?.try_into().ok()?));
        Some(Self {
            mac: key.get(..6)?.try_into().ok()?,
            vlan: u16::from_ne_bytes(key.get(6..8)?.try_into().ok()?),
            place: match word(0)? {
                0 => FdbDestination::Local,
                port => FdbDestination::Port(port),
            },
            is_static: word(4)? & 1 != 0,
            seen: u64::from_ne_bytes(value.get(8..16)?.try_into().ok()?),
        })
    }

    /// True if it is to be forgotten: learned, and not seen for `age` ns.
    pub fn is_aged(&self, now: u64, age: u64) -> bool {
        !self.is_static && now.saturating_sub(self.seen) > age
    }
}

impl SwitchConfig {
    /// Everything to write into the maps. Entries of [`TX_PORTS`] name interfaces, which must exist where
    /// they are written.
    pub fn entries(&self) -> Result<Vec<MapEntry>, SwitchError> {
        self.check()?;
        let mut entries = Vec::new();
        for port in &self.ports {
            entries.push(devmap_entry(TX_PORTS, port.port));
        }
        // A port that is open before the stations are known floods what it could forward; the other order is
        // quiet.
        entries.extend(self.stations.iter().map(FdbEntry::entry));
        for port in &self.ports {
            entries.push(MapEntry::new(PORTS, port.port.to_ne_bytes(), port.encode()));
        }
        Ok(entries)
    }

    fn check(&self) -> Result<(), SwitchError> {
        let places = self.stations.iter().filter_map(|s| match s.place {
            FdbDestination::Port(port) => Some(port),
            FdbDestination::Local => None,
        });
        let mut ports = self.ports.iter().map(|p| p.port).chain(places);
        if let Some(port) = ports.find(|&port| port == 0 || port >= MAX_PORTS) {
            return Err(SwitchError::BadPort(port));
        }
        let natives = self.ports.iter().filter_map(BridgePort::native);
        let mut vlans = self.ports.iter().flat_map(|p| p.vlans()).copied().chain(natives);
        let of_stations = self.stations.iter().map(|s| s.vlan);
        if let Some(vlan) = vlans.by_ref().chain(of_stations).find(|vlan| !(1..=4094).contains(vlan)) {
            return Err(SwitchError::BadVlan(vlan));
        }
        if let Some(station) = self.stations.iter().find(|s| s.mac[0] & 1 == 1) {
            return Err(SwitchError::GroupAddress(station.mac));
        }
        match self.stations.len() {
            n if n > MAX_STATIONS => Err(SwitchError::TooManyStations(n)),
            _ => Ok(()),
        }
    }

    /// Destination and VLAN of a frame that the data plane gave to the stack; `None` if it must not be
    /// flooded for any destination: not admitted, or for this machine's control plane alone.
    pub fn destination(&self, ingress: u32, frame: &[u8]) -> Option<(MacAddress, u16)> {
        let from = self.ports.iter().find(|p| p.port == ingress && p.state == StpState::Forwarding)?;
        let to: MacAddress = frame.get(..6)?.try_into().ok()?;
        // 01-80-C2-00-00-00 to -0F, which no bridge forwards (IEEE 802.1Q, table 8-1).
        let is_link_local = to[..5] == [0x01, 0x80, 0xc2, 0, 0] && to[5] < 16;
        let vlan = admitted_vlan(from, frame)?;
        (!is_link_local).then_some((to, vlan))
    }

    /// Frames that the control plane sends for one that the data plane gave it to flood: the port and the
    /// frame as it is on that link. Empty if the frame was not admitted.
    pub fn flood(&self, ingress: u32, frame: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let Some(from) = self.ports.iter().find(|p| p.port == ingress) else { return Vec::new() };
        let Some(vlan) = admitted_vlan(from, frame) else { return Vec::new() };
        self.ports
            .iter()
            .filter(|p| p.port != ingress && p.state == StpState::Forwarding && p.vlans().contains(&vlan))
            .map(|p| (p.port, retag(frame, vlan, p.native() != Some(vlan))))
            .collect()
    }
}

/// The tag of a frame, if it has one.
fn tag(frame: &[u8]) -> Option<u16> {
    let is_tagged = frame.get(12..14)? == ETHERTYPE_VLAN.to_be_bytes();
    let tci = u16::from_be_bytes(frame.get(14..16)?.try_into().ok()?);
    is_tagged.then_some(tci)
}

/// The VLAN to which a frame belongs at this port; `None` if it may not enter.
fn admitted_vlan(port: &BridgePort, frame: &[u8]) -> Option<u16> {
    let tag = tag(frame).map(|tci| tci & 0xfff).filter(|&vlan| vlan != 0);
    let vlan = match (tag, &port.mode) {
        (Some(_), VlanMode::Access(_)) => return None,
        (Some(vlan), VlanMode::Trunk { .. }) => vlan,
        (None, _) => port.native()?,
    };
    port.vlans().contains(&vlan).then_some(vlan)
}

/// The frame with the tag of its VLAN, or without a tag; a priority is kept where there is a tag to keep it.
fn retag(frame: &[u8], vlan: u16, tagged: bool) -> Vec<u8> {
    let old = tag(frame);
    let rest = if old.is_some() { 16 } else { 12 };
    let mut new = frame[..12].to_vec();
    if tagged {
        new.extend(ETHERTYPE_VLAN.to_be_bytes());
        new.extend((old.unwrap_or(0) & 0xf000 | vlan).to_be_bytes());
    }
    new.extend(&frame[rest..]);
    new
}

/// Events that the switch counts; the discriminant is the key in [`EVENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SwitchEvent {
    /// Dropped: shorter than its headers.
    Runt,
    /// Dropped: the port's spanning-tree state.
    Blocked,
    /// Dropped: of a VLAN, or with a tag, that the port does not take.
    NotAdmitted,
    /// Dropped: a group address as the source.
    BadSource,
    /// Dropped: a static station at a port that is not its own.
    StaticMoved,
    /// Dropped: the destination is where the frame came from.
    SamePort,
    /// Dropped: the egress port is closed, or not of the VLAN.
    EgressFiltered,
    /// To the stack: the interface is none of the switch's.
    NoPort,
    /// To the stack: a control frame.
    LinkLocal,
    /// To the stack, which floods: a broadcast or a group.
    FloodGroup,
    /// To the stack, which floods: the destination is unknown.
    FloodUnknown,
    /// To the stack: for this machine.
    Local,
    /// A station was learned.
    Learned,
    /// A station has moved.
    Moved,
}

impl SwitchEvent {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 14] = [
        Self::Runt,
        Self::Blocked,
        Self::NotAdmitted,
        Self::BadSource,
        Self::StaticMoved,
        Self::SamePort,
        Self::EgressFiltered,
        Self::NoPort,
        Self::LinkLocal,
        Self::FloodGroup,
        Self::FloodUnknown,
        Self::Local,
        Self::Learned,
        Self::Moved,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::EthernetFrame;

    fn port(port: u32, mode: VlanMode) -> BridgePort {
        BridgePort { port, state: StpState::Forwarding, mode }
    }

    #[test]
    fn ports_and_stations_are_laid_out_as_the_header_says() {
        let value = port(3, VlanMode::Trunk { native: Some(2), vlans: vec![2, 64, 4094] }).encode();
        assert_eq!(value.len(), 8 + 512);
        assert_eq!(value[..8], [3u16, 1, 2, 0].map(u16::to_ne_bytes).concat());
        let word = |i: usize| u64::from_ne_bytes(value[8 + 8 * i..16 + 8 * i].try_into().unwrap());
        assert_eq!((word(0), word(1), word(63)), (4, 1, 1 << 62));
        let trunk = port(3, VlanMode::Trunk { native: Some(2), vlans: vec![2, 64, 4094] });
        assert_eq!(BridgePort::decode(&3u32.to_ne_bytes(), &value), Some(trunk));
        let access = BridgePort { state: StpState::Blocking, ..port(4, VlanMode::Access(7)) };
        assert_eq!(BridgePort::decode(&4u32.to_ne_bytes(), &access.encode()), Some(access));
        assert_eq!(BridgePort::decode(&5u32.to_ne_bytes(), &[0; 520]), None, "no port");
        let station = FdbEntry {
            mac: [2, 0, 0, 0, 0, 9],
            vlan: 5,
            place: FdbDestination::Port(3),
            is_static: true,
            seen: 77,
        };
        let entry = station.entry();
        assert_eq!((entry.key.len(), entry.value.len()), (8, 16));
        assert_eq!(FdbEntry::decode(&entry.key, &entry.value), Some(station));
    }

    #[test]
    fn flooding_reaches_the_vlan_with_the_right_tags() {
        let config = SwitchConfig {
            ports: vec![
                port(1, VlanMode::Access(10)),
                port(2, VlanMode::Access(10)),
                port(3, VlanMode::Access(20)),
                port(4, VlanMode::Trunk { native: Some(10), vlans: vec![10, 20] }),
                port(5, VlanMode::Trunk { native: None, vlans: vec![10] }),
                BridgePort { port: 6, state: StpState::Blocking, mode: VlanMode::Access(10) },
            ],
            stations: vec![],
        };
        let plain = EthernetFrame::default().to_bytes();
        let tagged = EthernetFrame { vlan: Some(10), length: 68, ..EthernetFrame::default() }.to_bytes();
        assert_eq!(config.flood(1, &plain), [(2, plain.clone()), (4, plain.clone()), (5, tagged.clone())]);
        assert_eq!(config.flood(5, &tagged), [(1, plain.clone()), (2, plain.clone()), (4, plain.clone())]);
        assert_eq!(config.flood(1, &tagged), [], "an access port takes no tags");
        assert_eq!(config.flood(5, &plain), [], "a trunk without a native VLAN takes nothing else");
        let to: MacAddress = plain[..6].try_into().unwrap();
        assert_eq!(
            (config.destination(1, &plain), config.destination(5, &tagged)),
            (Some((to, 10)), Some((to, 10)))
        );
        assert_eq!((config.destination(6, &plain), config.destination(1, &tagged)), (None, None));
        let bpdu = [&[0x01, 0x80, 0xc2, 0, 0, 0][..], &plain[6..]].concat();
        assert_eq!(config.destination(1, &bpdu), None, "spanning tree is for this machine alone");
    }

    #[test]
    fn only_learned_stations_age() {
        let learned =
            FdbEntry { mac: [2; 6], vlan: 1, place: FdbDestination::Port(1), is_static: false, seen: 1_000 };
        assert!(!learned.is_aged(1_000 + DEFAULT_AGE, DEFAULT_AGE));
        assert!(learned.is_aged(1_001 + DEFAULT_AGE, DEFAULT_AGE));
        assert!(!FdbEntry { is_static: true, ..learned }.is_aged(u64::MAX, DEFAULT_AGE));
    }

    #[test]
    fn what_the_maps_cannot_hold_is_refused() {
        let of = |p| SwitchConfig { ports: vec![p], stations: vec![] }.entries();
        assert_eq!(of(port(0, VlanMode::Access(1))), Err(SwitchError::BadPort(0)));
        assert_eq!(of(port(1, VlanMode::Access(4095))), Err(SwitchError::BadVlan(4095)));
        assert_eq!(
            of(port(1, VlanMode::Trunk { native: None, vlans: vec![0] })),
            Err(SwitchError::BadVlan(0))
        );
        let group =
            FdbEntry { mac: [1; 6], vlan: 1, place: FdbDestination::Local, is_static: false, seen: 0 };
        let config = SwitchConfig { ports: vec![], stations: vec![group] };
        assert_eq!(config.entries(), Err(SwitchError::GroupAddress([1; 6])));
    }
}
