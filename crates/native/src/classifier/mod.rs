//! Match tables as native code: one of three templates for each, chosen by what its entries demand, or pinned.
//!
//! [`Classifier::Linear`] compares entry by entry (`millstream_bpf::lower::expand_tables`). [`Classifier::Tree`] is a tree of comparisons: code where it is small, else data ([`steps`]),
//! since LLVM takes milliseconds a rule. [`Classifier::Tuples`] is tuple space search ([`tuples`]): a hash table for each set of masks, which is a map of the module like any other,
//! so that its look-ups are inlined, and fetched ahead where the table is large.
//!
//! Invariant: after [`expand`] no function of the module matches a table.

mod steps;
mod tuples;

use cranelift_entity::PrimaryMap;
use millstream_bpf::lower::{TableForm, expand_tables, table_rules, table_widths};
use millstream_ir::{Module, Op, Table, TableDecl};
use serde::{Deserialize, Serialize};

use crate::engine::Error;
use crate::image::Initial;
use steps::Steps;
use tuples::Tuples;

/// How a match table is searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Classifier {
    /// Entry by entry.
    Linear,
    /// By a tree of comparisons.
    Tree,
    /// By a hash table for each set of masks.
    Tuples,
}

/// Tables of no more rules are searched one by one: a tree takes fewer instructions there, and guesses more branches wrong.
const FEW: usize = 16;
/// Tables of fewer rules are not hashed.
const MANY: usize = 32;
/// A tree of more rules is data.
const MOST_CODE: usize = 512;
/// A table may become so many times as many entries of hash tables.
const SPREAD: usize = 4;
/// Hash tables, and entries of them, where these are said.
const MOST_TUPLES: usize = 256;
const MOST_ROWS: usize = 1 << 20;

/// What a table becomes.
enum Choice {
    Code(TableForm),
    Steps(Steps),
    Tuples(Tuples),
}

/// Replaces all matches of tables, by the templates that are said, by name, or else by those that fit. Gives what maps hold at first that were made.
pub(crate) fn expand(module: &mut Module, pinned: &[(String, Classifier)]) -> Result<Vec<Initial>, Error> {
    if let Some((name, _)) = pinned.iter().find(|(name, _)| module.tables.values().all(|t| t.name != *name)) {
        let there: Vec<&str> = module.tables.values().map(|table| table.name.as_str()).collect();
        return Err(Error::Choose(format!(
            "there is no classifier {name:?}; there are: {}",
            there.join(", ")
        )));
    }
    let mut choices: PrimaryMap<Table, Choice> = PrimaryMap::new();
    for table in module.tables.values() {
        let said = pinned.iter().find(|(name, _)| *name == table.name).map(|(_, said)| *said);
        choices.push(choice(table, said)?);
    }
    let mut initial = Vec::new();
    let Module { tables, maps, funcs, .. } = module;
    for func in funcs.values_mut() {
        expand_tables(func, tables, true, |table| match choices[table] {
            Choice::Code(form) => Some(form),
            Choice::Steps(_) | Choice::Tuples(_) => None,
        });
        let mut b = 0;
        while b < func.layout.len() {
            let block = func.layout[b];
            let found = func.blocks[block].insts.iter().enumerate().find_map(|(at, &inst)| {
                match func.insts[inst].op {
                    Op::TableMatch { table } => Some((at, table)),
                    _ => None,
                }
            });
            match found.map(|(at, table)| (at, &tables[table].name, &mut choices[table])) {
                Some((at, name, Choice::Steps(steps))) => {
                    steps.declare(name, maps, &mut initial);
                    steps.search(func, (b, at));
                }
                Some((at, name, Choice::Tuples(tuples))) => {
                    tuples.declare(name, maps, &mut initial);
                    tuples.search(func, (b, at));
                }
                Some((_, _, Choice::Code(_))) | None => {}
            }
            b += 1;
        }
    }
    Ok(initial)
}

/// The template of a table.
fn choice(table: &TableDecl, said: Option<Classifier>) -> Result<Choice, Error> {
    let refused = |why: &str| Error::Choose(format!("classifier {:?}: {why}", table.name));
    let rules = table_rules(table).ok_or_else(|| refused("too many entries"))?;
    let widths = table_widths(table);
    let tree = || match rules.len() <= MOST_CODE {
        true => Choice::Code(TableForm::Tree),
        false => Choice::Steps(Steps::new(rules.clone(), widths.clone())),
    };
    Ok(match said {
        Some(Classifier::Linear) => Choice::Code(TableForm::InOrder),
        Some(Classifier::Tree) => tree(),
        Some(Classifier::Tuples) => {
            let made = Tuples::of(&rules, &widths, MOST_TUPLES, MOST_ROWS);
            Choice::Tuples(made.ok_or_else(|| {
                refused(&format!("its rules have more than {MOST_TUPLES} sets of masks, or ranges that are too many prefixes"))
            })?)
        }
        None if rules.len() <= FEW => Choice::Code(TableForm::InOrder),
        None if rules.len() < MANY => tree(),
        // A hash table takes as long as a few levels of a tree, whose height is the logarithm of the rules.
        None => match Tuples::of(&rules, &widths, rules.len().ilog2() as usize - 3, SPREAD * rules.len()) {
            Some(tuples) => Choice::Tuples(tuples),
            None => tree(),
        },
    })
}
