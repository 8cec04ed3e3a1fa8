//! Settings and tables written by handlers, carried over to the configuration that replaces this one.
//!
//! A setting or table keeps its current value if both configurations give it the same initial value: somebody
//! has changed it since, and the new configuration does not contradict that. If the initial values differ,
//! the new one wins.

use std::collections::BTreeSet;

use millstream_click::{ClickProgram, Handler, HandlerAccess, SETTINGS};
use millstream_native::NativeEngine;

use crate::handlers::{self, number};

/// A configuration and the engine that runs it.
pub type RunningConfig<'r> = (&'r ClickProgram, &'r mut NativeEngine);

/// Keeps settings and the tables of these names, of elements that both configurations have.
pub fn carry_settings(new: RunningConfig<'_>, old: RunningConfig<'_>, tables: &BTreeSet<String>) {
    let (program, engine) = new;
    let (before, was) = old;
    for (handler, then) in program.handlers.iter().filter_map(|h| Some((h, counterpart(before, program, h)?)))
    {
        match (&handler.access, &then.access) {
            (HandlerAccess::Setting(at, takes), HandlerAccess::Setting(from, _)) => {
                let (first, value) = (initial(before, *from), handlers::setting(was, *from));
                let fits = takes.parse(&takes.text(value)) == Some(value);
                if fits && value != first && first == initial(program, *at) {
                    handlers::set_setting(engine, *at, value);
                }
            }
            (
                HandlerAccess::Table { map, form, .. },
                HandlerAccess::Table { map: from, form: was_form, .. },
            ) if tables.contains(from)
                && form == was_form
                && entries(program, map) == entries(before, from) =>
            {
                keep_table((engine, map), (was, from));
            }
            _ => {}
        }
    }
}

/// The old configuration's counterpart of a handler: same element name, same handler name, same class.
fn counterpart<'p>(
    before: &'p ClickProgram,
    program: &ClickProgram,
    handler: &Handler,
) -> Option<&'p Handler> {
    let same = |h: &&Handler| (&h.element, &h.name) == (&handler.element, &handler.name);
    let class = |program: &ClickProgram| {
        let class = program.handlers.iter().find(|h| h.element == handler.element && h.name == "class");
        class.map(|class| class.access.clone())
    };
    before.handlers.iter().find(same).filter(|_| class(before) == class(program))
}

/// Initial value of a number in the settings.
fn initial(program: &ClickProgram, at: u32) -> i64 {
    let settings = program.code.entries.iter().find(|entry| entry.map == SETTINGS);
    settings.map_or(0, |settings| number(&settings.value, at) as i64)
}

/// Initial contents of a table.
fn entries<'p>(program: &'p ClickProgram, map: &str) -> BTreeSet<(&'p [u8], &'p [u8])> {
    let of = program.code.entries.iter().filter(|entry| entry.map == map);
    of.map(|entry| (entry.key.as_slice(), entry.value.as_slice())).collect()
}

/// Copies the contents of one table to another, as far as there is room.
fn keep_table((engine, map): (&mut NativeEngine, &str), (was, from): (&mut NativeEngine, &str)) {
    let (Some(map), Some(from)) = (engine.map(map), was.map(from)) else { return };
    let (here, there) = (map.spec(), from.spec());
    if (here.key_size, here.value_size) != (there.key_size, there.value_size) {
        return;
    }
    for key in map.keys() {
        map.delete(&key);
    }
    for key in from.keys() {
        if let Some(value) = from.get(&key) {
            map.update(&key, &value, 0, None);
        }
    }
}
