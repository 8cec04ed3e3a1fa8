//! The state of a graph: what handlers read and write, and what was dropped.
//!
//! All numbers of a graph are one value of one map, `click.state`; with several workers each has a copy, and what is read is the sum.

use millstream_click::{Access, Flow, Handler, Program, STATE, Sketch};
use millstream_native::Engine;

/// Why a handler cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is none of this name.
    #[error("there is no handler {name:?}; the element has {near:?}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What the element has.
        near: Vec<String>,
    },
    /// There is no such element.
    #[error("there is no element {0:?} with handlers")]
    NoElement(String),
    /// It is one that is written.
    #[error("handler {0:?} can only be written")]
    Unreadable(String),
    /// Its argument is nothing that it takes.
    #[error("handler {name:?} takes {takes}")]
    Argument {
        /// The handler.
        name: String,
        /// What its argument is.
        takes: &'static str,
    },
    /// It is one that is read.
    #[error("handler {0:?} can only be read")]
    Unwritable(String),
}

/// The state of all elements: sums over workers.
pub fn state(engine: &mut Engine) -> Vec<u8> {
    let Some(map) = engine.map(STATE) else { return Vec::new() };
    let size = map.spec().value_size as usize;
    let mut all = map.get(&0u32.to_ne_bytes()).unwrap_or_default();
    let others = all.split_off(size.min(all.len()));
    for (at, word) in others.chunks_exact(8).enumerate() {
        let place = (8 * at) % size;
        let sum = number(&all, place as u32).wrapping_add(number(word, 0));
        all[place..place + 8].copy_from_slice(&sum.to_le_bytes());
    }
    all
}

/// Sets the state; with several workers it is the first one's, and that of the others is zero.
pub fn set_state(engine: &mut Engine, state: &[u8]) {
    let workers = engine.workers();
    let Some(map) = engine.map(STATE) else { return };
    let none = vec![0; state.len()];
    for worker in 0..workers {
        // The one entry that there is cannot be refused.
        map.update(&0u32.to_ne_bytes(), if worker == 0 { state } else { &none }, 0, Some(worker));
    }
}

/// A number of the state.
pub fn number(state: &[u8], offset: u32) -> u64 {
    let bytes = state.get(offset as usize..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Packets that an element has dropped.
pub fn drops_of(program: &Program, state: &[u8], element: &str) -> u64 {
    program.drops.iter().filter(|d| d.element == element).map(|d| number(state, d.offset)).sum()
}

/// The handler `ELEMENT.NAME`.
fn handler<'p>(program: &'p Program, name: &str) -> Result<&'p Handler, Error> {
    let found = program.handlers.iter().find(|h| format!("{}.{}", h.element, h.name) == name);
    found.ok_or_else(|| {
        let all = program.handlers.iter().map(|h| format!("{}.{}", h.element, h.name));
        let element = name.rsplit_once('.').map_or(name, |(element, _)| element);
        let near: Vec<String> = all.filter(|h| h.starts_with(&format!("{element}."))).collect();
        match near.is_empty() {
            true => Error::NoElement(element.to_owned()),
            false => Error::Unknown { name: name.to_owned(), near },
        }
    })
}

/// Reads the handler `ELEMENT.NAME`, with what is behind a space as its argument.
///
/// # Errors
/// If there is none, or none that is read, or it takes no such argument.
pub fn read(program: &Program, engine: &mut Engine, text: &str) -> Result<String, Error> {
    let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let handler = handler(program, name)?;
    Ok(match &handler.access {
        Access::Number(offset) => number(&state(engine), *offset).to_string(),
        Access::Text(text) => text.clone(),
        Access::Drops => drops_of(program, &state(engine), &handler.element).to_string(),
        Access::Zero { .. } => return Err(Error::Unreadable(name.to_owned())),
        Access::Estimate(sketch) => {
            let takes = "a flow like `10.0.0.1 1234 10.0.0.2 80 tcp`";
            let flow = Flow::parse(argument).ok_or(Error::Argument { name: name.to_owned(), takes })?;
            sketch.estimate(flow, |at| counter(engine, sketch, at)).to_string()
        }
        Access::Largest(sketch) => {
            let candidates = candidates(engine, sketch);
            let largest = sketch.largest(candidates, |at| counter(engine, sketch, at));
            let line = |(estimate, flow)| format!("{estimate} {flow}\n");
            largest.into_iter().map(line).collect()
        }
    })
}

/// A counter of a sketch: the sum over workers.
fn counter(engine: &mut Engine, sketch: &Sketch, at: u32) -> i64 {
    let all = engine.map(&sketch.counters).and_then(|map| map.get(&at.to_ne_bytes())).unwrap_or_default();
    all.chunks_exact(8).fold(0, |sum, copy| sum.wrapping_add(number(copy, 0) as i64))
}

/// Flows that are candidates of some worker.
fn candidates(engine: &mut Engine, sketch: &Sketch) -> Vec<Flow> {
    let Some(map) = engine.map(&sketch.candidates) else { return Vec::new() };
    let size = map.spec().value_size as usize;
    let mut flows = Vec::new();
    for at in 0..map.spec().max_entries {
        let all = map.get(&at.to_ne_bytes()).unwrap_or_default();
        let there = all.chunks_exact(size).filter(|copy| number(copy, 16) != 0);
        flows.extend(there.map(|copy| Flow { addresses: number(copy, 0), rest: number(copy, 8) }));
    }
    flows
}

/// Writes the handler `ELEMENT.NAME`.
///
/// # Errors
/// If there is none, or none that is written.
pub fn write(program: &Program, engine: &mut Engine, name: &str) -> Result<(), Error> {
    let Access::Zero { words, arrays } = &handler(program, name)?.access else {
        return Err(Error::Unwritable(name.to_owned()));
    };
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
    Ok(())
}

/// Sets what an array holds to zero, for all workers.
fn clear(engine: &mut Engine, array: &str) {
    let Some(map) = engine.map(array) else { return };
    let (none, entries) = (vec![0; map.spec().value_size as usize], map.spec().max_entries);
    for at in 0..entries {
        // Entries of arrays cannot be refused.
        map.update(&at.to_ne_bytes(), &none, 0, None);
    }
}
