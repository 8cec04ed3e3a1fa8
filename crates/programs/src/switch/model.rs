//! Model of the switch: the result that it must give for a frame, written from IEEE 802.1Q without a look at
//! the C.

use std::collections::HashMap;

use super::{Config, Event, Place, State, admitted_vlan, retag, tag};
use crate::packet::Mac;

/// Result for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It leaves by one port.
    Forward {
        /// The egress interface.
        port: u32,
        /// The frame that leaves.
        frame: Vec<u8>,
    },
    /// The kernel's stack gets it as it came, to keep or to flood.
    Stack(Event),
    /// It is dropped.
    Drop(Event),
}

/// A switch with a memory.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    stations: HashMap<(Mac, u16), (Place, bool)>,
}

impl Model {
    /// The switch with this configuration.
    pub fn new(config: &Config) -> Self {
        let stations = config.stations.iter().map(|s| ((s.mac, s.vlan), (s.place, s.is_static))).collect();
        Self { config: config.clone(), stations }
    }

    /// Place of a station in the switch's tables.
    pub fn place_of(&self, mac: Mac, vlan: u16) -> Option<Place> {
        self.stations.get(&(mac, vlan)).map(|&(place, _)| place)
    }

    /// Returns the result for a frame that comes in at this interface, and learns from it.
    pub fn process(&mut self, ingress: u32, frame: &[u8]) -> Outcome {
        self.decide(ingress, frame).unwrap_or_else(|outcome| outcome)
    }

    fn decide(&mut self, ingress: u32, frame: &[u8]) -> Result<Outcome, Outcome> {
        use Outcome::{Drop, Stack};
        let usable = |p: &&super::Port| p.state != State::Disabled;
        let port = self.config.ports.iter().find(|p| p.port == ingress).filter(usable);
        let port = port.ok_or(Stack(Event::NoPort))?;
        let macs = frame.get(..14).and_then(|f| f[..12].split_first_chunk::<6>());
        let (&dst, src) = macs.ok_or(Drop(Event::Runt))?;
        let src: Mac = src.try_into().map_err(|_| Drop(Event::Runt))?;
        if dst[..5] == [0x01, 0x80, 0xc2, 0, 0] && dst[5] < 16 {
            return Err(Stack(Event::LinkLocal));
        }
        if port.state == State::Blocking {
            return Err(Drop(Event::Blocked));
        }
        if frame[12..14] == [0x81, 0] && tag(frame).is_none() {
            return Err(Drop(Event::Runt));
        }
        let vlan = admitted_vlan(port, frame).ok_or(Drop(Event::NotAdmitted))?;
        let state = port.state;
        self.learn(src, vlan, ingress)?;
        if state != State::Forwarding {
            return Err(Drop(Event::Blocked));
        }
        if dst[0] & 1 == 1 {
            return Err(Stack(Event::FloodGroup));
        }
        let egress = match self.place_of(dst, vlan) {
            None => return Err(Stack(Event::FloodUnknown)),
            Some(Place::Local) => return Err(Stack(Event::Local)),
            Some(Place::Port(egress)) if egress == ingress => return Err(Drop(Event::SamePort)),
            Some(Place::Port(egress)) => egress,
        };
        let open = |p: &&super::Port| p.state == State::Forwarding && p.vlans().contains(&vlan);
        let egress = self.config.ports.iter().find(|p| p.port == egress).filter(open);
        let egress = egress.ok_or(Drop(Event::EgressFiltered))?;
        Ok(Outcome::Forward { port: egress.port, frame: retag(frame, vlan, egress.native() != Some(vlan)) })
    }

    fn learn(&mut self, src: Mac, vlan: u16, ingress: u32) -> Result<(), Outcome> {
        if src[0] & 1 == 1 {
            return Err(Outcome::Drop(Event::BadSource));
        }
        match self.stations.get(&(src, vlan)) {
            Some(&(place, true)) if place != Place::Port(ingress) => Err(Outcome::Drop(Event::StaticMoved)),
            Some((_, true)) => Ok(()),
            _ => {
                self.stations.insert((src, vlan), (Place::Port(ingress), false));
                Ok(())
            }
        }
    }
}
