//! Syntax trees of statements.

use crate::ast::{AnnotationTree, DeclarationTree};
use crate::expression::{BinaryOperator, CallArgument, ExpressionTree, TypeSyntax};
use crate::source::SourceSpan;

/// Statements within braces.
#[derive(Clone, Debug)]
pub struct BlockSyntax {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// Statements.
    pub statements: Vec<StatementTree>,
    /// Place.
    pub span: SourceSpan,
}

/// A statement.
#[derive(Clone, Debug)]
pub struct StatementTree {
    /// Kind and parts.
    pub kind: StatementKind,
    /// Place.
    pub span: SourceSpan,
}

/// Kinds of statements.
#[derive(Clone, Debug)]
pub enum StatementKind {
    /// `;`
    Empty,
    /// `LEFT = RIGHT;`, or an operator in front of the `=`.
    Assignment(ExpressionTree, Option<BinaryOperator>, ExpressionTree),
    /// A call.
    Call(ExpressionTree),
    /// `TYPE.apply(...);`: an instance without a name.
    DirectApplication(TypeSyntax, Vec<CallArgument>),
    /// `if`
    Conditional(Box<ConditionalSyntax>),
    /// Statements within braces.
    Block(BlockSyntax),
    /// `switch`
    Switch(ExpressionTree, Vec<SwitchCase>),
    /// `return`
    Return(Option<ExpressionTree>),
    /// `exit`
    Exit,
    /// `break`
    Break,
    /// `continue`
    Continue,
    /// `for (INIT; CONDITION; UPDATE) BODY`
    ForLoop(Box<ForLoopSyntax>),
    /// `for (TYPE NAME in RANGE) BODY`
    ForInLoop(Box<ForInSyntax>),
    /// A variable, constant or instance.
    Declaration(Box<DeclarationTree>),
}

/// `if (CONDITION) THEN else OTHERWISE`
#[derive(Clone, Debug)]
pub struct ConditionalSyntax {
    /// Condition.
    pub condition: ExpressionTree,
    /// Statement if it holds.
    pub then: StatementTree,
    /// Statement if not.
    pub otherwise: Option<StatementTree>,
}

/// A case of `switch`.
#[derive(Clone, Debug)]
pub struct SwitchCase {
    /// Value; none is `default`.
    pub label: Option<ExpressionTree>,
    /// Place of the label.
    pub span: SourceSpan,
    /// Statements; none falls through to the next.
    pub body: Option<BlockSyntax>,
}

/// `for (INIT; CONDITION; UPDATE) BODY`
#[derive(Clone, Debug)]
pub struct ForLoopSyntax {
    /// In front of the first round.
    pub start: Vec<StatementTree>,
    /// In front of each round.
    pub condition: ExpressionTree,
    /// Behind each round.
    pub update: Vec<StatementTree>,
    /// Body.
    pub body: StatementTree,
}

/// `for (TYPE NAME in COLLECTION) BODY`
#[derive(Clone, Debug)]
pub struct ForInSyntax {
    /// Type of a variable that the loop declares.
    pub declared_type: Option<TypeSyntax>,
    /// Variable.
    pub variable: ExpressionTree,
    /// Range, list or stack.
    pub collection: ExpressionTree,
    /// Body.
    pub body: StatementTree,
}
