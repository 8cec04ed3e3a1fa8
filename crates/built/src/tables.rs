//! Table entries as handlers read and write them: routes, next hops, addresses that are answered for,
//! stations, flows.
//!
//! Handlers run between batches, when no packet is under way. So packets see each change as a whole, even one
//! of several entries ([`TableOperation::Several`]), which changes all of them or none. The elements of
//! `millstream_click` define the entries' layout.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use millstream_click::arguments::{ether_text, ip_text, ip6_text, prefix_text, prefix6_text};
use millstream_click::{TableFormat, TableOperation};
use millstream_click_elements::bridge_text;
use millstream_native::{NativeEngine, NativeMap};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Error if there is no map.
const GONE: &str = "the table is not there";

/// In an entry for a hop: the length of the packet that waits; and when it was put in or answered last.
const WAITING: usize = 24;
const SINCE: usize = 32;

/// A map's entry: key and value.
type RawEntry = (Vec<u8>, Vec<u8>);
/// Parsed entry: a key, and its value, or `None` to remove it.
type EntryUpdate = (Vec<u8>, Option<Vec<u8>>);

/// A change of one entry, with its previous value.
struct EntryChange {
    key: Vec<u8>,
    before: Option<Vec<u8>>,
}

/// Reads a handler of a table: its value, or an error in the argument.
pub(crate) fn read(
    engine: &mut NativeEngine,
    map: &str,
    form: TableFormat,
    verb: TableOperation,
    argument: &str,
) -> Result<String, String> {
    let now = engine.now();
    let map = engine.map(map).ok_or(GONE)?;
    match verb {
        TableOperation::Count => Ok(map.len().to_string()),
        TableOperation::Waiting => {
            let waits = |(_, value): &&RawEntry| wide(value, WAITING) != 0;
            Ok(entries(map).iter().filter(waits).count().to_string())
        }
        TableOperation::Find => find(map, form, argument, now),
        _ => Ok(lines(map, form, now)),
    }
}

/// All entries, a line each.
fn lines(map: &mut NativeMap, form: TableFormat, now: u64) -> String {
    let mut entries = entries(map);
    entries.sort_unstable_by_key(|entry| order(form, entry));
    entries.iter().map(|entry| line(form, entry, now) + "\n").collect()
}

/// Writes a text to a file, or with `-` to standard output.
fn save(text: &str, name: &str) -> Result<(), String> {
    let written = match name {
        "" => return Err("expected the name of a file, or `-` for standard output".into()),
        #[expect(clippy::disallowed_methods, reason = "errors are returned")]
        "-" => io::stdout().lock().write_all(text.as_bytes()),
        name => std::fs::write(name, text),
    };
    written.map_err(|error| format!("{name}: {error}"))
}

/// Writes a handler of a table.
///
/// # Errors
/// If the value is wrong, or the table does not take it; nothing has changed then.
pub(crate) fn write(
    engine: &mut NativeEngine,
    map: &str,
    form: TableFormat,
    verb: TableOperation,
    value: &str,
) -> Result<(), String> {
    let now = engine.now();
    let map = engine.map(map).ok_or(GONE)?;
    match verb {
        TableOperation::Clear => {
            for key in map.keys() {
                map.delete(&key);
            }
            Ok(())
        }
        TableOperation::Several => several(map, form, value, now),
        TableOperation::Save => save(&lines(map, form, now), value.trim()),
        _ => change(map, form, verb, value, now).map(|_| ()),
    }
}

/// Executes one command per line: all of them, or none.
fn several(map: &mut NativeMap, form: TableFormat, text: &str, now: u64) -> Result<(), String> {
    let mut done: Vec<EntryChange> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let (command, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
        let verb = match command {
            "" => continue,
            "add" => TableOperation::Add,
            "set" => TableOperation::Set,
            "remove" => TableOperation::Remove,
            other => {
                undo(map, done);
                return Err(format!("line {number}: there is no command `{other}`: add, set, remove"));
            }
        };
        match change(map, form, verb, rest, now) {
            Ok(changes) => done.extend(changes),
            Err(why) => {
                undo(map, done);
                return Err(format!("line {number}: {why}"));
            }
        }
    }
    Ok(())
}

/// Undoes changes, the last one first.
fn undo(map: &mut NativeMap, done: Vec<EntryChange>) {
    for EntryChange { key, before } in done.into_iter().rev() {
        // The entry existed a moment ago, so there is room for it.
        match before {
            Some(value) => drop(map.update(&key, &value, 0, None)),
            None => drop(map.delete(&key)),
        }
    }
}

/// Inserts entries, or removes one.
fn change(
    map: &mut NativeMap,
    form: TableFormat,
    verb: TableOperation,
    text: &str,
    now: u64,
) -> Result<Vec<EntryChange>, String> {
    let mut done = Vec::new();
    for (key, value) in parsed(form, verb, text, now)? {
        let before = map.get(&key);
        let refused = match (verb, &before, value) {
            (TableOperation::Remove, None, _) => Some(format!("there is no entry `{}`", text.trim())),
            (TableOperation::Remove, Some(_), _) => {
                map.delete(&key);
                None
            }
            (TableOperation::Add, Some(old), _) => {
                let there = line(form, &(key.clone(), old.clone()), now).replace('\t', " ");
                Some(match form {
                    TableFormat::Routes { .. } => format!("conflict with existing route '{there}'"),
                    _ => format!("there is one already: {there}"),
                })
            }
            (_, _, Some(mut value)) => {
                // A value has room for one waiting packet behind the hop's data.
                value.resize(map.spec().value_size as usize, 0);
                full(map.update(&key, &value, 0, None), map)
            }
            (_, _, None) => Some("a value is missing".to_owned()),
        };
        match refused {
            Some(why) => {
                undo(map, done);
                return Err(why);
            }
            None => done.push(EntryChange { key, before }),
        }
    }
    Ok(done)
}

/// Message for a table that did not take an entry, from the error number.
fn full(errno: i64, map: &NativeMap) -> Option<String> {
    (errno != 0).then(|| format!("the table has no room for more than {} entries", map.spec().max_entries))
}

/// The entries in a text: keys, and values unless they are to be removed.
fn parsed(form: TableFormat, verb: TableOperation, text: &str, now: u64) -> Result<Vec<EntryUpdate>, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let removes = verb == TableOperation::Remove;
    match form {
        TableFormat::Routes { last, bytes } => route(&words, removes, last, bytes).map(|entry| vec![entry]),
        TableFormat::Hops { bytes, .. } => hop(&words, removes, bytes, now).map(|entry| vec![entry]),
        TableFormat::Answers => answers(&words, removes),
        TableFormat::Stations { .. }
        | TableFormat::Bridge { .. }
        | TableFormat::Flows
        | TableFormat::Aggregates => Err("entries of this table are not written one by one".into()),
    }
}

/// `PREFIX [GATEWAY] OUTPUT`, or only `PREFIX` to remove it.
fn route(words: &[&str], removes: bool, last: u32, bytes: u32) -> Result<EntryUpdate, String> {
    let form = if removes { "ADDRESS/MASK" } else { "ADDRESS/MASK [GATEWAY] OUTPUT" };
    let expected = || format!("expected {form}");
    let (to, gateway, output) = match *words {
        [to] if removes => (to, None, None),
        [to, output] => (to, None, Some(output)),
        [to, gateway, output] => (to, Some(gateway).filter(|text| *text != "-"), Some(output)),
        _ => return Err(expected()),
    };
    let key = prefix_key(to, bytes)?;
    if removes {
        return Ok((key, None));
    }
    let output = output.ok_or_else(expected)?;
    let output: u32 = output
        .parse()
        .ok()
        .filter(|output| *output <= last)
        .ok_or_else(|| format!("`{output}` is no output: they are 0 to {last}"))?;
    let mut value = match (bytes, gateway) {
        (_, None) => vec![0; bytes as usize],
        (4, Some(text)) => ip(text)?.to_le_bytes().to_vec(),
        (_, Some(text)) => in_words(ip6(text)?),
    };
    value.extend(output.to_le_bytes());
    Ok((key, Some(value)))
}

/// The key of a prefix: its length and address.
fn prefix_key(text: &str, bytes: u32) -> Result<Vec<u8>, String> {
    if bytes == 16 {
        let (address, bits) = prefix6_text(text)
            .ok_or_else(|| format!("`{text}` is not an IPv6 prefix like 3ffe:1ce1::/32"))?;
        return Ok([&bits.to_le_bytes()[..], &address.to_be_bytes()].concat());
    }
    let wrong = || format!("`{text}` is not an IP prefix like 18.26.4.0/24");
    let (address, mask) = prefix_text(text).ok_or_else(wrong)?;
    let bits = mask.leading_ones();
    match bits == mask.count_ones() {
        true => Ok([bits.to_le_bytes(), (address & mask).to_be_bytes()].concat()),
        false => Err(format!("the mask of `{text}` is no prefix")),
    }
}

/// `ADDRESS ETHER`, or only the address to remove it.
fn hop(words: &[&str], removes: bool, bytes: u32, now: u64) -> Result<EntryUpdate, String> {
    let (address, ether) = match *words {
        [address] if removes => (address, None),
        [address, text] if !removes => (address, Some(ether(text)?)),
        _ if removes => return Err("expected ADDRESS".into()),
        _ => return Err("expected ADDRESS ETHER".into()),
    };
    let key = hop_key(address, bytes)?;
    // It has answered just now, no query is open, and no packet waits.
    let value = ether.map(|ether| {
        let word = u64::from_le_bytes(padded(ether));
        [word, now.max(1), 0, 0, now.max(1)].map(u64::to_le_bytes).concat()
    });
    Ok((key, value))
}

fn hop_key(address: &str, bytes: u32) -> Result<Vec<u8>, String> {
    Ok(match bytes {
        4 => ip(address)?.to_le_bytes().to_vec(),
        _ => in_words(ip6(address)?),
    })
}

/// `PREFIX... ETHER`, or a prefix that is to be removed.
fn answers(words: &[&str], removes: bool) -> Result<Vec<EntryUpdate>, String> {
    if removes {
        let [prefix] = words else { return Err("expected ADDRESS/MASK".into()) };
        return Ok(vec![(prefix_key(prefix, 4)?, None)]);
    }
    let expected = "expected ADDRESS/MASK... ETHER";
    let (text, prefixes) = words.split_last().filter(|(_, rest)| !rest.is_empty()).ok_or(expected)?;
    let value = padded(ether(text)?).to_vec();
    prefixes.iter().map(|prefix| Ok((prefix_key(prefix, 4)?, Some(value.clone())))).collect()
}

fn ip(text: &str) -> Result<u32, String> {
    ip_text(text).ok_or_else(|| format!("`{text}` is not an IP address"))
}

fn ip6(text: &str) -> Result<u128, String> {
    ip6_text(text).ok_or_else(|| format!("`{text}` is not an IPv6 address"))
}

fn ether(text: &str) -> Result<[u8; 6], String> {
    ether_text(text).ok_or_else(|| format!("`{text}` is not an Ethernet address like 0:1:2:3:4:5"))
}

fn padded([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a, b, c, d, e, f, 0, 0]
}

/// An IPv6 address as four words in host byte order.
fn in_words(address: u128) -> Vec<u8> {
    address.to_be_bytes().chunks_exact(4).flat_map(|word| word.iter().rev().copied()).collect()
}

/// The address in four such words.
fn of_words(words: &[u8]) -> Ipv6Addr {
    let bytes: Vec<u8> = words.chunks_exact(4).flat_map(|word| word.iter().rev().copied()).collect();
    Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap_or_default())
}

/// Result of looking up an address in a table.
fn find(map: &mut NativeMap, form: TableFormat, argument: &str, now: u64) -> Result<String, String> {
    let argument = argument.trim();
    match form {
        TableFormat::Routes { bytes, .. } => {
            let none = "-1".to_owned();
            Ok(longest(map, argument, bytes)?.map_or(none, |(_, value)| {
                let (gateway, output) = route_value(&value, bytes);
                format!("{output}{}", gateway.map_or(String::new(), |gateway| format!(" {gateway}")))
            }))
        }
        TableFormat::Answers => {
            Ok(longest(map, argument, 4)?.map_or(String::new(), |(_, value)| ether_line(&value)))
        }
        TableFormat::Hops { bytes, .. } => {
            let key = hop_key(argument, bytes)?;
            Ok(map.get(&key).map_or(String::new(), |value| line(form, &(key, value), now)))
        }
        TableFormat::Stations { .. }
        | TableFormat::Bridge { .. }
        | TableFormat::Flows
        | TableFormat::Aggregates => Err("this table is read as a whole".into()),
    }
}

/// The entry of the longest prefix of an address.
fn longest(map: &mut NativeMap, address: &str, bytes: u32) -> Result<Option<RawEntry>, String> {
    let whole = match bytes {
        4 => ip(address)?.to_be_bytes().to_vec(),
        _ => ip6(address)?.to_be_bytes().to_vec(),
    };
    let candidates = (0..=8 * bytes).rev().map(|bits| {
        let mut key = bits.to_le_bytes().to_vec();
        key.extend(whole.iter().enumerate().map(|(at, byte)| {
            let kept = bits.saturating_sub(8 * at as u32).min(8);
            byte & !(0xffu32 >> kept) as u8
        }));
        key
    });
    for key in candidates {
        if let Some(value) = map.get(&key) {
            return Ok(Some((key, value)));
        }
    }
    Ok(None)
}

fn entries(map: &mut NativeMap) -> Vec<RawEntry> {
    let keys = map.keys();
    keys.into_iter().filter_map(|key| map.get(&key).map(|value| (key, value))).collect()
}

/// Sort key of a table's entries.
fn order(form: TableFormat, (key, value): &RawEntry) -> Vec<u8> {
    match form {
        // By address, the longer prefix last.
        TableFormat::Routes { .. } | TableFormat::Answers => {
            key[4..].iter().copied().chain(key[..4].iter().rev().copied()).collect()
        }
        TableFormat::Hops { bytes: 16, .. } => of_words(key).octets().to_vec(),
        TableFormat::Hops { .. }
        | TableFormat::Stations { .. }
        | TableFormat::Bridge { .. }
        | TableFormat::Aggregates => key.iter().rev().copied().collect(),
        TableFormat::Flows => [&key[12..16], &key[..12], value].concat(),
    }
}

/// A number of an entry.
fn wide(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

fn ether_line(bytes: &[u8]) -> String {
    bytes.iter().take(6).map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join("-")
}

/// Gateway and output of a route.
fn route_value(value: &[u8], bytes: u32) -> (Option<String>, u32) {
    let (gateway, output) = value.split_at(value.len().min(bytes as usize));
    let text = match bytes {
        4 => Ipv4Addr::from(half(gateway, 0)).to_string(),
        _ => of_words(gateway).to_string(),
    };
    (gateway.iter().any(|byte| *byte != 0).then_some(text), half(output, 0))
}

fn prefix_line(key: &[u8]) -> String {
    let (bits, address) = (half(key, 0), &key[4..]);
    match <[u8; 4]>::try_from(address) {
        Ok(address) => format!("{}/{bits}", Ipv4Addr::from(address)),
        Err(_) => format!("{}/{bits}", Ipv6Addr::from(<[u8; 16]>::try_from(address).unwrap_or_default())),
    }
}

/// Seconds since a moment.
fn since(now: u64, then: u64) -> String {
    let passed = now.saturating_sub(then);
    format!("{}.{:03}", passed / SECOND, passed % SECOND / (SECOND / 1000))
}

/// An entry as text.
fn line(form: TableFormat, (key, value): &RawEntry, now: u64) -> String {
    match form {
        TableFormat::Routes { bytes, .. } => {
            let (gateway, output) = route_value(value, bytes);
            format!("{}\t{}\t{output}", prefix_line(key), gateway.unwrap_or("-".into()))
        }
        TableFormat::Answers => format!("{} {}", prefix_line(key), ether_line(value)),
        TableFormat::Hops { timeout, bytes } => {
            let address = match bytes {
                4 => Ipv4Addr::from(half(key, 0)).to_string(),
                _ => of_words(key).to_string(),
            };
            let answered = wide(value, 8);
            let known = answered != 0 && now.saturating_sub(answered) <= timeout;
            // An address that never answered has none.
            let ether = if answered == 0 { ether_line(&[u8::MAX; 6]) } else { ether_line(value) };
            format!("{address} {} {ether} {}", u8::from(known), since(now, wide(value, SINCE).min(now)))
        }
        TableFormat::Stations { .. } => {
            let bytes: Vec<u8> = key.iter().take(6).rev().copied().collect();
            format!("{} {}", ether_line(&bytes), wide(value, 0))
        }
        TableFormat::Bridge { ports } => bridge_text(value, ports),
        TableFormat::Aggregates => format!("{} {}", half(key, 0), wide(value, 0)),
        TableFormat::Flows => {
            // Above the protocol is the number of the rewriter, where several share a table.
            let protocol = match half(key, 12) & 0xff {
                1 => "icmp".to_owned(),
                6 => "tcp".to_owned(),
                17 => "udp".to_owned(),
                other => other.to_string(),
            };
            let output = value.get(20..22).map_or(0, |o| u16::from_le_bytes([o[0], o[1]]));
            format!("{protocol} {} => {} [{output}] {}", ends(key), ends(value), since(now, wide(value, 24)))
        }
    }
}

/// Addresses and ports in memory order, one pair after the other.
fn ends(bytes: &[u8]) -> String {
    let address = |at: usize| Ipv4Addr::from(half(bytes, at).to_be());
    let port = |at: usize| bytes.get(at..at + 2).map_or(0, |p| u16::from_be_bytes([p[0], p[1]]));
    format!("({}, {}, {}, {})", address(0), port(8), address(4), port(10))
}
