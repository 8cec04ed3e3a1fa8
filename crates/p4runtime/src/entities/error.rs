//! Reasons why an entity is not written or read, with the codes that controllers get.

use thiserror::Error;

use crate::proto::v1;

/// Kind of an error; its number is the canonical code of gRPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum ErrorKind {
    /// The entity is malformed.
    InvalidArgument = 3,
    /// The entity does not exist.
    NotFound = 5,
    /// The entity exists already.
    AlreadyExists = 6,
    /// The program forbids the update.
    PermissionDenied = 7,
    /// There is no room for the entity.
    ResourceExhausted = 8,
    /// Another entity refers to this one.
    FailedPrecondition = 9,
    /// Another update of the batch failed.
    Aborted = 10,
    /// A value does not fit its type, or an index its array.
    OutOfRange = 11,
    /// This target does not have the feature.
    Unimplemented = 12,
}

/// Reason why an entity is not written or read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{message}")]
pub struct EntityError {
    /// Kind, with the code.
    pub kind: ErrorKind,
    /// Text for people.
    pub message: String,
}

impl EntityError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> EntityError {
        EntityError { kind, message: message.into() }
    }

    /// The entity is malformed.
    pub fn invalid(message: impl Into<String>) -> EntityError {
        EntityError::new(ErrorKind::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> EntityError {
        EntityError::new(ErrorKind::NotFound, message)
    }

    /// This target does not have the feature.
    pub fn unimplemented(message: impl Into<String>) -> EntityError {
        EntityError::new(ErrorKind::Unimplemented, message)
    }

    /// Message of one update of a batch.
    pub fn to_message(&self) -> v1::Error {
        v1::Error {
            canonical_code: self.kind as i32,
            message: self.message.clone(),
            space: "p4.org".into(),
            code: self.kind as i32,
            details: None,
        }
    }
}
