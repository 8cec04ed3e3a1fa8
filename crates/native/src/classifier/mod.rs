//! Match tables as native code: one of four templates for each, chosen by the constraints of its entries, or
//! pinned.
//!
//! [`ClassifierTemplate::Linear`] compares entry by entry (`millstream_match_tables::expand_tables`).
//! [`ClassifierTemplate::Tree`] is a tree of comparisons as code (`emit::tree`), [`ClassifierTemplate::Cuts`]
//! some trees of wide nodes as data ([`cuts`]) and a function that walks through them (`emit::cuts`).
//! [`ClassifierTemplate::Tuples`] is tuple space search ([`tuples`]): a hash table for each set of masks,
//! which is a map of the module like any other, so that its look-ups are inlined, and fetched ahead where the
//! table is large.
//!
//! Invariant: after [`expand`], functions of the module match only those tables that are functions.

pub(crate) mod cuts;
mod tuples;

use cranelift_entity::PrimaryMap;
use millstream_ir::{Module, Op, Table, TableDecl};
use millstream_match_tables::{TableForm, expand_tables, table_plan, table_rules, table_widths};
use serde::{Deserialize, Serialize};

use crate::emit::{ComparisonTree, TableSearch};
use crate::error::NativeError;
use crate::image::InitialMapEntry;
use crate::templates::{PINNED, TableTemplate, find_by_name};
use cuts::CutClassifier;
use tuples::TupleSpace;

/// Search algorithm of a match table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClassifierTemplate {
    /// Entry by entry.
    Linear,
    /// By a tree of comparisons.
    Tree,
    /// By trees of wide nodes.
    Cuts,
    /// By a hash table for each set of masks.
    Tuples,
}

impl ClassifierTemplate {
    /// Its name for pinning.
    pub const fn name(self) -> &'static str {
        match self {
            ClassifierTemplate::Linear => "linear",
            ClassifierTemplate::Tree => "tree",
            ClassifierTemplate::Cuts => "cuts",
            ClassifierTemplate::Tuples => "tuples",
        }
    }
}

/// Tables of no more rules are searched linearly.
const FEWEST: usize = 32;
/// So are tables of no more rules, unless they are one node and its leaves: if many packets match an early
/// rule and few branches are mispredicted, that takes fewer instructions.
const FEW: usize = 64;
/// Trees that compare with more leaves than this on average, one after the other, do not tell rules apart.
const CROWDED: f64 = 2.0;
/// Tables of fewer rules are not hashed; a tree of comparisons is as fast as several trees of wide nodes.
const MANY: usize = 128;
/// A tree of more rules is too much code.
const MOST_CODE: usize = 1024;
/// Number of rules that such a tree may duplicate.
const SPARE: usize = 16;
/// Limit of the rows of hash tables, as a multiple of the table's entries.
const SPREAD: usize = 4;
/// Limits of hash tables and of their rows, if tuples are pinned.
const MOST_TUPLES: usize = 256;
const MOST_ROWS: usize = 1 << 20;

/// Implementation of a table.
enum ClassifierImpl {
    InOrder,
    Tree(ComparisonTree),
    Cuts(CutClassifier),
    Tuples(TupleSpace),
}

/// Result of expanding match tables.
pub(crate) struct ExpandedTables {
    /// Initial contents of the maps that were made.
    pub(crate) initial: Vec<InitialMapEntry>,
    /// The template of each table.
    pub(crate) templates: Vec<TableTemplate>,
    /// Numbers of maps that lack most keys: of several tuples, one has the rule that counts.
    pub(crate) absent: Vec<usize>,
    /// Tables that stay in the functions as calls to generated code.
    pub(crate) matches: Vec<(Table, TableSearch)>,
}

/// Replaces all matches of tables, by the pinned templates, by name, or else by those that fit.
pub(crate) fn expand(
    module: &mut Module,
    pinned: &[(String, ClassifierTemplate)],
) -> Result<ExpandedTables, NativeError> {
    if let Some((name, _)) = pinned.iter().find(|(name, _)| module.tables.values().all(|t| t.name != *name)) {
        let there: Vec<&str> = module.tables.values().map(|table| table.name.as_str()).collect();
        return Err(NativeError::Choose(format!(
            "there is no classifier {name:?}; there are: {}",
            there.join(", ")
        )));
    }
    let mut choices: PrimaryMap<Table, ClassifierImpl> = PrimaryMap::new();
    let mut templates = Vec::new();
    for table in module.tables.values() {
        let (choice, template, why) = choice(table, find_by_name(pinned, &table.name).copied())?;
        choices.push(choice);
        let (table, template) = (table.name.clone(), template.name().to_owned());
        templates.push(TableTemplate { table, template, why });
    }
    let (mut initial, before) = (Vec::new(), module.maps.len());
    let Module { tables, maps, funcs, .. } = module;
    for func in funcs.values_mut() {
        expand_tables(func, tables, true, |table| match choices[table] {
            ClassifierImpl::InOrder => Some(TableForm::InOrder),
            ClassifierImpl::Tree(_) | ClassifierImpl::Cuts(_) | ClassifierImpl::Tuples(_) => None,
        });
        let mut b = 0;
        while b < func.layout.len() {
            let block = func.layout[b];
            for at in 0..func.blocks[block].insts.len() {
                let inst = func.blocks[block].insts[at];
                let Op::TableMatch { table } = func.insts[inst].op else { continue };
                let name = &tables[table].name;
                match &mut choices[table] {
                    ClassifierImpl::InOrder | ClassifierImpl::Tree(_) => {}
                    ClassifierImpl::Cuts(cuts) => cuts.declare(name, maps, &mut initial),
                    ClassifierImpl::Tuples(tuples) => {
                        tuples.declare(name, maps, &mut initial);
                        tuples.search(func, (b, at));
                        // The instructions behind the match are in a block of their own now.
                        break;
                    }
                }
            }
            b += 1;
        }
    }
    let absent = (before..maps.len()).collect();
    let matches = choices.into_iter().filter_map(|(table, choice)| match choice {
        ClassifierImpl::Tree(tree) => Some((table, TableSearch::Tree(tree))),
        ClassifierImpl::Cuts(cuts) => Some((table, TableSearch::Cuts(cuts))),
        ClassifierImpl::InOrder | ClassifierImpl::Tuples(_) => None,
    });
    Ok(ExpandedTables { initial, templates, absent, matches: matches.collect() })
}

/// Chooses the implementation and the template of a table, and gives the reason.
fn choice(
    table: &TableDecl,
    said: Option<ClassifierTemplate>,
) -> Result<(ClassifierImpl, ClassifierTemplate, String), NativeError> {
    let refused = |why: &str| NativeError::Choose(format!("classifier {:?}: {why}", table.name));
    let rules = table_rules(table).ok_or_else(|| refused("too many entries"))?;
    let (widths, count) = (table_widths(table), rules.len());
    let tree = || {
        let plan = table_plan(rules.clone(), &widths, TableForm::Tree, count + SPARE);
        ClassifierImpl::Tree(ComparisonTree { plan, widths: widths.clone() })
    };
    let cuts = || CutClassifier::new(&rules, &widths).ok_or_else(|| refused("too much memory for trees"));
    if let Some(said) = said {
        let choice = match said {
            ClassifierTemplate::Linear => ClassifierImpl::InOrder,
            ClassifierTemplate::Tree => tree(),
            ClassifierTemplate::Cuts => ClassifierImpl::Cuts(cuts()?),
            ClassifierTemplate::Tuples => {
                let made = TupleSpace::of(&rules, &widths, MOST_TUPLES, MOST_ROWS);
                ClassifierImpl::Tuples(made.ok_or_else(|| {
                    refused(&format!(
                        "its rules have more than {MOST_TUPLES} sets of masks, or ranges \
                         that are too many prefixes"
                    ))
                })?)
            }
        };
        return Ok((choice, said, PINNED.to_owned()));
    }
    if count <= FEWEST {
        return Ok((ClassifierImpl::InOrder, ClassifierTemplate::Linear, format!("{count} rules")));
    }
    let cuts = cuts()?;
    let heights = cuts.heights();
    if cuts.leaves() <= CROWDED && (count >= MANY || heights == [1]) {
        let heights: Vec<String> = heights.iter().map(u32::to_string).collect();
        let why = format!("{count} rules, in trees of height {}", heights.join(" and "));
        return Ok((ClassifierImpl::Cuts(cuts), ClassifierTemplate::Cuts, why));
    }
    if count < MANY {
        let (choice, template) = match count {
            ..=FEW => (ClassifierImpl::InOrder, ClassifierTemplate::Linear),
            _ => (tree(), ClassifierTemplate::Tree),
        };
        return Ok((choice, template, format!("{count} rules")));
    }
    // A hash table takes as long as a few levels of a tree, whose height is the logarithm of the number of
    // rules.
    let sets = count.ilog2() as usize - 3;
    let crowded = format!("{count} rules that no trees tell apart");
    if let Some(tuples) = TupleSpace::of(&rules, &widths, sets, SPREAD * count) {
        let why = format!("{crowded}, with {} sets of masks", tuples.len());
        return Ok((ClassifierImpl::Tuples(tuples), ClassifierTemplate::Tuples, why));
    }
    Ok(match count {
        ..=MOST_CODE => (tree(), ClassifierTemplate::Tree, crowded),
        _ => (ClassifierImpl::Cuts(cuts), ClassifierTemplate::Cuts, crowded),
    })
}
