//! User-space tasks of data planes: the switch's flooding and ageing, expiry of the NAT's idle connections.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use millstream_kernel::PacketSocket;
use millstream_lab::os;
use millstream_programs::{nat, switch};

use super::DataPlane;
use super::pin_directory::{ControlError, PinDirectory};

/// Time between two walks through a table.
const ROUND: Duration = Duration::from_secs(5);
/// Time to wait for frames, and so the delay of an interruption.
const WAIT: Duration = Duration::from_millis(200);
/// Frames taken from one port before the others have their turn.
const TURN: usize = 64;

/// Works until interrupted, or one round.
pub(super) fn tend(plane: DataPlane, place: &PinDirectory, age: u64, once: bool) -> Result<(), ControlError> {
    os::catch_interrupts();
    match plane {
        DataPlane::Switch => tend_switch(place, Duration::from_secs(age), once),
        DataPlane::Nat => tend_nat(place, once),
        _ => Err(ControlError::Unusable(format!("the {} needs no maintenance", plane.program().name))),
    }
}

fn tend_nat(place: &PinDirectory, once: bool) -> Result<(), ControlError> {
    let (connections, settings) = (place.map(nat::CONNECTIONS)?, place.map(nat::SETTINGS)?);
    loop {
        let timeouts =
            settings.lookup(&0u32.to_ne_bytes())?.and_then(|v| nat::ConnectionTimeouts::decode(&v));
        let timeouts = timeouts.ok_or_else(|| ControlError::Unusable("the NAT has no time limits".into()))?;
        let table: HashMap<nat::NatFlow, nat::NatTranslation> = connections
            .entries()?
            .iter()
            .filter_map(|(k, v)| Some((nat::NatFlow::decode(k)?, nat::NatTranslation::decode(v)?)))
            .collect();
        for flow in nat::idle(&table, &timeouts, os::monotonic_ns()) {
            connections.delete(&flow.encode())?;
        }
        if once || pause(ROUND) {
            return Ok(());
        }
    }
}

/// Waits so long; returns true if the user interrupts.
fn pause(length: Duration) -> bool {
    let end = Instant::now() + length;
    while !os::interrupted() && Instant::now() < end {
        std::thread::sleep(WAIT.min(length));
    }
    os::interrupted()
}

fn tend_switch(place: &PinDirectory, age: Duration, once: bool) -> Result<(), ControlError> {
    let (ports, stations) = (place.map(switch::PORTS)?, place.map(switch::STATIONS)?);
    let mut sockets: Vec<PacketSocket> = Vec::new();
    let mut config = switch::SwitchConfig::default();
    let mut next_round = Instant::now();
    loop {
        if Instant::now() >= next_round {
            next_round = Instant::now() + ROUND;
            config.ports =
                ports.entries()?.iter().filter_map(|(k, v)| switch::BridgePort::decode(k, v)).collect();
            listen(&mut sockets, &config)?;
            let now = os::monotonic_ns();
            for (key, value) in stations.entries()?.iter() {
                if switch::FdbEntry::decode(key, value).is_some_and(|s| s.is_aged(now, age.as_nanos() as u64))
                {
                    stations.delete(key)?;
                }
            }
        }
        let is_known = |mac, vlan| Ok(stations.lookup(&switch::station_key(mac, vlan))?.is_some());
        flood(&sockets, &config, &is_known)?;
        if once || os::interrupted() {
            return Ok(());
        }
        PacketSocket::wait(&sockets, WAIT)?;
    }
}

/// Opens a socket at each port, and closes all others.
fn listen(sockets: &mut Vec<PacketSocket>, config: &switch::SwitchConfig) -> Result<(), ControlError> {
    let wanted: BTreeSet<u32> = config.ports.iter().map(|p| p.port).collect();
    sockets.retain(|s| wanted.contains(&s.ifindex()));
    for port in wanted {
        if !sockets.iter().any(|s| s.ifindex() == port) {
            sockets.push(PacketSocket::open(port)?);
        }
    }
    Ok(())
}

/// Sends frames that the data plane passed up for flooding.
fn flood(
    sockets: &[PacketSocket],
    config: &switch::SwitchConfig,
    is_known: &dyn Fn([u8; 6], u16) -> Result<bool, ControlError>,
) -> Result<(), ControlError> {
    for socket in sockets {
        for _ in 0..TURN {
            let Some(frame) = socket.receive()? else { break };
            let Some((to, vlan)) = config.destination(socket.ifindex(), &frame) else { continue };
            // A known destination that came up all the same is this machine's own, or was learned meanwhile.
            if to[0] & 1 == 0 && is_known(to, vlan)? {
                continue;
            }
            for (port, copy) in config.flood(socket.ifindex(), &frame) {
                let Some(out) = sockets.iter().find(|s| s.ifindex() == port) else { continue };
                // A port that is down or whose queue is full loses the frame, as a switch's port does.
                if let Err(e) = out.send(&copy) {
                    tracing::debug!("{e}");
                }
            }
        }
    }
    Ok(())
}
