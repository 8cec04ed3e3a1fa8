//! Keys of lookups, as the source has them and as far as they are known.

use millstream_ir::{KeyLayout, KeyPiece};
use smallvec::SmallVec;

use super::eval::{AbstractValue, MergeId, read};
use super::partial_eval::pieces_of;

/// A key as the source has it, and as far as it is known.
pub(crate) struct AbstractKey {
    pub(super) given: KeySource,
    pub(super) known: KeyKnown,
    /// Address of the map of the lookup, if it is an inner one. Then nothing is known of the key.
    pub(super) object: Option<AbstractValue>,
}

impl AbstractKey {
    /// The value of a piece of the key, if it is known in pieces.
    pub(super) fn piece(&self, wanted: KeyPiece) -> Option<AbstractValue> {
        let (KeySource::Values(layout, args) | KeySource::Stack(_, layout, args)) = &self.given else {
            return None;
        };
        layout.iter().zip(args).find(|(piece, _)| **piece == wanted).map(|(_, abs)| *abs)
    }
}

/// Form in which the source has a key.
pub(super) enum KeySource {
    Values(KeyLayout, SmallVec<[AbstractValue; 4]>),
    /// Pointer to the stack, layout and values of the pieces.
    Stack(AbstractValue, KeyLayout, SmallVec<[AbstractValue; 4]>),
    Pointer(AbstractValue),
}

/// Contents of a key, as far as they are known.
pub(super) enum KeyKnown {
    No,
    Constant(Vec<u8>),
    /// Depends on the path that led to the merged values.
    Merged(MergeId, Vec<Vec<u8>>),
}

/// The bytes of a key with these pieces, in their order.
pub(super) fn key_bytes(
    layout: &KeyLayout,
    size: u32,
    value: impl Fn(usize) -> Option<i64>,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size as usize];
    for (n, piece) in layout.iter().enumerate() {
        let (start, len) = (usize::from(piece.offset), piece.size.bytes() as usize);
        bytes[start..start + len].copy_from_slice(&value(n)?.to_le_bytes()[..len]);
    }
    Some(bytes)
}

/// A constant key as pieces.
pub(super) fn constant_pieces(bytes: &[u8]) -> (KeyLayout, SmallVec<[AbstractValue; 4]>) {
    let pieces = pieces_of(bytes.len() as u32);
    let part = |p: &KeyPiece| read(bytes, u32::from(p.offset), p.size, false).unwrap_or(0);
    let args = pieces.iter().map(|p| AbstractValue::Const(part(p))).collect();
    (pieces, args)
}
