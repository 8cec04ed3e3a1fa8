//! Tables.

use crate::ast::{
    AnnotationTree, DeclarationKind, DeclarationTree, TableAction, TableEntry, TableKey, TableProperty,
    TablePropertyValue,
};
use crate::expression::{ExpressionKind, ExpressionTree};
use crate::parse::{Parsed, SyntaxParser, expressions, types};

pub(super) fn table(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let name = parser.name()?;
    let properties = parser.braced(table_property)?;
    parser.declare(&name, false);
    Ok(parser.declaration(annotations, name, DeclarationKind::Table(properties), start))
}

fn table_property(parser: &mut SyntaxParser<'_>) -> Parsed<TableProperty> {
    let annotations = parser.annotations()?;
    let is_constant = parser.take("const");
    let name = parser.name()?;
    parser.expect("=")?;
    let value = match &*name.text {
        "key" => TablePropertyValue::Keys(parser.braced(table_key)?),
        "actions" => TablePropertyValue::Actions(parser.braced(table_action)?),
        "entries" => TablePropertyValue::Entries(parser.braced(table_entry)?),
        _ => {
            let value = parser.expression()?;
            parser.expect(";")?;
            return Ok(TableProperty {
                annotations,
                is_constant,
                name,
                value: TablePropertyValue::Value(value),
            });
        }
    };
    parser.take(";");
    Ok(TableProperty { annotations, is_constant, name, value })
}

fn table_key(parser: &mut SyntaxParser<'_>) -> Parsed<TableKey> {
    let expression = parser.expression()?;
    parser.expect(":")?;
    let match_kind = parser.name()?;
    let annotations = parser.annotations()?;
    parser.expect(";")?;
    Ok(TableKey { expression, match_kind, annotations })
}

fn table_action(parser: &mut SyntaxParser<'_>) -> Parsed<TableAction> {
    let annotations = parser.annotations()?;
    let action = action_reference(parser)?;
    parser.expect(";")?;
    Ok(TableAction { annotations, action })
}

/// Reads the name of an action, or a call of it.
fn action_reference(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let name = types::qualified_name(parser)?;
    let span = name.name.span;
    let action = parser.expression_of(ExpressionKind::Name(name), span, 0)?;
    if !parser.is("(") {
        return Ok(action);
    }
    let arguments = expressions::arguments(parser)?;
    let below = crate::parse::expressions::arguments_height(&arguments);
    let span = span.to(parser.last_span());
    parser.expression_of(ExpressionKind::Call(Box::new(action), Vec::new(), arguments), span, below)
}

fn table_entry(parser: &mut SyntaxParser<'_>) -> Parsed<TableEntry> {
    let is_constant = parser.take("const");
    let has_priority = parser.is("priority") && parser.is_ahead(1, "=");
    let priority = if has_priority {
        parser.advance();
        parser.advance();
        let value = parser.expression()?;
        parser.expect(":")?;
        Some(value)
    } else {
        None
    };
    let keyset = expressions::keyset(parser)?;
    parser.expect(":")?;
    let action = action_reference(parser)?;
    let annotations = parser.annotations()?;
    parser.expect(";")?;
    Ok(TableEntry { is_constant, priority, keyset, action, annotations })
}
