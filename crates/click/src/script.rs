//! Texts of `Script` and `DriverManager`, as instructions: read here, executed by whoever runs the program.
//!
//! Source: the documentation of Click's `Script` element. Texts stay as they are written: variables and
//! handlers in them are replaced each time that an instruction is executed.

use serde::{Deserialize, Serialize};

use crate::arguments::ElementArguments;
use crate::config::{SpannedText, unquote, words};
use crate::error::Error;

/// A script.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Script {
    /// The element's name.
    pub element: String,
    /// When it runs.
    pub kind: ScriptKind,
    /// Signals that start it, by their numbers, if it is of the type `SIGNAL`.
    pub signals: Vec<i32>,
    /// Its instructions.
    pub steps: Vec<ScriptStep>,
}

/// A script that runs whenever code says so, which counts how often that is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScriptCall {
    /// Offset of that count in the state.
    pub due: u32,
    /// Its place in [`crate::ClickProgram::scripts`].
    pub script: usize,
    /// The array that gets the value of each run, if code waits for it, and its number of entries.
    pub results: Option<(String, u32)>,
    /// Offset in the state of the time, in nanoseconds, that is the script's variable `t`, if it has one.
    pub time: Option<u32>,
}

/// When a script runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ScriptKind {
    /// From the beginning.
    Active,
    /// When another one writes or reads its handler `run`.
    Passive,
    /// From the beginning, and the run ends when it does.
    Driver,
    /// When another one reads or writes any of its handlers.
    Proxy,
    /// When the process receives a signal.
    Signal,
    /// For each packet, which waits for the output that the script returns.
    Packet,
}

impl ScriptKind {
    /// Returns true if a script runs only when something calls it.
    pub fn is_called(self) -> bool {
        matches!(self, ScriptKind::Passive | ScriptKind::Proxy | ScriptKind::Signal | ScriptKind::Packet)
    }
}

/// An instruction of a script.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ScriptStep {
    /// Sets a variable; quotes of the text are taken off.
    Set {
        /// Its name.
        name: String,
        /// The text.
        text: String,
        /// True if quotes are taken off.
        unquoted: bool,
        /// True if it is set only the first time.
        once: bool,
        /// True if it is a handler of the script, too.
        exported: bool,
    },
    /// Prints a text, or the value of a handler.
    Print {
        /// The text, or the handler.
        text: String,
        /// True if quotes of the handler's argument are taken off.
        unquoted: bool,
        /// True if it ends with a newline.
        line: bool,
        /// The file that it goes to, and true if it is appended.
        file: Option<(String, bool)>,
    },
    /// Prints a handler and its value to standard error; quotes of its argument are taken off if true.
    Read(String, bool),
    /// Writes a handler: its name and the text, whose quotes are taken off if true.
    Write(String, bool),
    /// Waits for a time in seconds.
    Wait(String),
    /// Waits until somebody steps on, so often.
    Pause(String),
    /// Goes elsewhere, if the condition is true.
    Goto(JumpTarget, Option<String>),
    /// Ends, with a value; its quotes are taken off if true.
    Return(String, bool),
    /// Ends, with a message.
    Error(String),
}

/// Destination of a jump in a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JumpTarget {
    /// To an instruction.
    Step(usize),
    /// To its end.
    End,
    /// To its end, and no signal starts it again.
    Exit,
    /// To its end, and that of the run.
    Stop,
    /// To its end, with an error.
    Error,
}

/// Names of all instructions; those with `q` behind them take quotes off.
const INSTRUCTIONS: &[&str] = &[
    "set",
    "setq",
    "init",
    "initq",
    "export",
    "exportq",
    "print",
    "printq",
    "printn",
    "printnq",
    "read",
    "readq",
    "save",
    "append",
    "write",
    "writeq",
    "call",
    "wait",
    "wait_time",
    "pause",
    "wait_pause",
    "wait_stop",
    "wait_step",
    "label",
    "goto",
    "loop",
    "end",
    "exit",
    "stop",
    "return",
    "returnq",
    "error",
    "errorq",
];

/// Reads the arguments of the script of this name.
pub fn script(
    arguments: &mut ElementArguments<'_>,
    element: &str,
    usual: ScriptKind,
) -> Result<Script, Error> {
    let (kind, signals) = match arguments.keyword("TYPE") {
        Some(text) => kind(&text)?,
        None => (usual, Vec::new()),
    };
    let all = arguments.rest();
    let (mut labels, mut plain) = (Vec::new(), Vec::new());
    for argument in &all {
        let parts = words(argument);
        match &parts[..] {
            [] => {}
            [word, label] if word.text == "label" => labels.push((label.text.clone(), plain.len())),
            _ => plain.push((argument, parts)),
        }
    }
    let steps =
        plain.iter().map(|(argument, parts)| step(argument, parts, &labels)).collect::<Result<_, _>>()?;
    Ok(Script { element: element.to_owned(), kind, signals, steps })
}

/// The type of a script, and its signals.
fn kind(text: &SpannedText) -> Result<(ScriptKind, Vec<i32>), Error> {
    let kind = match text.text.as_str() {
        "ACTIVE" => ScriptKind::Active,
        "PASSIVE" => ScriptKind::Passive,
        "DRIVER" => ScriptKind::Driver,
        "PROXY" => ScriptKind::Proxy,
        "PACKET" => ScriptKind::Packet,
        other => match &words(text)[..] {
            [word, signals @ ..] if word.text == "SIGNAL" && !signals.is_empty() => {
                return Ok((ScriptKind::Signal, signals.iter().map(signal).collect::<Result<_, _>>()?));
            }
            _ => {
                return Err(Error::new(text.span, format!("scripts of type {other} are not supported"))
                    .help("those that are: ACTIVE, PASSIVE, DRIVER, PROXY, PACKET, SIGNAL with the names of signals"));
            }
        },
    };
    Ok((kind, Vec::new()))
}

/// Signals of signal(7) and their numbers on x86 and ARM, but for those that nothing can catch.
const SIGNALS: [(&str, i32); 12] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("TSTP", 20),
    ("WINCH", 28),
];

/// The number of a signal, from its name or number.
pub fn signal_number(text: &str) -> Option<i32> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let number = text.parse().ok();
    SIGNALS.iter().find(|(known, value)| *known == name || Some(*value) == number).map(|(_, value)| *value)
}

fn signal(text: &SpannedText) -> Result<i32, Error> {
    signal_number(&text.text).ok_or_else(|| {
        Error::new(text.span, format!("there is no signal `{}` that scripts can have", text.text))
            .nearest(&text.text, SIGNALS.iter().map(|(name, _)| *name))
    })
}

/// An instruction from its words, the first of which is its name.
fn step(
    argument: &SpannedText,
    parts: &[SpannedText],
    labels: &[(String, usize)],
) -> Result<ScriptStep, Error> {
    let name = &parts[0];
    let is_plain = name.text.ends_with('q');
    let rest = argument.text[name.text.len()..].trim().to_owned();
    let needed = |what: &str| match rest.is_empty() {
        true => Err(Error::new(argument.span, format!("`{}` lacks {what}", name.text))),
        false => Ok(rest.clone()),
    };
    Ok(match name.text.as_str() {
        "set" | "setq" | "init" | "initq" | "export" | "exportq" => {
            let variable = parts.get(1).ok_or_else(|| {
                Error::new(argument.span, format!("`{}` lacks the name of a variable", name.text))
            })?;
            let text = rest[variable.text.len()..].trim().to_owned();
            let exported = name.text.starts_with("export");
            let once = exported || name.text.starts_with("init");
            ScriptStep::Set { name: variable.text.clone(), text, unquoted: is_plain, once, exported }
        }
        "print" | "printq" | "printn" | "printnq" => {
            let (text, file) = redirected(&rest);
            let line = !name.text.starts_with("printn");
            ScriptStep::Print { text, unquoted: is_plain, line, file }
        }
        "save" | "append" => {
            let handler = parts.get(1).ok_or_else(|| {
                Error::new(argument.span, format!("`{}` lacks the name of a handler", name.text))
            })?;
            let file = rest[handler.text.len()..].trim();
            let file = if file.is_empty() { "-" } else { file };
            let (text, file) = (handler.text.clone(), to_file(file, name.text == "append"));
            ScriptStep::Print { text, unquoted: false, line: true, file }
        }
        "read" | "readq" => ScriptStep::Read(needed("the name of a handler")?, is_plain),
        "write" | "writeq" | "call" => ScriptStep::Write(needed("the name of a handler")?, is_plain),
        // Without a time it is a pause.
        "wait" | "wait_time" if !rest.is_empty() => ScriptStep::Wait(rest),
        "wait" | "pause" | "wait_pause" | "wait_stop" | "wait_step" => ScriptStep::Pause(rest),
        "goto" => {
            let label = parts.get(1).ok_or_else(|| Error::new(argument.span, "`goto` lacks a label"))?;
            let condition = rest[label.text.len()..].trim();
            let condition = (!condition.is_empty()).then(|| condition.to_owned());
            ScriptStep::Goto(goal(label, labels)?, condition)
        }
        "loop" => ScriptStep::Goto(JumpTarget::Step(0), None),
        "end" => ScriptStep::Goto(JumpTarget::End, None),
        "exit" => ScriptStep::Goto(JumpTarget::Exit, None),
        "stop" => ScriptStep::Goto(JumpTarget::Stop, None),
        "return" | "returnq" => ScriptStep::Return(rest, is_plain),
        "error" | "errorq" => ScriptStep::Error(unquoted(&rest)),
        other => {
            let error = Error::new(name.span, format!("there is no instruction `{other}` in scripts here"));
            return Err(error.nearest(other, INSTRUCTIONS.iter().copied()));
        }
    })
}

/// Text to print, and its file if it begins with `>FILE` or `>>FILE`.
fn redirected(text: &str) -> (String, Option<(String, bool)>) {
    let Some(behind) = text.strip_prefix('>') else { return (text.to_owned(), None) };
    let (append, behind) = match behind.strip_prefix('>') {
        Some(behind) => (true, behind),
        None => (false, behind),
    };
    let behind = behind.trim_start();
    let (file, rest) = behind.split_once(char::is_whitespace).unwrap_or((behind, ""));
    (rest.trim_start().to_owned(), to_file(file, append))
}

/// A file to print to; none for standard output.
fn to_file(name: &str, append: bool) -> Option<(String, bool)> {
    let name = unquoted(name);
    (!name.is_empty() && name != "-").then_some((name, append))
}

/// Destination of a label. Labels of the script take precedence over those that all scripts have.
fn goal(label: &SpannedText, labels: &[(String, usize)]) -> Result<JumpTarget, Error> {
    if let Some((_, at)) = labels.iter().find(|(name, _)| *name == label.text) {
        return Ok(JumpTarget::Step(*at));
    }
    match label.text.as_str() {
        "loop" | "begin" => Ok(JumpTarget::Step(0)),
        "end" => Ok(JumpTarget::End),
        "exit" => Ok(JumpTarget::Exit),
        "stop" => Ok(JumpTarget::Stop),
        "error" => Ok(JumpTarget::Error),
        other => Err(Error::new(label.span, format!("there is no label `{other}`"))
            .nearest(other, labels.iter().map(|(name, _)| name.as_str()))),
    }
}

/// A text without its quotes.
pub fn unquoted(text: &str) -> String {
    String::from_utf8_lossy(&unquote(text)).into_owned()
}
