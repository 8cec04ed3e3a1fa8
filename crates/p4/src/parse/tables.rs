//! Tables.

use crate::ast::{
    AnnotationTree, DeclarationKind, DeclarationTree, TableAction, TableEntry, TableKey, TableProperty,
    TablePropertyValue,
};
use crate::expression::{ExpressionKind, ExpressionTree};
use crate::parse::{Parsed, SyntaxParser};

impl SyntaxParser<'_> {
    pub(super) fn table(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let name = self.name()?;
        let properties = self.braced(Self::table_property)?;
        self.declare(&name, false);
        Ok(self.declaration(annotations, name, DeclarationKind::Table(properties), start))
    }

    fn table_property(&mut self) -> Parsed<TableProperty> {
        let annotations = self.annotations()?;
        let is_constant = self.take("const");
        let name = self.name()?;
        self.expect("=")?;
        let value = match &*name.text {
            "key" => TablePropertyValue::Keys(self.braced(Self::table_key)?),
            "actions" => TablePropertyValue::Actions(self.braced(Self::table_action)?),
            "entries" => TablePropertyValue::Entries(self.braced(Self::table_entry)?),
            _ => {
                let value = self.expression()?;
                self.expect(";")?;
                return Ok(TableProperty {
                    annotations,
                    is_constant,
                    name,
                    value: TablePropertyValue::Value(value),
                });
            }
        };
        self.take(";");
        Ok(TableProperty { annotations, is_constant, name, value })
    }

    fn table_key(&mut self) -> Parsed<TableKey> {
        let expression = self.expression()?;
        self.expect(":")?;
        let match_kind = self.name()?;
        let annotations = self.annotations()?;
        self.expect(";")?;
        Ok(TableKey { expression, match_kind, annotations })
    }

    fn table_action(&mut self) -> Parsed<TableAction> {
        let annotations = self.annotations()?;
        let action = self.action_reference()?;
        self.expect(";")?;
        Ok(TableAction { annotations, action })
    }

    /// Reads the name of an action, or a call of it.
    fn action_reference(&mut self) -> Parsed<ExpressionTree> {
        let name = self.qualified_name()?;
        let span = name.name.span;
        let action = self.expression_of(ExpressionKind::Name(name), span, 0)?;
        if !self.is("(") {
            return Ok(action);
        }
        let arguments = self.arguments()?;
        let below = crate::parse::expressions::arguments_height(&arguments);
        let span = span.to(self.last_span());
        self.expression_of(ExpressionKind::Call(Box::new(action), Vec::new(), arguments), span, below)
    }

    fn table_entry(&mut self) -> Parsed<TableEntry> {
        let is_constant = self.take("const");
        let has_priority = self.is("priority") && self.is_ahead(1, "=");
        let priority = if has_priority {
            self.advance();
            self.advance();
            let value = self.expression()?;
            self.expect(":")?;
            Some(value)
        } else {
            None
        };
        let keyset = self.keyset()?;
        self.expect(":")?;
        let action = self.action_reference()?;
        let annotations = self.annotations()?;
        self.expect(";")?;
        Ok(TableEntry { is_constant, priority, keyset, action, annotations })
    }
}
