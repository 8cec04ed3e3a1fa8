//! Entries of tables. Source: P4_16 1.2.5, section 14.2.1.4.

use crate::ast::{TableEntry, TableProperty, TablePropertyValue};
use num_bigint::BigInt;
use rustc_hash::FxHashSet;

use crate::check::TypeChecker;
use crate::check::constants::ConstantValue;
use crate::check::scope::TableEntity;
use crate::check::tables::action_reference;
use crate::check::types::TypeId;
use crate::expression::{BinaryOperator, ExpressionKind, ExpressionTree};

impl TypeChecker<'_> {
    pub(crate) fn entries(&mut self, table: &TableEntity, property: &TableProperty, entries: &[TableEntry]) {
        if table.keys.is_empty() && !entries.is_empty() {
            self.error(property.name.span, "a table without a key has no entries");
            return;
        }
        let types: Vec<TypeId> = table.keys.iter().map(|key| key.type_id).collect();
        for entry in entries {
            self.annotations(&entry.annotations);
            self.keyset(&entry.keyset, &types, true);
            self.check_match_kinds(table, &entry.keyset);
            self.entry_action(table, entry);
            self.priority(table, entry, property.is_constant);
        }
        self.check_first_priority(entries);
        self.check_duplicates(table, entries);
    }

    /// Checks that the first entry has a priority if any has one.
    fn check_first_priority(&mut self, entries: &[TableEntry]) {
        let has_priority = |entry: &TableEntry| entry.priority.is_some();
        if let Some(first) =
            entries.first().filter(|first| !has_priority(first) && entries.iter().any(has_priority))
        {
            self.error(first.keyset.span, "the first entry needs a priority if another has one");
        }
    }

    /// Checks that the priorities of entries that have none written do not become negative.
    pub(crate) fn check_priorities(&mut self, properties: &[TableProperty]) {
        let value = |name: &str| {
            let property = properties.iter().find(|property| &*property.name.text == name)?;
            let TablePropertyValue::Value(value) = &property.value else { return None };
            self.facts.constant(value.id).cloned()
        };
        if value("largest_priority_wins") == Some(ConstantValue::Boolean(false)) {
            return;
        }
        let delta =
            value("priority_delta").and_then(|delta| delta.number().cloned()).unwrap_or_else(|| 1.into());
        let entries = properties.iter().find_map(|property| match &property.value {
            TablePropertyValue::Entries(entries) => Some(entries),
            _ => None,
        });
        let mut last: Option<BigInt> = None;
        for entry in entries.into_iter().flatten() {
            let written =
                entry.priority.as_ref().and_then(|p| self.facts.constant(p.id)).and_then(|c| c.number());
            last = written.cloned().or_else(|| last.map(|last| last - &delta));
            if last.as_ref().is_some_and(|priority| *priority < BigInt::ZERO) {
                self.error(entry.keyset.span, "the priority of this entry becomes negative");
                return;
            }
        }
    }

    /// Checks that no two entries have the same values, in a table whose keys are all exact.
    fn check_duplicates(&mut self, table: &TableEntity, entries: &[TableEntry]) {
        if table.keys.iter().any(|key| &*key.match_kind != "exact") {
            return;
        }
        let mut seen = FxHashSet::default();
        for entry in entries {
            let values: Vec<String> = parts(&entry.keyset)
                .into_iter()
                .filter_map(|part| self.facts.constant(part.id))
                .map(|c| format!("{c:?}"))
                .collect();
            if values.len() == table.keys.len() && !seen.insert(values) {
                self.error(entry.keyset.span, "another entry has these values");
            }
        }
    }

    /// Checks that value and mask of an entry are those of a prefix.
    fn check_prefix(&mut self, keyset: &ExpressionTree, key: TypeId) {
        let ExpressionKind::Binary(BinaryOperator::Mask, value, mask) = &keyset.kind else { return };
        let number = |part: &ExpressionTree| self.facts.constant(part.id).and_then(|c| c.number()).cloned();
        let (Some(value), Some(mask), Some((width, _))) = (number(value), number(mask), self.format(key))
        else {
            return;
        };
        let ones = (BigInt::from(1) << width) - 1;
        let inverse: BigInt = &ones ^ &mask;
        let is_prefix = (&inverse & (&inverse + 1)) == BigInt::ZERO;
        if value > ones || mask > ones || !is_prefix {
            self.error(keyset.span, "the value and the mask are not those of a prefix");
        }
    }

    fn entry_action(&mut self, table: &TableEntity, entry: &TableEntry) {
        let Some((name, arguments)) = action_reference(&entry.action) else { return };
        let Some(listed) = self.listed(table, name) else { return };
        if listed.is_default_only {
            self.error(entry.action.span, format!("`{}` may only be the default action", name.name.text));
        }
        self.action_arguments(&listed, arguments, entry.action.span);
    }

    /// Checks that each part of a set suits the match kind of its key.
    fn check_match_kinds(&mut self, table: &TableEntity, keyset: &ExpressionTree) {
        let parts = parts(keyset);
        if parts.len() != table.keys.len() {
            return;
        }
        for (part, key) in parts.into_iter().zip(&table.keys) {
            let is_allowed = match (&part.kind, &*key.match_kind) {
                (ExpressionKind::Anything, kind) => kind != "exact",
                (ExpressionKind::Binary(BinaryOperator::Mask, ..), kind) => {
                    !matches!(kind, "exact" | "range" | "optional")
                }
                (ExpressionKind::Binary(BinaryOperator::Range, ..), kind) => {
                    !matches!(kind, "exact" | "lpm" | "ternary" | "optional")
                }
                _ => true,
            };
            if &*key.match_kind == "lpm" {
                self.check_prefix(part, key.type_id);
            }
            if !is_allowed {
                self.error(
                    part.span,
                    format!("a key that matches by `{}` cannot have this set", key.match_kind),
                );
            }
        }
    }

    fn priority(&mut self, table: &TableEntity, entry: &TableEntry, is_constant: bool) {
        let Some(priority) = &entry.priority else { return };
        self.known_size(priority, "a priority", 1, i32::MAX as u32);
        if is_constant {
            self.error(
                priority.span,
                "constant entries have no priorities: the first one that matches counts",
            );
        }
        let has_order = table.keys.iter().any(|key| !matches!(&*key.match_kind, "exact" | "lpm"));
        if !has_order {
            self.error(priority.span, "entries of this table have no priorities: no two can match");
        }
    }
}

/// Sets of the elements of a key.
fn parts(keyset: &ExpressionTree) -> Vec<&ExpressionTree> {
    match &keyset.kind {
        ExpressionKind::KeysetTuple(parts) => parts.iter().collect(),
        _ => vec![keyset],
    }
}
