//! Observable behaviour of a program, and the differences between two.

use millstream_kernel::TestOutput;
use serde::Serialize;

/// Entries of a map, in order of their keys.
pub type SortedEntries = Vec<(Vec<u8>, Vec<u8>)>;

/// Something that the two do differently; the first's first. Bytes are in hexadecimal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "observable", rename_all = "kebab-case")]
pub enum ObservedDifference {
    /// The second is not accepted, and the first is.
    Rejected {
        /// Message of the kernel.
        message: String,
    },
    /// One of them cannot be run on the packet.
    Run {
        /// True if the first can be run, and the second cannot.
        first: bool,
    },
    /// The return value.
    ReturnValue {
        /// Of the first.
        first: u32,
        /// Of the second.
        second: u32,
    },
    /// The packet as it comes out.
    Packet(ByteDifference),
    /// The context as it comes out.
    Context(ByteDifference),
    /// Its other output: records, events, destinations of packets.
    Told(ByteDifference),
    /// Contents of a map.
    Map {
        /// Its name.
        map: String,
        /// The key.
        key: String,
        /// Of the first, if it has the key.
        first: Option<String>,
        /// Of the second, if it has the key.
        second: Option<String>,
    },
}

/// Bytes that differ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ByteDifference {
    /// The first byte that does.
    pub offset: usize,
    /// All bytes of the first.
    pub first: String,
    /// All bytes of the second.
    pub second: String,
}

/// Two runs of the first, and one of the second.
#[derive(Clone, Copy, Debug)]
pub struct RunTriple<T> {
    /// The first.
    pub a: T,
    /// The first, once more.
    pub again: T,
    /// The second.
    pub b: T,
}

/// Result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunComparison {
    /// No difference.
    Same,
    /// The first is not the same twice, in this.
    Varies(String),
    /// The second is not as the first.
    Different(ObservedDifference),
}

impl ObservedDifference {
    /// Description of the place of the difference, without the values.
    pub fn place(&self) -> String {
        match self {
            ObservedDifference::Rejected { .. } => "acceptance".to_owned(),
            ObservedDifference::Run { .. } => "whether it can be run".to_owned(),
            ObservedDifference::ReturnValue { .. } => "return value".to_owned(),
            ObservedDifference::Packet(_) => "packet".to_owned(),
            ObservedDifference::Context(_) => "context".to_owned(),
            ObservedDifference::Told(_) => "what it tells".to_owned(),
            ObservedDifference::Map { map, .. } => format!("map {map}"),
        }
    }

    /// Returns true if another difference is in the same place.
    pub fn same_place(&self, other: &ObservedDifference) -> bool {
        match (self, other) {
            (ObservedDifference::Packet(a), ObservedDifference::Packet(b))
            | (ObservedDifference::Context(a), ObservedDifference::Context(b))
            | (ObservedDifference::Told(a), ObservedDifference::Told(b)) => a.offset == b.offset,
            (
                ObservedDifference::Map { map, key, .. },
                ObservedDifference::Map { map: other, key: at, .. },
            ) => map == other && key == at,
            _ => self.place() == other.place(),
        }
    }

    /// Returns true if this is another difference over again: in the same place, by the same values.
    pub fn is_repetition_of(&self, other: &ObservedDifference) -> bool {
        match (self, other) {
            (ObservedDifference::Rejected { .. }, ObservedDifference::Rejected { .. }) => true,
            (ObservedDifference::Packet(a), ObservedDifference::Packet(b))
            | (ObservedDifference::Context(a), ObservedDifference::Context(b))
            | (ObservedDifference::Told(a), ObservedDifference::Told(b)) => {
                repeats([Some(&a.first), Some(&a.second)], [Some(&b.first), Some(&b.second)])
            }
            (
                ObservedDifference::Map { map, key, first, second },
                ObservedDifference::Map { map: other, key: at, first: old, second: new },
            ) => {
                let pairs = [[first, second], [old, new]].map(|pair| pair.map(|text| text.as_deref()));
                map == other && key == at && repeats(pairs[0], pairs[1])
            }
            _ => self == other,
        }
    }
}

/// Returns true if two pairs of texts differ in the same digit by the same values, or in what they lack. Other digits
/// may be random.
fn repeats<T: AsRef<str>>(one: [Option<T>; 2], other: [Option<T>; 2]) -> bool {
    let bytes = |text: &Option<T>| text.as_ref().map(|t| t.as_ref().as_bytes().to_vec());
    let [a, b] = one.each_ref().map(bytes);
    let [c, d] = other.each_ref().map(bytes);
    let lengths =
        |text: &[&Option<Vec<u8>>]| text.iter().map(|t| t.as_ref().map(Vec::len)).collect::<Vec<_>>();
    if lengths(&[&a, &b]) != lengths(&[&c, &d]) {
        return false;
    }
    let (Some(a), Some(b), Some(c), Some(d)) = (&a, &b, &c, &d) else { return true };
    a.len() != b.len() || (0..a.len()).any(|n| a[n] != b[n] && a[n] == c[n] && b[n] == d[n])
}

/// Compares the results of one packet; `None` where the program could not be run on it.
pub fn outputs(side: RunTriple<Option<&TestOutput>>) -> RunComparison {
    let (Some(a), Some(again), Some(b)) = (side.a, side.again, side.b) else {
        let [a, again, b] = [side.a, side.again, side.b].map(|o| o.is_some());
        return match (a == again, a == b) {
            (false, _) => RunComparison::Varies("whether it can be run".to_owned()),
            (_, true) => RunComparison::Same,
            _ => RunComparison::Different(ObservedDifference::Run { first: a }),
        };
    };
    if a.retval != again.retval {
        return RunComparison::Varies("return value".to_owned());
    }
    if a.retval != b.retval {
        return RunComparison::Different(ObservedDifference::ReturnValue {
            first: a.retval,
            second: b.retval,
        });
    }
    match bytes(RunTriple { a: &a.data, again: &again.data, b: &b.data }) {
        Some(Ok(found)) => return RunComparison::Different(ObservedDifference::Packet(found)),
        Some(Err(())) => return RunComparison::Varies("packet".to_owned()),
        None => {}
    }
    match bytes(RunTriple { a: &a.context, again: &again.context, b: &b.context }) {
        Some(Ok(found)) => RunComparison::Different(ObservedDifference::Context(found)),
        Some(Err(())) => RunComparison::Varies("context".to_owned()),
        None => RunComparison::Same,
    }
}

/// Bytes that the first has twice alike and the second otherwise; `Err` if only the first varies.
fn bytes(side: RunTriple<&[u8]>) -> Option<Result<ByteDifference, ()>> {
    let found =
        |offset| Some(Ok(ByteDifference { offset, first: hex::encode(side.a), second: hex::encode(side.b) }));
    if side.a.len() != side.again.len() {
        return Some(Err(()));
    }
    if side.a.len() != side.b.len() {
        return found(side.a.len().min(side.b.len()));
    }
    if side.a == side.again && side.a == side.b {
        return None;
    }
    let stable = |i: &usize| side.a[*i] == side.again[*i] && side.a[*i] != side.b[*i];
    match (0..side.a.len()).find(stable) {
        Some(offset) => found(offset),
        None => Some(Err(())),
    }
}

/// Compares the records written while one packet was handled: end to end, each with its length before it.
pub fn compare_records(side: RunTriple<&[u8]>) -> RunComparison {
    match bytes(side) {
        Some(Ok(found)) => RunComparison::Different(ObservedDifference::Told(found)),
        Some(Err(())) => RunComparison::Varies("what it tells".to_owned()),
        None => RunComparison::Same,
    }
}

/// Compares the final contents of a map of this name.
pub fn maps(name: &str, side: RunTriple<&SortedEntries>) -> RunComparison {
    if side.a == side.again && side.a == side.b {
        return RunComparison::Same;
    }
    let varies = || RunComparison::Varies(format!("map {name}"));
    if !side.a.iter().map(|(k, _)| k).eq(side.again.iter().map(|(k, _)| k)) {
        return varies();
    }
    let different = |key: &[u8], first: Option<&Vec<u8>>, second: Option<&Vec<u8>>| {
        let (first, second) = (first.map(hex::encode), second.map(hex::encode));
        RunComparison::Different(ObservedDifference::Map {
            map: name.to_owned(),
            key: hex::encode(key),
            first,
            second,
        })
    };
    let get = |all: &SortedEntries, key: &[u8]| all.binary_search_by(|(k, _)| k.as_slice().cmp(key)).ok();
    for (key, value) in side.b {
        if get(side.a, key).is_none() {
            return different(key, None, Some(value));
        }
    }
    let mut unstable = false;
    for ((key, a), (_, again)) in side.a.iter().zip(side.again) {
        let Some(at) = get(side.b, key) else { return different(key, Some(a), None) };
        let b = &side.b[at].1;
        match bytes(RunTriple { a, again, b }) {
            Some(Ok(_)) => return different(key, Some(a), Some(b)),
            Some(Err(())) => unstable = true,
            None => {}
        }
    }
    if unstable { varies() } else { RunComparison::Same }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u8, value: &[u8]) -> (Vec<u8>, Vec<u8>) {
        (vec![key], value.to_vec())
    }

    #[test]
    fn only_what_the_first_does_alike_twice_is_held_against_the_second() {
        let side =
            |a: &'static [u8], again: &'static [u8], b: &'static [u8]| bytes(RunTriple { a, again, b });
        assert!(side(&[1, 2], &[1, 2], &[1, 2]).is_none());
        assert_eq!(side(&[1, 2], &[1, 2], &[1, 3]).unwrap().unwrap().offset, 1);
        assert!(side(&[1, 2], &[1, 9], &[1, 3]).unwrap().is_err());
        assert_eq!(side(&[1, 2], &[1, 9], &[4, 3]).unwrap().unwrap().offset, 0);
        assert_eq!(side(&[1, 2], &[1, 2], &[1]).unwrap().unwrap().offset, 1);
    }

    #[test]
    fn only_the_same_values_make_a_repetition() {
        let value = |first, second| ObservedDifference::ReturnValue { first, second };
        assert!(value(1, 2).is_repetition_of(&value(1, 2)));
        assert!(!value(1, 2).is_repetition_of(&value(1, 3)));
        let packet = |first: &str, second: &str| {
            ObservedDifference::Packet(ByteDifference {
                offset: 0,
                first: first.to_owned(),
                second: second.to_owned(),
            })
        };
        assert!(packet("0102", "0103").is_repetition_of(&packet("7702", "8803")));
        assert!(!packet("0102", "0103").is_repetition_of(&packet("0104", "0105")));
    }

    #[test]
    fn keys_that_only_one_has_are_differences() {
        let (a, b) = (vec![entry(1, &[5]), entry(2, &[6])], vec![entry(1, &[5])]);
        let found = |a: &SortedEntries, b: &SortedEntries| maps("m", RunTriple { a, again: a, b });
        assert!(matches!(found(&a, &a), RunComparison::Same));
        for (x, y) in [(&a, &b), (&b, &a)] {
            let RunComparison::Different(ObservedDifference::Map { key, .. }) = found(x, y) else { panic!() };
            assert_eq!(key, "02");
        }
        let varying = maps("m", RunTriple { a: &a, again: &b, b: &b });
        assert!(matches!(varying, RunComparison::Varies(_)));
    }
}
