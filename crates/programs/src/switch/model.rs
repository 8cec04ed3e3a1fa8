//! Model of the switch: the result that it must give for a frame, written from IEEE 802.1Q without a look at
//! the C.

use std::collections::HashMap;

use super::{FdbDestination, StpState, SwitchConfig, SwitchEvent, admitted_vlan, retag, tag};
use crate::packet::MacAddress;

/// Result for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchOutcome {
    /// It leaves by one port.
    Forward {
        /// The egress interface.
        port: u32,
        /// The frame that leaves.
        frame: Vec<u8>,
    },
    /// The kernel's stack gets it as it came, to keep or to flood.
    Stack(SwitchEvent),
    /// It is dropped.
    Drop(SwitchEvent),
}

/// A switch with a memory.
#[derive(Clone, Debug)]
pub struct SwitchModel {
    config: SwitchConfig,
    stations: HashMap<(MacAddress, u16), (FdbDestination, bool)>,
}

impl SwitchModel {
    /// The switch with this configuration.
    pub fn new(config: &SwitchConfig) -> Self {
        let stations = config.stations.iter().map(|s| ((s.mac, s.vlan), (s.place, s.is_static))).collect();
        Self { config: config.clone(), stations }
    }

    /// Place of a station in the switch's tables.
    pub fn place_of(&self, mac: MacAddress, vlan: u16) -> Option<FdbDestination> {
        self.stations.get(&(mac, vlan)).map(|&(place, _)| place)
    }

    /// Returns the result for a frame that comes in at this interface, and learns from it.
    pub fn process(&mut self, ingress: u32, frame: &[u8]) -> SwitchOutcome {
        self.decide(ingress, frame).unwrap_or_else(|outcome| outcome)
    }

    fn decide(&mut self, ingress: u32, frame: &[u8]) -> Result<SwitchOutcome, SwitchOutcome> {
        use SwitchOutcome::{Drop, Stack};
        let usable = |p: &&super::BridgePort| p.state != StpState::Disabled;
        let port = self.config.ports.iter().find(|p| p.port == ingress).filter(usable);
        let port = port.ok_or(Stack(SwitchEvent::NoPort))?;
        let macs = frame.get(..14).and_then(|f| f[..12].split_first_chunk::<6>());
        let (&dst, src) = macs.ok_or(Drop(SwitchEvent::Runt))?;
        let src: MacAddress = src.try_into().map_err(|_| Drop(SwitchEvent::Runt))?;
        if dst[..5] == [0x01, 0x80, 0xc2, 0, 0] && dst[5] < 16 {
            return Err(Stack(SwitchEvent::LinkLocal));
        }
        if port.state == StpState::Blocking {
            return Err(Drop(SwitchEvent::Blocked));
        }
        if frame[12..14] == [0x81, 0] && tag(frame).is_none() {
            return Err(Drop(SwitchEvent::Runt));
        }
        let vlan = admitted_vlan(port, frame).ok_or(Drop(SwitchEvent::NotAdmitted))?;
        let state = port.state;
        self.learn(src, vlan, ingress)?;
        if state != StpState::Forwarding {
            return Err(Drop(SwitchEvent::Blocked));
        }
        if dst[0] & 1 == 1 {
            return Err(Stack(SwitchEvent::FloodGroup));
        }
        let egress = match self.place_of(dst, vlan) {
            None => return Err(Stack(SwitchEvent::FloodUnknown)),
            Some(FdbDestination::Local) => return Err(Stack(SwitchEvent::Local)),
            Some(FdbDestination::Port(egress)) if egress == ingress => {
                return Err(Drop(SwitchEvent::SamePort));
            }
            Some(FdbDestination::Port(egress)) => egress,
        };
        let open = |p: &&super::BridgePort| p.state == StpState::Forwarding && p.vlans().contains(&vlan);
        let egress = self.config.ports.iter().find(|p| p.port == egress).filter(open);
        let egress = egress.ok_or(Drop(SwitchEvent::EgressFiltered))?;
        Ok(SwitchOutcome::Forward {
            port: egress.port,
            frame: retag(frame, vlan, egress.native() != Some(vlan)),
        })
    }

    fn learn(&mut self, src: MacAddress, vlan: u16, ingress: u32) -> Result<(), SwitchOutcome> {
        if src[0] & 1 == 1 {
            return Err(SwitchOutcome::Drop(SwitchEvent::BadSource));
        }
        match self.stations.get(&(src, vlan)) {
            Some(&(place, true)) if place != FdbDestination::Port(ingress) => {
                Err(SwitchOutcome::Drop(SwitchEvent::StaticMoved))
            }
            Some((_, true)) => Ok(()),
            _ => {
                self.stations.insert((src, vlan), (FdbDestination::Port(ingress), false));
                Ok(())
            }
        }
    }
}
