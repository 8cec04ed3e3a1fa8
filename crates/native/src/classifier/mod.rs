//! Match tables as native code: one of three templates for each, chosen by what its entries demand, or pinned.
//!
//! [`Classifier::Linear`] compares entry by entry (`millstream_bpf::lower::expand_tables`). [`Classifier::Tree`] is a tree of comparisons: a function (`emit::tree`) where it is small, else data ([`steps`]). [`Classifier::Tuples`] is tuple space search ([`tuples`]): a hash table for each set of masks, which is a map of the module like any other,
//! so that its look-ups are inlined, and fetched ahead where the table is large.
//!
//! Invariant: after [`expand`] functions of the module match those tables only that are functions.

mod steps;
mod tuples;

use cranelift_entity::PrimaryMap;
use millstream_bpf::lower::{TableForm, expand_tables, table_plan, table_rules, table_widths};
use millstream_ir::{Module, Op, Table, TableDecl};
use serde::{Deserialize, Serialize};

use crate::emit::Tree;
use crate::engine::Error;
use crate::image::Initial;
use crate::templates::{Chosen, PINNED, said};
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
const FEW: usize = 64;
/// Tables of fewer rules are not hashed.
const MANY: usize = 128;
/// A tree of more rules is data.
const MOST_CODE: usize = 1024;
/// Rules that such a tree may have twice, beside as many as there are.
const SPARE: usize = 16;
/// A table may become so many times as many entries of hash tables.
const SPREAD: usize = 4;
/// Hash tables, and entries of them, where these are said.
const MOST_TUPLES: usize = 256;
const MOST_ROWS: usize = 1 << 20;

/// What a table becomes.
enum Choice {
    InOrder,
    Function(Tree),
    Steps(Steps),
    Tuples(Tuples),
}

/// What came of match tables.
pub(crate) struct Expanded {
    /// What maps hold at first that were made.
    pub(crate) initial: Vec<Initial>,
    /// The template of each table.
    pub(crate) templates: Vec<Chosen>,
    /// Numbers of maps that most keys are not in: of several tuples one has the rule that counts.
    pub(crate) absent: Vec<usize>,
    /// Tables that stay in the functions, for code to call: their trees.
    pub(crate) trees: Vec<(Table, Tree)>,
}

/// Replaces all matches of tables, by the templates that are said, by name, or else by those that fit.
pub(crate) fn expand(module: &mut Module, pinned: &[(String, Classifier)]) -> Result<Expanded, Error> {
    if let Some((name, _)) = pinned.iter().find(|(name, _)| module.tables.values().all(|t| t.name != *name)) {
        let there: Vec<&str> = module.tables.values().map(|table| table.name.as_str()).collect();
        return Err(Error::Choose(format!(
            "there is no classifier {name:?}; there are: {}",
            there.join(", ")
        )));
    }
    let mut choices: PrimaryMap<Table, Choice> = PrimaryMap::new();
    let mut templates = Vec::new();
    for table in module.tables.values() {
        let (choice, template, why) = choice(table, said(pinned, &table.name).copied())?;
        choices.push(choice);
        let (table, template) = (table.name.clone(), template.name().to_owned());
        templates.push(Chosen { table, template, why });
    }
    let (mut initial, before) = (Vec::new(), module.maps.len());
    let Module { tables, maps, funcs, .. } = module;
    for func in funcs.values_mut() {
        expand_tables(func, tables, true, |table| match choices[table] {
            Choice::InOrder => Some(TableForm::InOrder),
            Choice::Function(_) | Choice::Steps(_) | Choice::Tuples(_) => None,
        });
        let mut b = 0;
        while b < func.layout.len() {
            let block = func.layout[b];
            let found = func.blocks[block].insts.iter().enumerate().find_map(|(at, &inst)| {
                match func.insts[inst].op {
                    Op::TableMatch { table } if !matches!(choices[table], Choice::Function(_)) => {
                        Some((at, table))
                    }
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
                Some((_, _, Choice::InOrder | Choice::Function(_))) | None => {}
            }
            b += 1;
        }
    }
    let absent = (before..maps.len()).collect();
    let trees = choices.into_iter().filter_map(|(table, choice)| match choice {
        Choice::Function(tree) => Some((table, tree)),
        _ => None,
    });
    Ok(Expanded { initial, templates, absent, trees: trees.collect() })
}

/// What a table becomes, its template, and why that.
fn choice(table: &TableDecl, said: Option<Classifier>) -> Result<(Choice, Classifier, String), Error> {
    let refused = |why: &str| Error::Choose(format!("classifier {:?}: {why}", table.name));
    let rules = table_rules(table).ok_or_else(|| refused("too many entries"))?;
    let (widths, count) = (table_widths(table), rules.len());
    let tree = || match count {
        ..=MOST_CODE => {
            let plan = table_plan(rules.clone(), &widths, TableForm::Tree, count + SPARE);
            Choice::Function(Tree { plan, widths: widths.clone() })
        }
        _ => Choice::Steps(Steps::new(rules.clone(), widths.clone())),
    };
    if let Some(said) = said {
        let choice = match said {
            Classifier::Linear => Choice::InOrder,
            Classifier::Tree => tree(),
            Classifier::Tuples => {
                let made = Tuples::of(&rules, &widths, MOST_TUPLES, MOST_ROWS);
                Choice::Tuples(made.ok_or_else(|| {
                    refused(&format!("its rules have more than {MOST_TUPLES} sets of masks, or ranges that are too many prefixes"))
                })?)
            }
        };
        return Ok((choice, said, PINNED.to_owned()));
    }
    if count <= FEW {
        return Ok((Choice::InOrder, Classifier::Linear, format!("{count} rules")));
    }
    // A hash table takes as long as a few levels of a tree, whose height is the logarithm of the rules.
    let sets = if count < MANY { 0 } else { count.ilog2() as usize - 3 };
    match Tuples::of(&rules, &widths, sets, SPREAD * count) {
        Some(tuples) if count >= MANY => {
            let why = format!("{count} rules with {} sets of masks", tuples.len());
            Ok((Choice::Tuples(tuples), Classifier::Tuples, why))
        }
        _ if count < MANY => Ok((tree(), Classifier::Tree, format!("{count} rules"))),
        _ => Ok((tree(), Classifier::Tree, format!("{count} rules with more than {sets} sets of masks"))),
    }
}
