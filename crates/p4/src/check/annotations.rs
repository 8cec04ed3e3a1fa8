//! Annotations that the language defines. Source: P4_16 1.2.5, section 20.

use rustc_hash::FxHashMap;

use crate::ast::{AnnotationBody, AnnotationTree};
use crate::check::TypeChecker;
use crate::check::types::{BOOL, INTEGER, TEXT, UNKNOWN};
use crate::expression::ExpressionTree;
use crate::lex::{SourceToken, TokenKind};

impl TypeChecker<'_> {
    pub(crate) fn annotations(&mut self, annotations: &[AnnotationTree]) {
        let mut structured: FxHashMap<&str, bool> = FxHashMap::default();
        for annotation in annotations {
            let is_structured = !matches!(annotation.body, AnnotationBody::Unstructured(_));
            let name = &annotation.name;
            let earlier = structured.insert(&name.text, is_structured);
            if earlier.is_some_and(|earlier| earlier || is_structured) {
                self.error(name.span, format!("the structured annotation `@{}` occurs twice", name.text));
            }
            self.annotation(annotation);
        }
    }

    fn annotation(&mut self, annotation: &AnnotationTree) {
        match &annotation.body {
            AnnotationBody::Unstructured(tokens) => self.defined_annotation(annotation, tokens),
            AnnotationBody::Expressions(list) => list.iter().for_each(|value| self.annotation_value(value)),
            AnnotationBody::Pairs(pairs) => {
                self.distinct("the key", pairs.iter().map(|(name, _)| name));
                pairs.iter().for_each(|(_, value)| self.annotation_value(value));
            }
        }
    }

    fn defined_annotation(&mut self, annotation: &AnnotationTree, tokens: &[SourceToken]) {
        let name = &annotation.name;
        let is_right = match &*name.text {
            "name" | "deprecated" => is_string(tokens),
            "match" => matches!(tokens, [one] if matches!(one.kind, TokenKind::Word(_))),
            "pkginfo" => !tokens.is_empty(),
            _ => true,
        };
        if !is_right {
            let expected = match &*name.text {
                "match" => "a match kind in parentheses",
                "pkginfo" => "keys and values in brackets",
                _ => "a string in parentheses",
            };
            self.error(name.span, format!("`@{}` takes {expected}", name.text));
        }
    }

    fn annotation_value(&mut self, expression: &ExpressionTree) {
        let value = self.expression(expression);
        if !matches!(value.type_id, BOOL | INTEGER | TEXT | UNKNOWN) && self.format(value.type_id).is_none() {
            self.error(expression.span, "values of annotations are numbers, booleans and strings");
        }
        if !value.is_known {
            self.error(
                expression.span,
                "the values of annotations have to be known when the program is compiled",
            );
        }
    }
}

/// Tells if tokens are strings with `++` between them.
fn is_string(tokens: &[SourceToken]) -> bool {
    let is_text = |(n, token): (usize, &SourceToken)| match n % 2 {
        0 => matches!(token.kind, TokenKind::Text(_)),
        _ => token.kind == TokenKind::Mark("++"),
    };
    tokens.len() % 2 == 1 && tokens.iter().enumerate().all(is_text)
}
