//! Lines of STF to commands.

use num_bigint::BigUint;

use super::values::{StfValue, ValueError};

/// A line that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct StfError {
    /// Line, from 1.
    pub line: usize,
    /// Reason.
    pub message: String,
}

/// A command with its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StfLine {
    /// Line, from 1.
    pub line: usize,
    /// Command.
    pub command: StfCommand,
}

/// Data of an expected packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpectedData {
    /// Nibbles; `None` stands for any.
    pub nibbles: Vec<Option<u8>>,
    /// Nothing may follow.
    pub is_exact: bool,
}

/// An entry of a table, as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StfEntry {
    /// Name of the table.
    pub table: String,
    /// Priority.
    pub priority: Option<u32>,
    /// Names and values of elements of the key.
    pub keys: Vec<(String, StfValue)>,
    /// Name of the action.
    pub action: String,
    /// Names and values of arguments.
    pub arguments: Vec<(String, BigUint)>,
}

/// Condition on a counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterCheck {
    /// Name of the counter.
    pub name: String,
    /// Index; none for direct counters.
    pub index: Option<u32>,
    /// Bytes are compared, not packets.
    pub is_bytes: bool,
    /// `==`, `!=`, `<`, `<=`, `>` or `>=`.
    pub comparison: String,
    /// Number to compare with.
    pub number: u64,
}

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StfCommand {
    /// `packet PORT HEX`
    Packet(u64, Vec<u8>),
    /// `expect PORT [DATA [$]]`
    Expect(u64, Option<ExpectedData>),
    /// `add TABLE ...`
    Add(StfEntry),
    /// `setdefault TABLE ACTION`
    SetDefault(StfEntry),
    /// `remove all`
    RemoveAll,
    /// `check_counter NAME(INDEX) ...`
    CheckCounter(CounterCheck),
    /// `wait`
    Wait,
    /// A command of the reference switch, as words.
    Words(Vec<String>),
}

/// Commands of the reference switch that are passed on.
const PASSED_ON: [&str; 14] = [
    "mirroring_get",
    "meter_get_rates",
    "meter_array_set_rates",
    "mirroring_add",
    "mirroring_add_mc",
    "mirroring_delete",
    "mc_mgrp_create",
    "mc_node_create",
    "mc_node_associate",
    "counter_read",
    "register_read",
    "register_write",
    "register_reset",
    "meter_set_rates",
];

/// Reads a file.
///
/// # Errors
/// The first line that is not understood.
pub fn parse_stf(text: &str) -> Result<Vec<StfLine>, StfError> {
    let mut lines = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let content = raw.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let line = index + 1;
        match command(content) {
            Ok(command) => lines.push(StfLine { line, command }),
            Err(message) => return Err(StfError { line, message }),
        }
    }
    Ok(lines)
}

fn command(text: &str) -> Result<StfCommand, String> {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let lower = word.to_lowercase();
    match lower.as_str() {
        "packet" => {
            let (port, data) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            Ok(StfCommand::Packet(port_number(port)?, bytes(data)?))
        }
        "expect" => {
            let (port, data) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            Ok(StfCommand::Expect(port_number(port)?, expected(data.trim())?))
        }
        "add" => Ok(StfCommand::Add(entry(rest, true)?)),
        "setdefault" => Ok(StfCommand::SetDefault(entry(rest, false)?)),
        "remove" if rest.eq_ignore_ascii_case("all") => Ok(StfCommand::RemoveAll),
        "check_counter" => counter(rest).map(StfCommand::CheckCounter),
        "wait" => Ok(StfCommand::Wait),
        _ if PASSED_ON.contains(&lower.as_str()) => {
            Ok(StfCommand::Words(text.split_whitespace().map(str::to_owned).collect()))
        }
        _ => Err(format!("the command `{word}` is not known")),
    }
}

fn port_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no port"))
}

fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let nibbles: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).map(|digit| digit as u8).ok_or_else(|| format!("`{c}` is no hex digit")))
        .collect::<Result<_, _>>()?;
    if !nibbles.len().is_multiple_of(2) {
        return Err("the packet has half a byte at its end".into());
    }
    Ok(nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn expected(text: &str) -> Result<Option<ExpectedData>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let (data, is_exact) = match text.strip_suffix('$') {
        Some(data) => (data, true),
        None => (text, false),
    };
    let nibbles = data
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| match c {
            '*' => Ok(None),
            _ => c.to_digit(16).map(|digit| Some(digit as u8)).ok_or(format!("`{c}` is no hex digit")),
        })
        .collect::<Result<_, _>>()?;
    Ok(Some(ExpectedData { nibbles, is_exact }))
}

/// Reads `TABLE [PRIORITY] KEY:VALUE... ACTION(NAME:VALUE, ...) [= $ID]`.
fn entry(text: &str, has_keys: bool) -> Result<StfEntry, String> {
    let text = text.split_once('=').filter(|(_, id)| id.trim().starts_with('$')).map_or(text, |(t, _)| t);
    let (head, arguments) = match text.split_once('(') {
        Some((head, rest)) => {
            let inner = rest.trim().strip_suffix(')').ok_or("the `)` of the action is missing")?;
            (head, inner)
        }
        None => (text, ""),
    };
    let mut words: Vec<&str> = head.split_whitespace().collect();
    let action = words.pop().ok_or("the action is missing")?.to_owned();
    let mut words = words.into_iter();
    let table = words.next().ok_or("the table is missing")?.to_owned();
    let mut entry = StfEntry { table, priority: None, keys: Vec::new(), action, arguments: Vec::new() };
    for word in words {
        match word.rsplit_once(':') {
            Some((name, value)) if has_keys => {
                let value = StfValue::parse(value).map_err(|error| error.to_string())?;
                entry.keys.push((name.to_owned(), value));
            }
            None if has_keys && entry.priority.is_none() => {
                entry.priority = Some(word.parse().map_err(|_| format!("`{word}` is no priority"))?);
            }
            _ => return Err(format!("`{word}` is not expected here")),
        }
    }
    for argument in arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty()) {
        let (name, value) =
            argument.split_once(':').ok_or_else(|| format!("`{argument}` is no NAME:VALUE"))?;
        match StfValue::parse(value.trim()).map_err(|ValueError(text)| format!("`{text}` is no value"))? {
            StfValue::Number(value) => entry.arguments.push((name.trim().to_owned(), value)),
            _ => return Err(format!("`{value}` is no number")),
        }
    }
    Ok(entry)
}

fn counter(text: &str) -> Result<CounterCheck, String> {
    let (head, rest) = match text.split_once(')') {
        Some((head, rest)) => (head, rest),
        None => text.split_once(char::is_whitespace).unwrap_or((text, "")),
    };
    let (name, index) = head.split_once('(').unwrap_or((head, ""));
    let index = match index.trim() {
        "" => None,
        number => Some(number.parse().map_err(|_| format!("`{number}` is no index"))?),
    };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (unit, words) = match words.split_first() {
        Some((unit @ (&"packets" | &"bytes"), words)) => (*unit, words),
        _ => ("packets", &words[..]),
    };
    let (comparison, number) = match words {
        [comparison, number] => (*comparison, *number),
        _ => return Err("expected a comparison and a number".into()),
    };
    if !["==", "!=", "<", "<=", ">", ">="].contains(&comparison) {
        return Err(format!("`{comparison}` is no comparison"));
    }
    let number = number.parse().map_err(|_| format!("`{number}` is no number"))?;
    Ok(CounterCheck {
        name: name.trim().to_owned(),
        index,
        is_bytes: unit == "bytes",
        comparison: comparison.to_owned(),
        number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        let text = "# nothing\nPACKET 0 00 1a\nexpect 1 0* $\nadd t 7 h.a:0x1 c.act(x:1, y:0x2)\nwait\n";
        let commands: Vec<StfCommand> =
            parse_stf(text).unwrap().into_iter().map(|line| line.command).collect();
        assert_eq!(commands[0], StfCommand::Packet(0, vec![0, 0x1a]));
        let data = ExpectedData { nibbles: vec![Some(0), None], is_exact: true };
        assert_eq!(commands[1], StfCommand::Expect(1, Some(data)));
        let StfCommand::Add(entry) = &commands[2] else { panic!("{commands:?}") };
        assert_eq!((entry.table.as_str(), entry.priority, entry.action.as_str()), ("t", Some(7), "c.act"));
        assert_eq!(entry.arguments.len(), 2);
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(parse_stf("wait\nfrobnicate 1").unwrap_err().line, 2);
        assert!(parse_stf("packet 0 123").is_err() && parse_stf("add t").is_err());
    }

    #[test]
    fn counters_are_checked_with_and_without_an_index() {
        let check = counter("ingress.c(3) bytes >= 7").unwrap();
        assert_eq!((check.index, check.is_bytes, check.number), (Some(3), true, 7));
        assert_eq!(counter("c == 1").unwrap().index, None);
    }
}
