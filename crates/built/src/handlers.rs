//! State of a graph: values that handlers read and write, and counts of dropped packets.
//!
//! All counters of a graph are one value of one map, `click.state`. With several workers each has its own
//! copy, and reads return the sum. Values that handlers set are one value of another map, `click.settings`,
//! which all workers share.

use millstream_click::{
    ClickProgram, FlowKey, FlowSketch, Handler, HandlerAccess, SettingValue, SourceReadiness, nearest,
    unquote,
};
use millstream_native::NativeEngine;

use crate::values::setting_value;
pub use crate::values::{number, set_setting, set_state, setting, state};
use crate::{samples, tables, time_range};

/// Reasons why a handler cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// No handler has this name.
    #[error("there is no handler {name:?}{}; there are {}", near_text(.near), .there.join(" "))]
    Unknown {
        /// Name that was requested.
        name: String,
        /// Nearest existing name.
        near: Option<String>,
        /// Handlers of the element.
        there: Vec<String>,
    },
    /// No element has this name.
    #[error("there is no element {name:?}{}", near_text(.near))]
    NoElement {
        /// Name that was requested.
        name: String,
        /// Nearest existing name.
        near: Option<String>,
    },
    /// The handler can only be written.
    #[error("handler {0:?} can only be written")]
    Unreadable(String),
    /// The handler does not take this argument or value.
    #[error("handler {name:?}: {why}")]
    Unfit {
        /// The handler.
        name: String,
        /// Description of the error and of acceptable values.
        why: String,
    },
    /// The handler can only be read.
    #[error("handler {0:?} can only be read")]
    Unwritable(String),
    /// The handler is a setting that is a constant in the code.
    #[error(
        "handler {0:?} is a constant of the code: it can be written where a socket was asked for with \
         `--control`, or `build` was told `--writable`"
    )]
    Constant(String),
}

fn near_text(near: &Option<String>) -> String {
    near.as_ref().map_or(String::new(), |near| format!(" (the nearest name is {near:?})"))
}

/// Packets that an element has dropped.
pub fn drops_of(program: &ClickProgram, state: &[u8], element: &str) -> u64 {
    program.drops.iter().filter(|d| d.element == element).map(|d| number(state, d.offset)).sum()
}

/// The handler `ELEMENT.NAME`, or `NAME` of the configuration.
fn handler<'p>(program: &'p ClickProgram, name: &str) -> Result<&'p Handler, HandlerError> {
    let (element, own) = name.rsplit_once('.').unwrap_or(("", name));
    let of_element = || program.handlers.iter().filter(|h| h.element == element);
    if let Some(found) = of_element().find(|h| h.name == own) {
        return Ok(found);
    }
    let there: Vec<String> = of_element().map(|h| h.name.to_string()).collect();
    if there.is_empty() || (element.is_empty() && program.handlers.iter().any(|h| h.element == own)) {
        let asked = if element.is_empty() { own } else { element };
        let near = nearest(asked, program.handlers.iter().map(|h| h.element.as_str()));
        return Err(HandlerError::NoElement { name: asked.to_owned(), near: near.map(str::to_owned) });
    }
    let near = nearest(own, there.iter().map(String::as_str)).map(str::to_owned);
    Err(HandlerError::Unknown { name: name.to_owned(), near, there })
}

/// Returns the table that a command for [`write()`] changes, if any.
pub fn table_of<'p>(program: &'p ClickProgram, text: &str) -> Option<&'p str> {
    let name = text.split_once(char::is_whitespace).map_or(text, |(name, _)| name);
    match &handler(program, name).ok()?.access {
        HandlerAccess::Table { map, verb, .. } if verb.writes() => Some(map),
        _ => None,
    }
}

/// Handlers of an element, one a line: the name, and `r`, `w`, or `+` for one that takes an argument when it
/// is read.
fn listing(program: &ClickProgram, element: &str) -> String {
    let line = |handler: &Handler| {
        let (reads, writes) = handler.access.access_modes();
        let flags = [(reads, "r"), (writes, "w"), (handler.access.takes_argument(), "+")];
        let flags: String = flags.iter().filter(|(has, _)| *has).map(|(_, flag)| *flag).collect();
        format!("{}\t{flags}\n", handler.name)
    };
    program.handlers.iter().filter(|h| h.element == element).map(line).collect()
}

/// Checks that the handler `ELEMENT.NAME` can be read or, with `write`, written.
///
/// # Errors
/// If not, and why.
pub fn check(program: &ClickProgram, name: &str, write: bool) -> Result<(), HandlerError> {
    let name = name.trim();
    let access = &handler(program, name)?.access;
    match (access, write, access.access_modes()) {
        (HandlerAccess::Constant(_), true, _) => Err(HandlerError::Constant(name.to_owned())),
        (_, true, (_, false)) => Err(HandlerError::Unwritable(name.to_owned())),
        (_, false, (false, _)) => Err(HandlerError::Unreadable(name.to_owned())),
        _ => Ok(()),
    }
}

/// Reads the handler `ELEMENT.NAME`, with the text behind a space as its argument.
///
/// # Errors
/// If there is none, or none that is read, or it takes no such argument.
pub fn read(program: &ClickProgram, engine: &mut NativeEngine, text: &str) -> Result<String, HandlerError> {
    let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let handler = handler(program, name)?;
    let unfit = |why: String| HandlerError::Unfit { name: name.to_owned(), why };
    Ok(match &handler.access {
        HandlerAccess::Number(offset) => number(&state(engine), *offset).to_string(),
        HandlerAccess::IsZero(offset) => (number(&state(engine), *offset) == 0).to_string(),
        HandlerAccess::Text(text) | HandlerAccess::Constant(text) => text.clone(),
        HandlerAccess::Ratio(ratio) => {
            let state = state(engine);
            let by = ratio.by.map_or(1, |by| number(&state, by)).max(1) * u64::from(ratio.divisor.max(1));
            format!("{:.3}", number(&state, ratio.of) as f64 / by as f64)
        }
        HandlerAccess::Drops => drops_of(program, &state(engine), &handler.element).to_string(),
        HandlerAccess::DropsByReason => {
            let state = state(engine);
            let own = program.drops.iter().filter(|d| d.element == handler.element);
            own.map(|d| format!("{:<14}{}\n", number(&state, d.offset), d.reason)).collect()
        }
        HandlerAccess::Setting(offset, takes) => takes.text(setting(engine, *offset)),
        HandlerAccess::Argument(argument, offset) => format!("{argument} {}", setting(engine, *offset)),
        HandlerAccess::Bits(bits) => bits.get(setting(engine, bits.of)).to_string(),
        HandlerAccess::Listing => listing(program, &handler.element),
        HandlerAccess::Table { verb, .. } if verb.writes() => {
            return Err(HandlerError::Unreadable(name.to_owned()));
        }
        HandlerAccess::Table { map, form, verb } => {
            tables::read(engine, map, *form, *verb, argument).map_err(unfit)?
        }
        HandlerAccess::Zero { .. } | HandlerAccess::Sets(_) | HandlerAccess::Restart { .. } => {
            return Err(HandlerError::Unreadable(name.to_owned()));
        }
        HandlerAccess::Ready(source) => is_ready(engine, source).to_string(),
        HandlerAccess::Data { map, length, .. } => {
            let bytes = engine.map(map).and_then(|map| map.get(&0u32.to_ne_bytes())).unwrap_or_default();
            let length = setting(engine, *length) as usize;
            String::from_utf8_lossy(&bytes[..length.min(bytes.len())]).into_owned()
        }
        HandlerAccess::Times(range, part) => {
            time_range::read(engine, range, *part).ok_or_else(|| HandlerError::Unreadable(name.to_owned()))?
        }
        HandlerAccess::Samples(series, statistic) => {
            samples::read(engine, series, *statistic, argument).map_err(unfit)?
        }
        HandlerAccess::Estimate(sketch) => {
            let takes = "it takes a flow like `10.0.0.1 1234 10.0.0.2 80 tcp`";
            let flow = FlowKey::parse(argument).ok_or_else(|| unfit(takes.to_owned()))?;
            sketch.estimate(flow, |at| counter(engine, sketch, at)).to_string()
        }
        HandlerAccess::Largest(sketch) => {
            let candidates = candidates(engine, sketch);
            let largest = sketch.largest(candidates, |at| counter(engine, sketch, at));
            let line = |(estimate, flow)| format!("{estimate} {flow}\n");
            largest.into_iter().map(line).collect()
        }
    })
}

/// Returns true if a source makes packets as soon as it may.
fn is_ready(engine: &mut NativeEngine, source: &SourceReadiness) -> bool {
    let state = state(engine);
    let mut value = |of: SettingValue| setting_value(engine, of);
    let is_within =
        u64::try_from(value(source.limit)).map_or(true, |limit| number(&state, source.count) < limit);
    let is_active = value(source.active) != 0;
    let mut is_full = |(length, capacity): &(u32, SettingValue)| {
        i64::try_from(number(&state, *length)).is_ok_and(|length| length >= value(*capacity))
    };
    let is_held = !source.queues.is_empty() && source.queues.iter().all(&mut is_full);
    is_active && is_within && !is_held
}

/// A counter of a sketch: the sum over workers.
fn counter(engine: &mut NativeEngine, sketch: &FlowSketch, at: u32) -> i64 {
    let all = engine.map(&sketch.counters).and_then(|map| map.get(&at.to_ne_bytes())).unwrap_or_default();
    all.chunks_exact(8).fold(0, |sum, copy| sum.wrapping_add(number(copy, 0) as i64))
}

/// Flows that are candidates of some worker.
fn candidates(engine: &mut NativeEngine, sketch: &FlowSketch) -> Vec<FlowKey> {
    let Some(map) = engine.map(&sketch.candidates) else { return Vec::new() };
    let size = map.spec().value_size as usize;
    let mut flows = Vec::new();
    for at in 0..map.spec().max_entries {
        let all = map.get(&at.to_ne_bytes()).unwrap_or_default();
        let there = all.chunks_exact(size).filter(|copy| number(copy, 16) != 0);
        flows.extend(there.map(|copy| FlowKey { addresses: number(copy, 0), rest: number(copy, 8) }));
    }
    flows
}

/// Writes the handler `ELEMENT.NAME`, with the text behind a space or line feed as the value.
///
/// # Errors
/// If there is none, or none that is written, or it takes no such value; nothing has changed then.
pub fn write(program: &ClickProgram, engine: &mut NativeEngine, text: &str) -> Result<(), HandlerError> {
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let handler = handler(program, name)?;
    let unfit = |why: String| HandlerError::Unfit { name: name.to_owned(), why };
    match &handler.access {
        HandlerAccess::Zero { words, arrays } => zero(engine, words, arrays),
        HandlerAccess::Sets(all) => {
            all.iter().for_each(|(offset, value)| set_setting(engine, *offset, *value))
        }
        HandlerAccess::Restart { count, base } => {
            let sent = setting(engine, *base) + number(&state(engine), *count) as i64;
            set_setting(engine, *base, sent);
            zero(engine, &[*count], &[]);
        }
        HandlerAccess::Setting(offset, takes) => {
            let value = takes
                .parse(value)
                .ok_or_else(|| unfit(format!("{value:?} does not fit: it takes {takes}")))?;
            set_setting(engine, *offset, value);
        }
        HandlerAccess::Bits(bits) => {
            let takes = bits.takes();
            let value = takes
                .parse(value)
                .ok_or_else(|| unfit(format!("{value:?} does not fit: it takes {takes}")))?;
            let all = setting(engine, bits.of);
            set_setting(engine, bits.of, bits.set(all, value));
        }
        HandlerAccess::Table { map, form, verb } if verb.writes() => {
            tables::write(engine, map, *form, *verb, value).map_err(unfit)?;
        }
        HandlerAccess::Data { map, length, most } => {
            let data = unquote(value.trim());
            if data.len() > *most as usize {
                return Err(unfit(format!("packets have {most} bytes at most")));
            }
            let repeated = data.iter().copied().cycle().take(*most as usize);
            let bytes = if data.is_empty() { vec![0; *most as usize] } else { repeated.collect() };
            if let Some(map) = engine.map(map) {
                // The array's only entry always exists, so the update cannot fail.
                map.update(&0u32.to_ne_bytes(), &bytes, 0, None);
            }
            set_setting(engine, *length, data.len() as i64);
        }
        HandlerAccess::Times(range, part) => time_range::write(engine, range, *part, value).map_err(unfit)?,
        HandlerAccess::Constant(_) => return Err(HandlerError::Constant(name.to_owned())),
        _ => return Err(HandlerError::Unwritable(name.to_owned())),
    }
    Ok(())
}

/// Sets words of the state and the contents of arrays to zero.
fn zero(engine: &mut NativeEngine, words: &[u32], arrays: &[String]) {
    let mut state = state(engine);
    for &at in words {
        if let Some(word) = state.get_mut(at as usize..at as usize + 8) {
            word.fill(0);
        }
    }
    set_state(engine, &state);
    for map in arrays {
        clear(engine, map);
    }
}

/// Sets the contents of an array to zero, for all workers.
fn clear(engine: &mut NativeEngine, array: &str) {
    let Some(map) = engine.map(array) else { return };
    let (none, entries) = (vec![0; map.spec().value_size as usize], map.spec().max_entries);
    for at in 0..entries {
        // Array entries always exist, so the update cannot fail.
        map.update(&at.to_ne_bytes(), &none, 0, None);
    }
}
