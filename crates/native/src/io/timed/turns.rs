//! Order of service among lanes of waiting packets: the schedulers in front of an element that pulls.

/// Lanes to pull from, and the order of pulling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Turns {
    /// A lane, by its number.
    Lane(usize),
    /// One after the other; empty ones are skipped.
    RoundRobin(Vec<Turns>),
    /// The first one that has packets.
    First(Vec<Turns>),
    /// In proportion to tickets (stride scheduling: Waldspurger and Weihl, 1995).
    Strides(Vec<(u64, Turns)>),
}

impl Turns {
    /// All lanes.
    pub(super) fn lanes(&self) -> Vec<usize> {
        match self {
            Turns::Lane(lane) => vec![*lane],
            Turns::RoundRobin(all) | Turns::First(all) => all.iter().flat_map(Turns::lanes).collect(),
            Turns::Strides(all) => all.iter().flat_map(|(_, turns)| turns.lanes()).collect(),
        }
    }
}

/// Stride of a client with one ticket.
const STRIDE: u64 = 1 << 32;

/// [`Turns`], and the position in them.
#[derive(Clone, Debug)]
pub(super) enum Scheduler {
    Lane(usize),
    RoundRobin { all: Vec<Scheduler>, next: usize },
    First(Vec<Scheduler>),
    Strides { all: Vec<Client>, along: u64, turn: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    stride: u64,
    /// Its pass value.
    along: u64,
    /// Turn at which it reached this pass: of several with the same pass, the one that reached it last is
    /// next.
    since: u64,
    of: Scheduler,
}

impl From<&Turns> for Scheduler {
    fn from(turns: &Turns) -> Scheduler {
        let all = |turns: &[Turns]| turns.iter().map(Scheduler::from).collect();
        match turns {
            Turns::Lane(lane) => Scheduler::Lane(*lane),
            Turns::RoundRobin(turns) => Scheduler::RoundRobin { all: all(turns), next: 0 },
            Turns::First(turns) => Scheduler::First(all(turns)),
            Turns::Strides(clients) => {
                let client = |(tickets, turns): &(u64, Turns)| {
                    let stride = STRIDE / (*tickets).clamp(1, STRIDE);
                    Client { stride, along: stride, since: 0, of: turns.into() }
                };
                Scheduler::Strides { all: clients.iter().map(client).collect(), along: 0, turn: 0 }
            }
        }
    }
}

impl Scheduler {
    /// The lane whose turn it is, of those that have packets.
    pub(super) fn next(&self, has: &dyn Fn(usize) -> bool) -> Option<usize> {
        match self {
            Scheduler::Lane(lane) => Some(*lane).filter(|lane| has(*lane)),
            Scheduler::RoundRobin { all, next } => {
                let (behind, before) = all.split_at((*next).min(all.len()));
                before.iter().chain(behind).find_map(|one| one.next(has))
            }
            Scheduler::First(all) => all.iter().find_map(|one| one.next(has)),
            Scheduler::Strides { all, along, .. } => {
                let ready = all.iter().filter_map(|client| {
                    let lane = client.of.next(has)?;
                    Some(((client.along.max(*along), std::cmp::Reverse(client.since)), lane))
                });
                ready.reduce(|best, other| if other.0 < best.0 { other } else { best }).map(|(_, lane)| lane)
            }
        }
    }

    /// Records the turn of a lane; returns true if the lane is among these.
    pub(super) fn had(&mut self, lane: usize) -> bool {
        match self {
            Scheduler::Lane(own) => *own == lane,
            Scheduler::RoundRobin { all, next } => {
                let at = all.iter_mut().position(|one| one.had(lane));
                if let Some(at) = at {
                    *next = (at + 1) % all.len();
                }
                at.is_some()
            }
            Scheduler::First(all) => all.iter_mut().any(|one| one.had(lane)),
            Scheduler::Strides { all, along, turn } => {
                let Some(client) = all.iter_mut().find_map(|client| client.of.had(lane).then_some(client))
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
    use super::{Scheduler, Turns};

    /// Order of the turns, for lanes that have this many packets.
    fn turns(turns: &Turns, mut packets: Vec<usize>) -> Vec<usize> {
        let mut scheduler = Scheduler::from(turns);
        let mut all = Vec::new();
        while let Some(lane) = scheduler.next(&|lane| packets[lane] > 0) {
            packets[lane] -= 1;
            assert!(scheduler.had(lane));
            all.push(lane);
        }
        assert!(!scheduler.had(packets.len()));
        all
    }

    #[test]
    fn schedulers_pull_by_turns_by_rank_and_by_tickets() {
        let lanes = |all: &[usize]| all.iter().map(|lane| Turns::Lane(*lane)).collect::<Vec<_>>();
        let round = Turns::RoundRobin(lanes(&[0, 1, 2]));
        assert_eq!(turns(&round, vec![3, 1, 2]), [0, 1, 2, 0, 2, 0]);
        assert_eq!(turns(&Turns::First(lanes(&[1, 0])), vec![2, 2]), [1, 1, 0, 0]);
        let both = Turns::First(vec![Turns::RoundRobin(lanes(&[0, 1])), Turns::Lane(2)]);
        assert_eq!(turns(&both, vec![2, 1, 1]), [0, 1, 0, 2]);
        let strides = Turns::Strides(vec![(3, Turns::Lane(0)), (1, Turns::Lane(1))]);
        assert_eq!(turns(&strides, vec![6, 2]), [0, 0, 0, 1, 0, 0, 0, 1]);
        // As in Click's list of clients, in which a client is inserted in front of those with the same pass.
        let strides = Turns::Strides(vec![(4, Turns::Lane(0)), (2, Turns::Lane(1)), (1, Turns::Lane(2))]);
        assert_eq!(turns(&strides, vec![8, 4, 2]), [0, 0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1, 2]);
    }
}
