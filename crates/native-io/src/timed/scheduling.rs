//! Order of service among lanes of waiting packets: the schedulers in front of an element that pulls.

/// Lanes to pull from, and the order of pulling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchedulingPolicy {
    /// A lane, by its number.
    Lane(usize),
    /// One after the other; empty ones are skipped.
    RoundRobin(Vec<SchedulingPolicy>),
    /// The first one that has packets.
    First(Vec<SchedulingPolicy>),
    /// In proportion to tickets (stride scheduling: Waldspurger and Weihl, 1995).
    Strides(Vec<(u64, SchedulingPolicy)>),
}

impl SchedulingPolicy {
    /// All lanes.
    pub(super) fn lanes(&self) -> Vec<usize> {
        match self {
            SchedulingPolicy::Lane(lane) => vec![*lane],
            SchedulingPolicy::RoundRobin(all) | SchedulingPolicy::First(all) => {
                all.iter().flat_map(SchedulingPolicy::lanes).collect()
            }
            SchedulingPolicy::Strides(all) => all.iter().flat_map(|(_, turns)| turns.lanes()).collect(),
        }
    }
}

/// Stride of a client with one ticket.
const STRIDE: u64 = 1 << 32;

/// [`SchedulingPolicy`], and the position in them.
#[derive(Clone, Debug)]
pub(super) enum QueueScheduler {
    Lane(usize),
    RoundRobin { all: Vec<QueueScheduler>, next: usize },
    First(Vec<QueueScheduler>),
    Strides { all: Vec<StrideQueue>, along: u64, turn: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct StrideQueue {
    stride: u64,
    /// Its pass value.
    along: u64,
    /// Turn at which it reached this pass: of several with the same pass, the one that reached it last is
    /// next.
    since: u64,
    of: QueueScheduler,
}

impl From<&SchedulingPolicy> for QueueScheduler {
    fn from(turns: &SchedulingPolicy) -> QueueScheduler {
        let all = |turns: &[SchedulingPolicy]| turns.iter().map(QueueScheduler::from).collect();
        match turns {
            SchedulingPolicy::Lane(lane) => QueueScheduler::Lane(*lane),
            SchedulingPolicy::RoundRobin(turns) => QueueScheduler::RoundRobin { all: all(turns), next: 0 },
            SchedulingPolicy::First(turns) => QueueScheduler::First(all(turns)),
            SchedulingPolicy::Strides(clients) => {
                let client = |(tickets, turns): &(u64, SchedulingPolicy)| {
                    let stride = STRIDE / (*tickets).clamp(1, STRIDE);
                    StrideQueue { stride, along: stride, since: 0, of: turns.into() }
                };
                QueueScheduler::Strides { all: clients.iter().map(client).collect(), along: 0, turn: 0 }
            }
        }
    }
}

impl QueueScheduler {
    /// The lane whose turn it is, of those that have packets.
    pub(super) fn next(&self, has: &dyn Fn(usize) -> bool) -> Option<usize> {
        match self {
            QueueScheduler::Lane(lane) => Some(*lane).filter(|lane| has(*lane)),
            QueueScheduler::RoundRobin { all, next } => {
                let (behind, before) = all.split_at((*next).min(all.len()));
                before.iter().chain(behind).find_map(|one| one.next(has))
            }
            QueueScheduler::First(all) => all.iter().find_map(|one| one.next(has)),
            QueueScheduler::Strides { all, along, .. } => {
                let ready = all.iter().filter_map(|client| {
                    let lane = client.of.next(has)?;
                    Some(((client.along.max(*along), std::cmp::Reverse(client.since)), lane))
                });
                ready.reduce(|best, other| if other.0 < best.0 { other } else { best }).map(|(_, lane)| lane)
            }
        }
    }

    /// Records the turn of a lane; returns true if the lane is among these.
    pub(super) fn charge(&mut self, lane: usize) -> bool {
        match self {
            QueueScheduler::Lane(own) => *own == lane,
            QueueScheduler::RoundRobin { all, next } => {
                let at = all.iter_mut().position(|one| one.charge(lane));
                if let Some(at) = at {
                    *next = (at + 1) % all.len();
                }
                at.is_some()
            }
            QueueScheduler::First(all) => all.iter_mut().any(|one| one.charge(lane)),
            QueueScheduler::Strides { all, along, turn } => {
                let Some(client) = all.iter_mut().find_map(|client| client.of.charge(lane).then_some(client))
                else {
                    return false;
                };
                // A client that had nothing for a while does not catch up.
                *along = client.along.max(*along);
                client.along = along.saturating_add(client.stride);
                *turn += 1;
                client.since = *turn;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{QueueScheduler, SchedulingPolicy};

    /// Order of the turns, for lanes that have this many packets.
    fn turns(turns: &SchedulingPolicy, mut packets: Vec<usize>) -> Vec<usize> {
        let mut scheduler = QueueScheduler::from(turns);
        let mut all = Vec::new();
        while let Some(lane) = scheduler.next(&|lane| packets[lane] > 0) {
            packets[lane] -= 1;
            assert!(scheduler.charge(lane));
            all.push(lane);
        }
        assert!(!scheduler.charge(packets.len()));
        all
    }

    #[test]
    fn schedulers_pull_by_turns_by_rank_and_by_tickets() {
        let lanes = |all: &[usize]| all.iter().map(|lane| SchedulingPolicy::Lane(*lane)).collect::<Vec<_>>();
        let round = SchedulingPolicy::RoundRobin(lanes(&[0, 1, 2]));
        assert_eq!(turns(&round, vec![3, 1, 2]), [0, 1, 2, 0, 2, 0]);
        assert_eq!(turns(&SchedulingPolicy::First(lanes(&[1, 0])), vec![2, 2]), [1, 1, 0, 0]);
        let both = SchedulingPolicy::First(vec![
            SchedulingPolicy::RoundRobin(lanes(&[0, 1])),
            SchedulingPolicy::Lane(2),
        ]);
        assert_eq!(turns(&both, vec![2, 1, 1]), [0, 1, 0, 2]);
        let strides =
            SchedulingPolicy::Strides(vec![(3, SchedulingPolicy::Lane(0)), (1, SchedulingPolicy::Lane(1))]);
        assert_eq!(turns(&strides, vec![6, 2]), [0, 0, 0, 1, 0, 0, 0, 1]);
        // As in Click's list of clients, in which a client is inserted in front of those with the same pass.
        let strides = SchedulingPolicy::Strides(vec![
            (4, SchedulingPolicy::Lane(0)),
            (2, SchedulingPolicy::Lane(1)),
            (1, SchedulingPolicy::Lane(2)),
        ]);
        assert_eq!(turns(&strides, vec![8, 4, 2]), [0, 0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1, 2]);
    }
}
