//! Entries of tables. Source: P4_16 1.2.5, section 14.2.1.4.

use crate::ast::{TableEntry, TableProperty};
use crate::check::TypeChecker;
use crate::check::tables::{TableEntity, action_reference};
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
            self.keyset(&entry.keyset, &types, true);
            self.check_match_kinds(table, &entry.keyset);
            self.entry_action(table, entry);
            self.priority(table, entry, property.is_constant);
        }
    }

    fn entry_action(&mut self, table: &TableEntity, entry: &TableEntry) {
        let Some((name, arguments)) = action_reference(&entry.action) else { return };
        let Some(listed) = self.listed(table, name) else { return };
        if listed.is_default_only {
            self.error(entry.action.span, format!("`{}` may only be the default action", name.name.text));
        }
        self.action_arguments(&listed, arguments, entry.action.span, true);
    }

    /// Checks that each part of a set suits the match kind of its key.
    fn check_match_kinds(&mut self, table: &TableEntity, keyset: &ExpressionTree) {
        let parts: Vec<&ExpressionTree> = match &keyset.kind {
            ExpressionKind::KeysetTuple(parts) => parts.iter().collect(),
            _ => vec![keyset],
        };
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
