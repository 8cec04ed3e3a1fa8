//! Batches of updates. Source: P4Runtime specification 1.4, sections 12.2 and 12.3.

use prost::Message as _;
use prost_types::Any;

use crate::entities::error::{EntityError, ErrorKind};
use crate::entities::state::EntityStore;
use crate::proto::rpc::Status;
use crate::proto::v1::{self, Update, write_request::Atomicity};

/// Code of a batch in which an update failed.
const UNKNOWN: i32 = 2;

/// Type of the messages about updates.
const ERROR_TYPE: &str = "type.googleapis.com/p4.v1.Error";

/// Results of the updates of a batch, in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchOutcome {
    /// One result for each update.
    pub results: Vec<Result<(), EntityError>>,
}

impl BatchOutcome {
    /// Tells if all updates were made.
    pub fn is_success(&self) -> bool {
        self.results.iter().all(Result::is_ok)
    }

    /// Status of the call: none if all updates were made, else one message for each update.
    pub fn status(&self) -> Option<Status> {
        if self.is_success() {
            return None;
        }
        let detail = |result: &Result<(), EntityError>| {
            let message = result.as_ref().map_or_else(EntityError::to_message, |()| v1::Error::default());
            Any { type_url: ERROR_TYPE.into(), value: message.encode_to_vec() }
        };
        let details = self.results.iter().map(detail).collect();
        Some(Status { code: UNKNOWN, message: "an update failed".into(), details })
    }
}

impl EntityStore {
    /// Writes a batch: updates that fail are skipped, or undo the whole batch.
    ///
    /// A batch that is atomic for packets is all or nothing, too; the store has no packets that could see its
    /// parts.
    pub fn write_batch(&mut self, updates: &[Update], atomicity: Atomicity) -> BatchOutcome {
        match atomicity {
            Atomicity::ContinueOnError => {
                BatchOutcome { results: updates.iter().map(|update| self.write(update)).collect() }
            }
            Atomicity::RollbackOnError | Atomicity::DataplaneAtomic => self.write_whole(updates),
        }
    }

    fn write_whole(&mut self, updates: &[Update]) -> BatchOutcome {
        let mut steps = Vec::with_capacity(updates.len());
        for (at, update) in updates.iter().enumerate() {
            match self.write_undoable(update) {
                Ok(undo) => steps.extend(undo),
                Err(error) => {
                    steps.into_iter().rev().for_each(|step| self.undo(step));
                    return failed(updates.len(), at, &error);
                }
            }
        }
        BatchOutcome { results: vec![Ok(()); updates.len()] }
    }
}

pub(crate) fn failed(count: usize, failed_at: usize, error: &EntityError) -> BatchOutcome {
    let result = |at: usize| match at == failed_at {
        true => Err(error.clone()),
        false => Err(EntityError::new(ErrorKind::Aborted, "another update of the batch failed")),
    };
    BatchOutcome { results: (0..count).map(result).collect() }
}
