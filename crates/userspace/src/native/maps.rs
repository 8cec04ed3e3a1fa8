//! Operations on the maps of a program that runs in this process, with bpftool's syntax and JSON.
//!
//! A request is `list`, `show|dump MAP`, `lookup|delete MAP key DATA`, `getnext MAP [key DATA]`, or
//! `update MAP key DATA value DATA [any|exist|noexist]`. MAP is a name, `name NAME` or `id N`; DATA is bytes
//! as decimal numbers or like `0x0a`, or hexadecimal after `hex`. Answers are those of `bpftool -j map`, for
//! a kernel that has a CPU for each worker. Changes are visible to each worker's next batch.

use millstream_isa::MapType;
use millstream_kernel::errno_name;
use millstream_native::{NativeEngine, NativeMap};
use serde_json::{Value, json};

/// Help text of an error in a request.
pub(crate) const GRAMMAR: &str = "list | show [MAP] | dump MAP | lookup MAP key DATA | \
    getnext MAP [key DATA] | delete MAP key DATA | update MAP key DATA value DATA [any|exist|noexist]; \
    MAP is NAME, name NAME or id N, DATA [hex] BYTES";

/// A request that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MapRequestError {
    /// Reason.
    pub(crate) error: String,
    /// Error number of the kernel, if it would refuse the request; `None` for malformed requests.
    pub(crate) errno: Option<i32>,
}

impl MapRequestError {
    fn wrong(error: impl Into<String>) -> MapRequestError {
        MapRequestError { error: error.into(), errno: None }
    }

    /// The run has ended, and with it the worker that would execute the request.
    pub(crate) fn ended() -> MapRequestError {
        MapRequestError::wrong("the run has ended")
    }

    fn kernel(what: &str, map: &str, errno: i64) -> MapRequestError {
        let errno = errno.unsigned_abs() as i32;
        let words = std::io::Error::from_raw_os_error(errno);
        MapRequestError {
            error: format!("{what} in map {map}: {} ({words})", errno_name(errno)),
            errno: Some(errno),
        }
    }

    /// In bpftool's format, with the error number.
    pub(crate) fn json(&self) -> Value {
        match self.errno {
            Some(errno) => json!({ "error": self.error, "errno": errno }),
            None => json!({ "error": self.error }),
        }
    }
}

/// A map, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapSelector {
    Name(String),
    /// Its index among those of the program, from 1 on.
    Id(usize),
}

/// Requested operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapOperation {
    List,
    Show(MapSelector),
    Dump(MapSelector),
    Lookup(MapSelector, Vec<u8>),
    Next(MapSelector, Option<Vec<u8>>),
    Delete(MapSelector, Vec<u8>),
    Update { map: MapSelector, key: Vec<u8>, value: Vec<u8>, flags: u64 },
}

/// Result of an operation; its JSON is written when no worker waits.
#[derive(Debug)]
pub(crate) enum MapOperationResult {
    Maps(Vec<MapSummary>),
    Map(MapSummary),
    Entries(Vec<PerWorkerEntry>),
    Entry(PerWorkerEntry),
    Next(Option<Vec<u8>>, Vec<u8>),
    /// Success; or, for a look-up, no entry.
    Nothing,
}

/// A map.
#[derive(Debug)]
pub(crate) struct MapSummary {
    id: usize,
    kind: MapType,
    name: String,
    flags: u32,
    key: u32,
    value: u32,
    entries: u32,
}

/// A key, and the value or one of each worker.
#[derive(Debug)]
pub(crate) struct PerWorkerEntry {
    key: Vec<u8>,
    values: Vec<Vec<u8>>,
    each: bool,
}

/// Words of a request.
struct RequestTokens<'w>(std::iter::Peekable<std::slice::Iter<'w, &'w str>>);

impl<'w> RequestTokens<'w> {
    fn next(&mut self, what: &str) -> Result<&'w str, MapRequestError> {
        self.0.next().copied().ok_or_else(|| MapRequestError::wrong(format!("{what} is missing")))
    }

    fn map(&mut self) -> Result<MapSelector, MapRequestError> {
        match self.next("a map")? {
            "name" => Ok(MapSelector::Name(self.next("the name")?.to_owned())),
            "id" => {
                let word = self.next("the id")?;
                let id = word.parse().map_err(|_| MapRequestError::wrong(format!("{word:?} is no id")))?;
                Ok(MapSelector::Id(id))
            }
            name => Ok(MapSelector::Name(name.to_owned())),
        }
    }

    /// Bytes after this keyword.
    fn data(&mut self, word: &str) -> Result<Vec<u8>, MapRequestError> {
        match self.next(&format!("`{word}`"))? {
            found if found == word => {}
            found => return Err(MapRequestError::wrong(format!("{found:?} is where `{word}` should be"))),
        }
        let hex = self.0.next_if(|next| **next == "hex").is_some();
        let mut bytes = Vec::new();
        while let Some(word) = self.0.next_if(|next| !WORDS.contains(*next)) {
            let digits = word.strip_prefix("0x");
            let byte = match (digits, hex) {
                (Some(digits), _) => u8::from_str_radix(digits, 16),
                (None, true) => u8::from_str_radix(word, 16),
                (None, false) => word.parse(),
            };
            bytes.push(byte.map_err(|_| MapRequestError::wrong(format!("{word:?} is no byte")))?);
        }
        Ok(bytes)
    }

    fn end(&mut self) -> Result<(), MapRequestError> {
        match self.0.next() {
            Some(word) => Err(MapRequestError::wrong(format!("{word:?} is too much"))),
            None => Ok(()),
        }
    }
}

/// Keywords that end a list of bytes.
const WORDS: [&str; 5] = ["key", "value", "any", "exist", "noexist"];

/// Reads a request.
pub(crate) fn parse(words: &[&str]) -> Result<MapOperation, MapRequestError> {
    let mut rest = RequestTokens(words.iter().peekable());
    let wanted = match rest.next("what to do")? {
        "list" => MapOperation::List,
        "show" if words.len() == 1 => MapOperation::List,
        "show" => MapOperation::Show(rest.map()?),
        "dump" => MapOperation::Dump(rest.map()?),
        "lookup" => MapOperation::Lookup(rest.map()?, rest.data("key")?),
        "delete" => MapOperation::Delete(rest.map()?, rest.data("key")?),
        "getnext" => {
            let map = rest.map()?;
            let key = rest.0.peek().is_some().then(|| rest.data("key")).transpose()?;
            MapOperation::Next(map, key)
        }
        "update" => {
            let (map, key, value) = (rest.map()?, rest.data("key")?, rest.data("value")?);
            let flags = match rest.0.next().copied() {
                None | Some("any") => 0,
                Some("noexist") => 1,
                Some("exist") => 2,
                Some(word) => {
                    return Err(MapRequestError::wrong(format!("{word:?} is none of any, exist, noexist")));
                }
            };
            MapOperation::Update { map, key, value, flags }
        }
        word => return Err(MapRequestError::wrong(format!("there is no {word:?}: {GRAMMAR}"))),
    };
    rest.end().map(|()| wanted)
}

/// Executes an operation, while no worker is in a batch.
pub(crate) fn carry_out(
    engine: &mut NativeEngine,
    wanted: &MapOperation,
) -> Result<MapOperationResult, MapRequestError> {
    let all =
        |engine: &mut NativeEngine| engine.maps().zip(1..).map(|(map, id)| described(map, id)).collect();
    Ok(match wanted {
        MapOperation::List => MapOperationResult::Maps(all(engine)),
        MapOperation::Show(named) => {
            let (map, id) = find(engine, named)?;
            MapOperationResult::Map(described(map, id))
        }
        MapOperation::Dump(named) => {
            let map = open(engine, named)?;
            if !can_be_walked(map) {
                return Err(MapRequestError::kernel(
                    "keys cannot be walked",
                    map.name(),
                    libc::EOPNOTSUPP.into(),
                ));
            }
            MapOperationResult::Entries(map.keys().into_iter().filter_map(|key| entry(map, key)).collect())
        }
        MapOperation::Lookup(named, key) => {
            let map = sized(open(engine, named)?, key, None)?;
            entry(map, key.clone()).map_or(MapOperationResult::Nothing, MapOperationResult::Entry)
        }
        MapOperation::Next(named, key) => {
            let map = open(engine, named)?;
            if let Some(key) = key {
                sized(map, key, None)?;
            }
            let keys = map.keys();
            // A missing key is followed by the first one, as in the kernel.
            let at = key.as_ref().and_then(|key| keys.iter().position(|known| known == key));
            let next = keys.into_iter().nth(at.map_or(0, |at| at + 1));
            let none = || MapRequestError::kernel("there is no next key", map.name(), libc::ENOENT.into());
            MapOperationResult::Next(key.clone(), next.ok_or_else(none)?)
        }
        MapOperation::Delete(named, key) => {
            let map = sized(open(engine, named)?, key, None)?;
            done("the key cannot be removed", map.delete(key), map)?
        }
        MapOperation::Update { map, key, value, flags } => {
            let map = sized(open(engine, map)?, key, Some(value))?;
            done("the entry cannot be set", map.update(key, value, *flags, None), map)?
        }
    })
}

fn done(what: &str, errno: i64, map: &NativeMap) -> Result<MapOperationResult, MapRequestError> {
    if errno == 0 {
        Ok(MapOperationResult::Nothing)
    } else {
        Err(MapRequestError::kernel(what, map.name(), errno))
    }
}

fn find<'e>(
    engine: &'e mut NativeEngine,
    named: &MapSelector,
) -> Result<(&'e mut NativeMap, usize), MapRequestError> {
    let names: Vec<String> = engine.maps().map(|map| map.name().to_owned()).collect();
    let is_it = |(map, id): &(&mut NativeMap, usize)| match named {
        MapSelector::Name(name) => map.name() == name,
        MapSelector::Id(wanted) => wanted == id,
    };
    let found = engine.maps().zip(1..).find(is_it);
    found.ok_or_else(|| {
        let named = match named {
            MapSelector::Name(name) => format!("{name:?}"),
            MapSelector::Id(id) => format!("with id {id}"),
        };
        MapRequestError::wrong(format!("there is no map {named}; there are {}", names.join(", ")))
    })
}

/// A map whose entries do not hold addresses of this process.
fn open<'e>(engine: &'e mut NativeEngine, named: &MapSelector) -> Result<&'e mut NativeMap, MapRequestError> {
    let (map, _) = find(engine, named)?;
    match map.holds_addresses() {
        true => Err(MapRequestError::wrong(format!(
            "map {} holds maps or programs: only the object can fill it",
            map.name()
        ))),
        false => Ok(map),
    }
}

fn sized<'m>(
    map: &'m mut NativeMap,
    key: &[u8],
    value: Option<&Vec<u8>>,
) -> Result<&'m mut NativeMap, MapRequestError> {
    let spec = map.spec();
    let fits = |what: &str, have: usize, want: u32| match have == want as usize {
        true => Ok(()),
        false => Err(MapRequestError::wrong(format!(
            "map {} has {what} of {want} bytes, not of {have}",
            map.name()
        ))),
    };
    fits("keys", key.len(), spec.key_size)?;
    value.map_or(Ok(()), |value| fits("values", value.len(), spec.value_size))?;
    Ok(map)
}

fn can_be_walked(map: &NativeMap) -> bool {
    let kind = MapType(map.spec().kind as u32);
    ![MapType::QUEUE, MapType::STACK, MapType::BLOOM_FILTER, MapType::RINGBUF, MapType::PERF_EVENT_ARRAY]
        .contains(&kind)
}

fn described(map: &NativeMap, id: usize) -> MapSummary {
    let spec = map.spec();
    MapSummary {
        id,
        kind: MapType(spec.kind as u32),
        name: map.name().to_owned(),
        flags: spec.flags,
        key: spec.key_size,
        value: spec.value_size,
        entries: spec.max_entries,
    }
}

fn entry(map: &mut NativeMap, key: Vec<u8>) -> Option<PerWorkerEntry> {
    let (value, spec) = (map.get(&key)?, map.spec());
    let (size, each) = (spec.value_size as usize, MapType(spec.kind as u32).is_percpu());
    // Values of workers begin at multiples of eight bytes.
    let values = match each {
        true => {
            value.chunks(size.next_multiple_of(8).max(1)).map(|v| v[..size.min(v.len())].to_vec()).collect()
        }
        false => vec![value],
    };
    Some(PerWorkerEntry { key, values, each })
}

fn bytes(bytes: &[u8]) -> Value {
    bytes.iter().map(|byte| Value::from(format!("0x{byte:02x}"))).collect()
}

impl MapSummary {
    fn json(&self) -> Value {
        let MapSummary { id, kind, name, flags, key, value, entries } = self;
        json!({
            "id": id, "type": kind.to_string(), "name": name, "flags": flags,
            "bytes_key": key, "bytes_value": value, "max_entries": entries,
        })
    }
}

impl PerWorkerEntry {
    fn json(&self) -> Value {
        let key = bytes(&self.key);
        if !self.each {
            return json!({ "key": key, "value": self.values.first().map(|value| bytes(value)) });
        }
        let of = |(cpu, value): (usize, &Vec<u8>)| json!({ "cpu": cpu, "value": bytes(value) });
        json!({ "key": key, "values": self.values.iter().enumerate().map(of).collect::<Vec<_>>() })
    }
}

impl MapOperationResult {
    /// In bpftool's format.
    pub(crate) fn json(&self) -> Value {
        match self {
            MapOperationResult::Maps(maps) => maps.iter().map(MapSummary::json).collect(),
            MapOperationResult::Map(map) => map.json(),
            MapOperationResult::Entries(entries) => entries.iter().map(PerWorkerEntry::json).collect(),
            MapOperationResult::Entry(entry) => entry.json(),
            MapOperationResult::Next(key, next) => {
                json!({ "key": key.as_deref().map(bytes), "next_key": bytes(next) })
            }
            MapOperationResult::Nothing => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<MapOperation, MapRequestError> {
        parse(&text.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn requests_are_bpftools() {
        let name = || MapSelector::Name("x".into());
        for (text, wanted) in [
            ("list", MapOperation::List),
            ("show", MapOperation::List),
            ("show id 3", MapOperation::Show(MapSelector::Id(3))),
            ("dump name x", MapOperation::Dump(name())),
            ("lookup x key 1 0x0a 255", MapOperation::Lookup(name(), vec![1, 10, 255])),
            ("lookup x key hex 01 0a ff", MapOperation::Lookup(name(), vec![1, 10, 255])),
            ("getnext x", MapOperation::Next(name(), None)),
            ("getnext x key 7", MapOperation::Next(name(), Some(vec![7]))),
            ("delete x key 7", MapOperation::Delete(name(), vec![7])),
            (
                "update x key 7 value hex 10 0x11 noexist",
                MapOperation::Update { map: name(), key: vec![7], value: vec![16, 17], flags: 1 },
            ),
            (
                "update x key 7 value 1 any",
                MapOperation::Update { map: name(), key: vec![7], value: vec![1], flags: 0 },
            ),
            (
                "update x key value exist",
                MapOperation::Update { map: name(), key: vec![], value: vec![], flags: 2 },
            ),
        ] {
            assert_eq!(words(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn requests_that_are_wrong_are_refused_with_the_word() {
        for (text, reason) in [
            ("", "what to do is missing"),
            ("drop x", "there is no \"drop\""),
            ("dump", "a map is missing"),
            ("show id seven", "\"seven\" is no id"),
            ("lookup x", "`key` is missing"),
            ("lookup x value 1", "\"value\" is where `key` should be"),
            ("lookup x key 256", "\"256\" is no byte"),
            ("lookup x key hex 1g", "\"1g\" is no byte"),
            ("lookup x key 1 value 2", "\"value\" is too much"),
            ("update x key 1", "`value` is missing"),
            ("update x key 1 value 2 any any", "\"any\" is too much"),
            ("list all", "\"all\" is too much"),
        ] {
            let refusal = words(text).expect_err(text);
            assert!(refusal.error.contains(reason) && refusal.errno.is_none(), "{text}: {refusal:?}");
        }
    }
}
