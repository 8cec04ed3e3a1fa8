//! Controllers and their streams: election of a primary controller for each role, and queues to all of them.
//! Source: P4Runtime specification 1.4, sections 5 and 16.

use std::collections::BTreeMap;

use millstream_p4runtime::proto::rpc;
use millstream_p4runtime::proto::v1::{
    MasterArbitrationUpdate, Role, StreamMessageResponse, Uint128, stream_message_response,
};
use tokio::sync::mpsc;
use tonic::{Code, Status};

/// Messages that wait for one controller, at most; what does not fit is lost, and counted.
pub(crate) const MOST_WAITING: usize = 1 << 14;

/// Number of a controller's stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StreamId(u64);

/// Queue to a controller.
pub(crate) type ControllerQueue = mpsc::Sender<Result<StreamMessageResponse, Status>>;

/// A controller that took part in an election.
struct Candidate {
    role: String,
    /// Election id; a candidate without one never wins.
    election: Option<u128>,
}

struct ControllerStream {
    queue: ControllerQueue,
    candidate: Option<Candidate>,
}

/// All controllers of the switch.
pub(crate) struct ControllerStreams {
    device: u64,
    streams: BTreeMap<StreamId, ControllerStream>,
    /// Highest election id of a primary controller that each role has ever had.
    highest: BTreeMap<String, u128>,
    last: u64,
    /// Messages that found no place in a controller's queue.
    pub(crate) lost: u64,
}

/// Election id as a number; 0 is an election id, too.
pub(crate) fn election_number(id: Option<&Uint128>) -> Option<u128> {
    id.map(|id| u128::from(id.high) << 64 | u128::from(id.low))
}

impl ControllerStreams {
    /// No controllers yet.
    pub(crate) fn new(device: u64) -> ControllerStreams {
        ControllerStreams { device, streams: BTreeMap::new(), highest: BTreeMap::new(), last: 0, lost: 0 }
    }

    /// Adds a controller's stream.
    pub(crate) fn open(&mut self, queue: ControllerQueue) -> StreamId {
        self.last += 1;
        let id = StreamId(self.last);
        self.streams.insert(id, ControllerStream { queue, candidate: None });
        id
    }

    /// Removes a stream. If it was that of a primary controller, the others of its role are told.
    pub(crate) fn close(&mut self, id: StreamId) {
        let Some(closed) = self.streams.remove(&id) else { return };
        if let Some(candidate) = closed.candidate
            && candidate.election.is_some()
            && self.highest.get(&candidate.role).copied() == candidate.election
        {
            self.announce(&candidate.role);
        }
    }

    /// Primary controller of a role, if there is one, and its election id.
    fn primary(&self, role: &str) -> Option<(StreamId, u128)> {
        let highest = *self.highest.get(role)?;
        let is_primary = |stream: &ControllerStream| {
            let candidate = stream.candidate.as_ref();
            candidate.is_some_and(|own| own.role == role && own.election == Some(highest))
        };
        let found = self.streams.iter().find(|(_, stream)| is_primary(stream));
        found.map(|(id, _)| (*id, highest))
    }

    /// Takes a controller's part in an election.
    pub(crate) fn arbitrate(&mut self, id: StreamId, given: &MasterArbitrationUpdate) -> Result<(), Status> {
        let role = given.role.as_ref().map(role_name).unwrap_or_default();
        let election = election_number(given.election_id.as_ref());
        self.check_candidate(id, given, (&role, election))?;
        let was_primary = self.is_primary(id);
        let Some(stream) = self.streams.get_mut(&id) else {
            return Err(Status::aborted("the stream is closed"));
        };
        stream.candidate = Some(Candidate { role: role.clone(), election });
        let wins = election.is_some() && election >= self.highest.get(&role).copied();
        if let Some(election) = election.filter(|_| wins) {
            self.highest.insert(role.clone(), election);
        }
        // All are told of a new primary, and of one that stepped back; else only the one that asked.
        match wins || was_primary {
            true => self.announce(&role),
            false => self.answer(id, &role),
        }
        Ok(())
    }

    /// Checks the message of a candidate. Source: section 5.4, "Rules for Handling MasterArbitrationUpdate".
    fn check_candidate(
        &self,
        id: StreamId,
        given: &MasterArbitrationUpdate,
        (role, election): (&str, Option<u128>),
    ) -> Result<(), Status> {
        let before = self.streams.get(&id).and_then(|stream| stream.candidate.as_ref());
        if given.device_id != self.device {
            let message = format!("there is no device {}; this is {}", given.device_id, self.device);
            return Err(match before {
                Some(_) => Status::failed_precondition("a stream cannot change its device"),
                None => Status::not_found(message),
            });
        }
        if before.is_some_and(|before| before.role != role) {
            return Err(Status::failed_precondition("a stream cannot change its role"));
        }
        if given.role.as_ref().is_some_and(|role| role.config.is_some()) {
            let message = "roles with a config are not supported; all roles may do everything";
            return Err(Status::invalid_argument(message));
        }
        let is_other = |(other, stream): (&StreamId, &ControllerStream)| {
            let same = |candidate: &Candidate| candidate.role == role && candidate.election == election;
            *other != id && stream.candidate.as_ref().is_some_and(same)
        };
        match election.is_some() && self.streams.iter().any(is_other) {
            true => Err(Status::invalid_argument("another controller of this role has the same election id")),
            false => Ok(()),
        }
    }

    /// Tells all controllers of a role who is primary.
    fn announce(&mut self, role: &str) {
        let is_member = |stream: &ControllerStream| {
            stream.candidate.as_ref().is_some_and(|candidate| candidate.role == role)
        };
        let members: Vec<StreamId> =
            self.streams.iter().filter(|(_, stream)| is_member(stream)).map(|(id, _)| *id).collect();
        members.into_iter().for_each(|id| self.answer(id, role));
    }

    fn answer(&mut self, id: StreamId, role: &str) {
        let primary = self.primary(role);
        let (code, message) = match primary {
            Some((primary, _)) if primary == id => (Code::Ok, "this controller is primary"),
            Some(_) => (Code::AlreadyExists, "another controller is primary"),
            None => (Code::NotFound, "no controller is primary"),
        };
        let highest = self.highest.get(role);
        let update = MasterArbitrationUpdate {
            device_id: self.device,
            role: (!role.is_empty()).then(|| Role { name: role.to_owned(), ..Role::default() }),
            election_id: highest.map(|id| Uint128 { high: (id >> 64) as u64, low: *id as u64 }),
            status: Some(rpc::Status { code: code as i32, message: message.to_owned(), details: Vec::new() }),
        };
        self.send(id, stream_message_response::Update::Arbitration(update));
    }

    /// Checks that a writer is the primary controller of its role.
    pub(crate) fn check_writer(&self, device: u64, role: &str, election: Option<u128>) -> Result<(), Status> {
        self.check_device(device)?;
        match self.primary(role) {
            Some((_, primary)) if Some(primary) == election => Ok(()),
            Some(_) => {
                Err(Status::permission_denied("this election id is not that of the primary controller"))
            }
            None => Err(Status::permission_denied("no controller is primary: open a stream first")),
        }
    }

    /// Checks the number of the device.
    pub(crate) fn check_device(&self, device: u64) -> Result<(), Status> {
        match device == self.device {
            true => Ok(()),
            false => Err(Status::not_found(format!("there is no device {device}; this is {}", self.device))),
        }
    }

    /// Tells if a stream is that of a primary controller.
    pub(crate) fn is_primary(&self, id: StreamId) -> bool {
        let role = self.streams.get(&id).and_then(|stream| stream.candidate.as_ref());
        role.is_some_and(|candidate| self.primary(&candidate.role).is_some_and(|(primary, _)| primary == id))
    }

    /// Sends a message to one controller. Never waits.
    pub(crate) fn send(&mut self, id: StreamId, update: stream_message_response::Update) {
        let Some(stream) = self.streams.get(&id) else { return };
        if stream.queue.try_send(Ok(StreamMessageResponse { update: Some(update) })).is_err() {
            self.lost += 1;
        }
    }

    /// Sends a message to the primary controller of each role.
    pub(crate) fn send_to_primaries(&mut self, update: &stream_message_response::Update) {
        let roles: Vec<String> = self.highest.keys().cloned().collect();
        let primaries: Vec<StreamId> = roles.iter().filter_map(|role| Some(self.primary(role)?.0)).collect();
        if primaries.is_empty() {
            self.lost += 1;
        }
        primaries.into_iter().for_each(|id| self.send(id, update.clone()));
    }
}

/// Name of a role; earlier versions number them.
fn role_name(role: &Role) -> String {
    #[expect(deprecated, reason = "controllers of earlier versions set the old field")]
    match (role.name.as_str(), role.id) {
        ("", 0) => String::new(),
        ("", id) => id.to_string(),
        (name, _) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(election: u64) -> MasterArbitrationUpdate {
        let election_id = Some(Uint128 { high: 0, low: election });
        MasterArbitrationUpdate { device_id: 1, election_id, ..MasterArbitrationUpdate::default() }
    }

    fn status(receiver: &mut mpsc::Receiver<Result<StreamMessageResponse, Status>>) -> Vec<i32> {
        let mut codes = Vec::new();
        while let Ok(Ok(message)) = receiver.try_recv() {
            if let Some(stream_message_response::Update::Arbitration(update)) = message.update {
                codes.push(update.status.map_or(-1, |status| status.code));
            }
        }
        codes
    }

    #[test]
    fn the_highest_election_id_is_primary_and_none_follows_it() {
        let mut streams = ControllerStreams::new(1);
        let (a, mut of_a) = mpsc::channel(8);
        let (b, mut of_b) = mpsc::channel(8);
        let (a, b) = (streams.open(a), streams.open(b));
        streams.arbitrate(a, &update(5)).unwrap();
        assert_eq!(status(&mut of_a), [0]);
        streams.arbitrate(b, &update(3)).unwrap();
        assert_eq!((status(&mut of_a), status(&mut of_b)), (vec![], vec![6]));
        assert!(
            streams.check_writer(1, "", Some(5)).is_ok() && streams.check_writer(1, "", Some(3)).is_err()
        );
        streams.arbitrate(b, &update(7)).unwrap();
        assert_eq!((status(&mut of_a), status(&mut of_b)), (vec![6], vec![0]));
        streams.close(b);
        assert_eq!(status(&mut of_a), [5]);
        assert!(
            streams.check_writer(1, "", Some(5)).is_err() && streams.check_writer(1, "", Some(7)).is_err()
        );
    }

    #[test]
    fn an_election_id_of_zero_wins_and_none_does_not() {
        let mut streams = ControllerStreams::new(1);
        let (a, mut of_a) = mpsc::channel(8);
        let (b, mut of_b) = mpsc::channel(8);
        let (a, b) = (streams.open(a), streams.open(b));
        streams.arbitrate(a, &MasterArbitrationUpdate { election_id: None, ..update(0) }).unwrap();
        assert_eq!(status(&mut of_a), [5]);
        assert!(streams.check_writer(1, "", None).is_err());
        streams.arbitrate(b, &update(0)).unwrap();
        assert_eq!((status(&mut of_a), status(&mut of_b)), (vec![6], vec![0]));
        assert!(streams.check_writer(1, "", Some(0)).is_ok() && streams.check_writer(1, "", None).is_err());
        // A primary that steps back is followed by none, and all are told.
        streams.arbitrate(b, &update(4)).unwrap();
        streams.arbitrate(b, &update(2)).unwrap();
        assert_eq!((status(&mut of_a), status(&mut of_b)), (vec![6, 5], vec![0, 5]));
        assert!(streams.check_writer(1, "", Some(2)).is_err());
        let moved = MasterArbitrationUpdate { device_id: 2, ..update(9) };
        assert_eq!(streams.arbitrate(b, &moved).unwrap_err().code(), Code::FailedPrecondition);
    }

    #[test]
    fn equal_election_ids_and_other_devices_are_refused() {
        let mut streams = ControllerStreams::new(1);
        let ids = [(); 2].map(|()| streams.open(mpsc::channel(8).0));
        streams.arbitrate(ids[0], &update(5)).unwrap();
        assert_eq!(streams.arbitrate(ids[1], &update(5)).unwrap_err().code(), Code::InvalidArgument);
        let other = MasterArbitrationUpdate { device_id: 2, ..update(9) };
        assert_eq!(streams.arbitrate(ids[1], &other).unwrap_err().code(), Code::NotFound);
    }

    #[test]
    fn roles_have_primaries_of_their_own() {
        let mut streams = ControllerStreams::new(1);
        let ids = [(); 2].map(|()| streams.open(mpsc::channel(8).0));
        let role = Some(Role { name: "acl".into(), ..Role::default() });
        streams.arbitrate(ids[0], &update(5)).unwrap();
        streams.arbitrate(ids[1], &MasterArbitrationUpdate { role, ..update(5) }).unwrap();
        assert!(streams.is_primary(ids[0]) && streams.is_primary(ids[1]));
    }
}
