//! Waiting packets of graphs: translates the graph's description to queue specifications, and writes queue
//! counters back to the graph's state.

use std::ops::Range;

use millstream_click::{
    ByteRange, ClickProgram, ElementQueue, PullScheduler, ShapingPolicy, TimingParameter, TokenBucketSize,
};
use millstream_native::NativeEngine;
use millstream_native_io::timed::{
    self, PacketQueueConfig, QueueServiceConfig, TimedQueues, TimedQueuesConfig,
};

use crate::handlers;

/// Current value of a number, as it is set.
fn value(engine: &mut NativeEngine, number: TimingParameter) -> i64 {
    match number {
        TimingParameter::Fixed(value) => value,
        TimingParameter::Setting(at) => handlers::setting(engine, at),
        TimingParameter::Equals(at, wanted) => i64::from(handlers::setting(engine, at) == wanted),
    }
}

/// Current value of a number, 0 if it is negative.
fn number(engine: &mut NativeEngine, number: TimingParameter) -> u64 {
    u64::try_from(value(engine, number)).unwrap_or(0)
}

/// Current value of a number, unless it is negative.
fn signed(engine: &mut NativeEngine, said: TimingParameter) -> Option<u64> {
    u64::try_from(value(engine, said)).ok()
}

fn pace(engine: &mut NativeEngine, pace: &ShapingPolicy) -> timed::PacingPolicy {
    match *pace {
        ShapingPolicy::Rate { rate, burst, bytes } => {
            let burst = match burst {
                TokenBucketSize::Nanoseconds(time) => timed::BucketSize::Nanoseconds(time),
                TokenBucketSize::Tokens(tokens) => timed::BucketSize::Tokens(tokens),
            };
            timed::PacingPolicy::Rate { rate: number(engine, rate), burst, bytes }
        }
        ShapingPolicy::Delay(time) => timed::PacingPolicy::Delay(time),
        ShapingPolicy::Upto { limit, base, active } => {
            let most =
                signed(engine, limit).map_or(u64::MAX, |limit| limit.saturating_add(number(engine, base)));
            timed::PacingPolicy::Upto(if number(engine, active) == 0 { 0 } else { most })
        }
        ShapingPolicy::Link { latency, bandwidth } => timed::PacingPolicy::Link { latency, bandwidth },
        ShapingPolicy::Every { interval, burst } => timed::PacingPolicy::Every { interval, burst },
        ShapingPolicy::Replay(of) => timed::PacingPolicy::Replay(timed::ReplayPolicy {
            rounds: u64::try_from(handlers::setting(engine, of.rounds)).ok(),
            active: handlers::setting(engine, of.active) != 0,
            limit: of.limit,
            percent: of.percent,
            most_time: (of.most_time > 0).then_some(of.most_time),
        }),
    }
}

/// Sources that are pulled by turns.
pub fn pull_schedulers(program: &ClickProgram) -> Vec<timed::SchedulingPolicy> {
    program.waits.pulls.iter().map(turns).collect()
}

fn turns(said: &PullScheduler) -> timed::SchedulingPolicy {
    let all = |said: &[PullScheduler]| said.iter().map(turns).collect();
    match said {
        PullScheduler::Lane(lane) => timed::SchedulingPolicy::Lane(*lane),
        PullScheduler::RoundRobin(said) => timed::SchedulingPolicy::RoundRobin(all(said)),
        PullScheduler::First(said) => timed::SchedulingPolicy::First(all(said)),
        PullScheduler::Strides(said) => timed::SchedulingPolicy::Strides(
            said.iter().map(|(tickets, said)| (*tickets, turns(said))).collect(),
        ),
    }
}

fn capacity(engine: &mut NativeEngine, lane: &ElementQueue) -> Option<u64> {
    lane.queue.map(|queue| number(engine, queue.capacity))
}

fn bytes(part: ByteRange) -> Range<usize> {
    let at = part.at as usize;
    at..at + part.bytes as usize
}

/// Specification of the queues for a program's waiting packets.
pub fn queue_spec(program: &ClickProgram, engine: &mut NativeEngine) -> TimedQueuesConfig {
    let waits = &program.waits;
    let lanes = waits.lanes.iter().map(|lane| PacketQueueConfig {
        name: lane.element.clone(),
        capacity: capacity(engine, lane),
        front: lane.queue.is_some_and(|queue| queue.front),
        front_of: lane.front_of,
        number: lane.number,
        numbered: bytes(lane.numbered),
        notes: lane.notes.iter().map(|(note, part)| (*note, bytes(*part))).collect(),
    });
    let lanes = lanes.collect();
    let servers = waits.servers.iter().map(|server| QueueServiceConfig {
        name: server.element.clone(),
        pace: pace(engine, &server.pace),
        turns: turns(&server.turns),
        feeds: server.feeds,
        sources: server.sources.clone(),
    });
    let holds = waits.holds.iter().map(|hold| (hold.source, hold.lanes.clone())).collect();
    TimedQueuesConfig { lanes, servers: servers.collect(), holds, kept: waits.kept as usize }
}

/// Applies settings that handlers have changed.
pub fn apply_settings(program: &ClickProgram, engine: &mut NativeEngine, room: &mut TimedQueues) {
    let live = |number: TimingParameter| !matches!(number, TimingParameter::Fixed(_));
    for (at, server) in program.waits.servers.iter().enumerate() {
        let may_change = match server.pace {
            ShapingPolicy::Rate { rate, .. } => live(rate),
            ShapingPolicy::Upto { limit, base, active } => [limit, base, active].into_iter().any(live),
            ShapingPolicy::Replay(of) => {
                if handlers::setting(engine, of.reset) != 0 {
                    handlers::set_setting(engine, of.reset, 0);
                    room.reset_replay(at);
                }
                true
            }
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
pub fn publish_stats(program: &ClickProgram, engine: &mut NativeEngine, room: &mut TimedQueues) {
    publish_replays(program, engine, room);
    let Some(told) = room.take_stats() else { return };
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
            write_number(&mut state, at, number);
        }
    }
    handlers::set_state(engine, &state);
}

/// Writes the progress of elements that send packets round after round into settings and state.
fn publish_replays(program: &ClickProgram, engine: &mut NativeEngine, room: &mut TimedQueues) {
    for (at, server) in program.waits.servers.iter().enumerate() {
        let ShapingPolicy::Replay(of) = server.pace else { continue };
        let Some(progress) = room.take_progress(at) else { continue };
        let rounds = progress.rounds.map_or(-1, |rounds| i64::try_from(rounds).unwrap_or(i64::MAX));
        handlers::set_setting(engine, of.rounds, rounds);
        handlers::set_setting(engine, of.active, i64::from(progress.active));
        let mut state = handlers::state(engine);
        let [ended, dropped] = [of.ended, of.dropped].map(|at| handlers::number(&state, at));
        let numbers = [
            (of.loading, u64::from(!progress.loaded)),
            (of.ended, ended + progress.ended),
            (of.dropped, dropped + progress.dropped),
        ];
        numbers.into_iter().for_each(|(at, number)| write_number(&mut state, at, number));
        handlers::set_state(engine, &state);
    }
}

/// Writes a number of the state.
fn write_number(state: &mut [u8], at: u32, number: u64) {
    if let Some(place) = state.get_mut(at as usize..at as usize + 8) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}
