//! The two files of text: maps, and the program's input.

use super::RawMap;
use crate::error::ObjectError;
use rustc_hash::FxHashSet;
use std::str::FromStr;

/// Program's first argument according to K2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProgramInput {
    /// A constant, or a pointer to something that is no packet.
    Other,
    /// The context of an XDP program.
    Xdp,
    /// A socket buffer.
    Skb,
}

/// Characters of the input that a message repeats at most.
const SHOWN: usize = 40;

fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN).collect();
    if cut.len() < text.len() { format!("`{cut}...`") } else { format!("`{cut}`") }
}

/// A file of text, for messages.
#[derive(Clone, Copy)]
struct TextFile(&'static str);

impl TextFile {
    fn bad(self, line: usize, what: impl Into<String>) -> ObjectError {
        ObjectError::BadText { file: self.0, line, what: what.into() }
    }

    fn text(self, data: &[u8]) -> Result<&str, ObjectError> {
        std::str::from_utf8(data).map_err(|e| {
            let line = data[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
            self.bad(line, "it is not text")
        })
    }

    /// A field `key = value`.
    fn field(self, line: usize, text: &str) -> Result<(&str, &str), ObjectError> {
        let field = text.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        field.ok_or_else(|| self.bad(line, format!("`key = value` is expected, not {}", shown(text))))
    }

    fn number<T: FromStr>(self, line: usize, key: &str, value: &str) -> Result<T, ObjectError> {
        let what = || format!("{} is {}, which is no number of its size", shown(key), shown(value));
        value.parse().map_err(|_| self.bad(line, what()))
    }
}

/// Reads a file of maps: one a line; blank lines and a missing closing brace do not matter.
pub(super) fn maps(data: &[u8]) -> Result<Vec<RawMap>, ObjectError> {
    let file = TextFile(".maps");
    let (mut maps, mut names, mut fds) = (Vec::new(), FxHashSet::default(), FxHashSet::default());
    for (n, text) in file.text(data)?.lines().enumerate().filter(|(_, t)| !t.trim().is_empty()) {
        let line = n + 1;
        let map = map(file, line, text.trim())?;
        if !names.insert(map.name.clone()) {
            return Err(file.bad(line, format!("there are two maps {}", shown(&map.name))));
        }
        if !fds.insert(map.fd) {
            return Err(file.bad(line, format!("there are two maps with fd = {}", map.fd)));
        }
        maps.push(map);
    }
    Ok(maps)
}

fn map(file: TextFile, line: usize, text: &str) -> Result<RawMap, ObjectError> {
    let (name, fields) = text.split_once('{').ok_or_else(|| file.bad(line, "a map is `name { ... }`"))?;
    let name = name.trim();
    if name.is_empty() || name.contains('\0') {
        return Err(file.bad(line, "the map has no name"));
    }
    let fields = fields.trim_end().strip_suffix('}').unwrap_or(fields);
    let mut found: [Option<u32>; 5] = [None; 5];
    const KEYS: [&str; 5] = ["type", "key_size", "value_size", "max_entries", "fd"];
    for text in fields.split(',').filter(|t| !t.trim().is_empty()) {
        let (key, value) = file.field(line, text)?;
        let known = KEYS.iter().position(|k| *k == key);
        let at = known.ok_or_else(|| file.bad(line, format!("a map has no {}", shown(key))))?;
        if found[at].replace(file.number(line, key, value)?).is_some() {
            return Err(file.bad(line, format!("{} is said twice", shown(key))));
        }
    }
    let get = |at: usize| found[at].ok_or_else(|| file.bad(line, format!("`{}` is missing", KEYS[at])));
    let (map_type, key_size, value_size, max_entries) = (get(0)?, get(1)?, get(2)?, get(3)?);
    let fd = i32::try_from(get(4)?).map_err(|_| file.bad(line, "`fd` is above 2147483647"))?;
    Ok(RawMap { name: name.to_owned(), map_type, key_size, value_size, max_entries, fd })
}

/// Reads a description: groups of fields in braces, on any number of lines. Unknown fields are noted.
pub(super) fn description(data: &[u8], notes: &mut Vec<String>) -> Result<Option<ProgramInput>, ObjectError> {
    let file = TextFile(".desc");
    let mut input = None;
    for (n, text) in file.text(data)?.lines().enumerate() {
        let line = n + 1;
        for text in text.split(['{', '}', ',']).filter(|t| !t.trim().is_empty()) {
            let (key, value) = file.field(line, text)?;
            match key {
                "pgm_input_type" => {
                    input = Some(match file.number::<u32>(line, key, value)? {
                        0 | 1 => ProgramInput::Other,
                        2 => ProgramInput::Xdp,
                        3 => ProgramInput::Skb,
                        n => {
                            return Err(
                                file.bad(line, format!("there is no `pgm_input_type` {n}, only 0 to 3"))
                            );
                        }
                    });
                }
                "max_pkt_sz" => {
                    file.number::<u32>(line, key, value)?;
                }
                _ => notes.push(format!(".desc file, line {line}: {} is not known, and ignored", shown(key))),
            }
        }
    }
    Ok(input)
}
