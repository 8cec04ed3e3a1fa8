//! Waiting packets of graphs: translates the graph's description to queue specifications, and writes queue
//! counters back to the graph's state.

use std::ops::Range;

use millstream_click::{Burst, Lane, Number, Pace, Part, Program, Turns};
use millstream_native::Engine;
use millstream_native::io::timed::{self, LaneSpec, Room, RoomSpec, ServerSpec};

use crate::handlers;

/// Current value of a number.
fn number(engine: &mut Engine, number: Number) -> u64 {
    let now = match number {
        Number::Fixed(value) => value,
        Number::Setting(at) => handlers::setting(engine, at),
    };
    u64::try_from(now).unwrap_or(0)
}

/// Current value of a number, unless it is negative.
fn signed(engine: &mut Engine, said: Number) -> Option<u64> {
    let negative = match said {
        Number::Fixed(value) => value < 0,
        Number::Setting(at) => handlers::setting(engine, at) < 0,
    };
    (!negative).then(|| number(engine, said))
}

fn pace(engine: &mut Engine, pace: &Pace) -> timed::Pace {
    match *pace {
        Pace::Rate { rate, burst, bytes } => {
            let burst = match burst {
                Burst::Nanoseconds(time) => timed::Burst::Nanoseconds(time),
                Burst::Tokens(tokens) => timed::Burst::Tokens(tokens),
            };
            timed::Pace::Rate { rate: number(engine, rate), burst, bytes }
        }
        Pace::Delay(time) => timed::Pace::Delay(time),
        Pace::Upto { limit, base, active } => {
            let most =
                signed(engine, limit).map_or(u64::MAX, |limit| limit.saturating_add(number(engine, base)));
            timed::Pace::Upto(if number(engine, active) == 0 { 0 } else { most })
        }
        Pace::Link { latency, bandwidth } => timed::Pace::Link { latency, bandwidth },
        Pace::Every { interval, burst } => timed::Pace::Every { interval, burst },
    }
}

/// Sources that are pulled by turns.
pub fn pulls(program: &Program) -> Vec<timed::Turns> {
    program.waits.pulls.iter().map(turns).collect()
}

fn turns(said: &Turns) -> timed::Turns {
    let all = |said: &[Turns]| said.iter().map(turns).collect();
    match said {
        Turns::Lane(lane) => timed::Turns::Lane(*lane),
        Turns::RoundRobin(said) => timed::Turns::RoundRobin(all(said)),
        Turns::First(said) => timed::Turns::First(all(said)),
        Turns::Strides(said) => {
            timed::Turns::Strides(said.iter().map(|(tickets, said)| (*tickets, turns(said))).collect())
        }
    }
}

fn capacity(engine: &mut Engine, lane: &Lane) -> Option<u64> {
    lane.queue.map(|queue| number(engine, queue.capacity))
}

fn bytes(part: Part) -> Range<usize> {
    let at = part.at as usize;
    at..at + part.bytes as usize
}

/// Specification of the queues for a program's waiting packets.
pub fn spec(program: &Program, engine: &mut Engine) -> RoomSpec {
    let waits = &program.waits;
    let lanes = waits.lanes.iter().map(|lane| LaneSpec {
        name: lane.element.clone(),
        capacity: capacity(engine, lane),
        front: lane.queue.is_some_and(|queue| queue.front),
        number: lane.number,
        numbered: bytes(lane.numbered),
        notes: lane.notes.iter().map(|(note, part)| (*note, bytes(*part))).collect(),
    });
    let lanes = lanes.collect();
    let servers = waits.servers.iter().map(|server| ServerSpec {
        name: server.element.clone(),
        pace: pace(engine, &server.pace),
        turns: turns(&server.turns),
        feeds: server.feeds,
    });
    RoomSpec { lanes, servers: servers.collect(), kept: waits.kept as usize }
}

/// Applies settings that handlers have changed.
pub fn renew(program: &Program, engine: &mut Engine, room: &mut Room) {
    let live = |number: Number| matches!(number, Number::Setting(_));
    for (at, server) in program.waits.servers.iter().enumerate() {
        let may_change = match server.pace {
            Pace::Rate { rate, .. } => live(rate),
            Pace::Upto { limit, base, active } => [limit, base, active].into_iter().any(live),
            _ => false,
        };
        if may_change {
            room.set_pace(at, pace(engine, &server.pace));
        }
    }
    for (at, lane) in program.waits.lanes.iter().enumerate() {
        if lane.queue.is_some_and(|queue| live(queue.capacity)) {
            room.set_capacity(at, capacity(engine, lane));
        }
    }
}

/// Writes the counters of queues into the state, for handlers and the account.
pub fn tell(program: &Program, engine: &mut Engine, room: &mut Room) {
    let Some(told) = room.told() else { return };
    let mut state = handlers::state(engine);
    for (lane, told) in program.waits.lanes.iter().zip(told) {
        let Some(queue) = lane.queue else { continue };
        let [highest, dropped] = [queue.highest, queue.dropped].map(|at| handlers::number(&state, at));
        let numbers = [
            (queue.length, told.length),
            (queue.highest, highest.max(told.highest)),
            (queue.dropped, dropped + told.dropped),
        ];
        for (at, number) in numbers {
            if let Some(place) = state.get_mut(at as usize..at as usize + 8) {
                place.copy_from_slice(&number.to_le_bytes());
            }
        }
    }
    handlers::set_state(engine, &state);
}
