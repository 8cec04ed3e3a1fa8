//! Syntax trees of declarations and statements.

use crate::expression::{BinaryOperator, CallArgument, ExpressionTree, TypeSyntax};
use crate::lex::SourceToken;
use crate::source::{SourceName, SourceSpan};

/// An annotation.
#[derive(Clone, Debug)]
pub struct AnnotationTree {
    /// Name behind the `@`.
    pub name: SourceName,
    /// Body.
    pub body: AnnotationBody,
}

/// Body of an annotation.
#[derive(Clone, Debug)]
pub enum AnnotationBody {
    /// No body, or the tokens within parentheses, or the line of a `@pragma`.
    Unstructured(Vec<SourceToken>),
    /// Expressions within brackets.
    Expressions(Vec<ExpressionTree>),
    /// Names with values within brackets.
    Pairs(Vec<(SourceName, ExpressionTree)>),
}

/// Direction of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParameterDirection {
    /// No direction.
    Directionless,
    /// `in`
    In,
    /// `out`
    Out,
    /// `inout`
    InOut,
}

/// A parameter.
#[derive(Clone, Debug)]
pub struct ParameterSyntax {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// Direction.
    pub direction: ParameterDirection,
    /// Type.
    pub declared_type: TypeSyntax,
    /// Name.
    pub name: SourceName,
    /// Default value.
    pub default: Option<ExpressionTree>,
}

/// A declaration.
#[derive(Clone, Debug)]
pub struct DeclarationTree {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// Name; anonymous for errors and match kinds.
    pub name: SourceName,
    /// Kind and parts.
    pub kind: DeclarationKind,
    /// Place of the whole.
    pub span: SourceSpan,
}

/// Kinds of declarations.
#[derive(Clone, Debug)]
pub enum DeclarationKind {
    /// `const TYPE NAME = VALUE;`
    Constant(TypeSyntax, ExpressionTree),
    /// `TYPE NAME;`, or with a value.
    Variable(TypeSyntax, Option<ExpressionTree>),
    /// `TYPE(ARGUMENTS) NAME;`
    Instance(InstanceSyntax),
    /// A function, or a method that implements an abstract one.
    Function(FunctionSyntax),
    /// `extern TYPE NAME(PARAMETERS);`
    ExternFunction(FunctionSignature),
    /// `extern NAME { METHODS }`
    Extern(ExternSyntax),
    /// `action NAME(PARAMETERS) { ... }`
    Action(Vec<ParameterSyntax>, BlockSyntax),
    /// `table NAME { PROPERTIES }`
    Table(Vec<TableProperty>),
    /// `value_set<TYPE>(SIZE) NAME;`
    ValueSet(TypeSyntax, ExpressionTree),
    /// A parser, or the type of one.
    Parser(ParserSyntax),
    /// A control, or the type of one.
    Control(ControlSyntax),
    /// `package NAME(PARAMETERS);`
    Package(Vec<SourceName>, Vec<ParameterSyntax>),
    /// A struct, header or header union.
    Aggregate(AggregateSyntax),
    /// `enum NAME { MEMBERS }`, or with a type and values.
    Enumeration(Option<TypeSyntax>, Vec<(SourceName, Option<ExpressionTree>)>),
    /// `error { NAMES }`
    Errors(Vec<SourceName>),
    /// `match_kind { NAMES }`
    MatchKinds(Vec<SourceName>),
    /// `typedef TYPE NAME;`
    TypeAlias(TypeSyntax),
    /// `type TYPE NAME;`
    NewType(TypeSyntax),
}

/// An instantiation.
#[derive(Clone, Debug)]
pub struct InstanceSyntax {
    /// Type of the object.
    pub object_type: TypeSyntax,
    /// Arguments of the constructor.
    pub arguments: Vec<CallArgument>,
    /// Methods and objects that implement abstract methods.
    pub initializer: Option<Vec<DeclarationTree>>,
}

/// Result, name and parameters of a function.
#[derive(Clone, Debug)]
pub struct FunctionSignature {
    /// Type of the result; a constructor has none.
    pub result: Option<TypeSyntax>,
    /// Type parameters.
    pub type_parameters: Vec<SourceName>,
    /// Parameters.
    pub parameters: Vec<ParameterSyntax>,
}

/// A function.
#[derive(Clone, Debug)]
pub struct FunctionSyntax {
    /// Signature.
    pub signature: FunctionSignature,
    /// Body.
    pub body: BlockSyntax,
}

/// An extern type.
#[derive(Clone, Debug)]
pub struct ExternSyntax {
    /// Type parameters.
    pub type_parameters: Vec<SourceName>,
    /// Methods and constructors.
    pub methods: Vec<MethodSyntax>,
}

/// A method of an extern type.
#[derive(Clone, Debug)]
pub struct MethodSyntax {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// Name.
    pub name: SourceName,
    /// The program implements it.
    pub is_abstract: bool,
    /// Signature.
    pub signature: FunctionSignature,
}

/// Kinds of types with fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AggregateKind {
    /// `struct`
    Struct,
    /// `header`
    Header,
    /// `header_union`
    HeaderUnion,
}

/// A struct, header or header union.
#[derive(Clone, Debug)]
pub struct AggregateSyntax {
    /// Kind.
    pub kind: AggregateKind,
    /// Type parameters.
    pub type_parameters: Vec<SourceName>,
    /// Fields.
    pub fields: Vec<FieldSyntax>,
}

/// A field.
#[derive(Clone, Debug)]
pub struct FieldSyntax {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// Type.
    pub declared_type: TypeSyntax,
    /// Name.
    pub name: SourceName,
}

/// A parser.
#[derive(Clone, Debug)]
pub struct ParserSyntax {
    /// Type parameters.
    pub type_parameters: Vec<SourceName>,
    /// Parameters of `apply`.
    pub parameters: Vec<ParameterSyntax>,
    /// The body; a type has none.
    pub body: Option<ParserBody>,
}

/// Body of a parser.
#[derive(Clone, Debug)]
pub struct ParserBody {
    /// Parameters of the constructor.
    pub constructor: Vec<ParameterSyntax>,
    /// Declarations in front of the states.
    pub locals: Vec<DeclarationTree>,
    /// States.
    pub states: Vec<ParserState>,
}

/// A state of a parser.
#[derive(Clone, Debug)]
pub struct ParserState {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// Name.
    pub name: SourceName,
    /// Statements.
    pub statements: Vec<StatementTree>,
    /// Transition; none goes to `reject`.
    pub transition: Option<StateTransition>,
}

/// Transition of a state.
#[derive(Clone, Debug)]
pub enum StateTransition {
    /// To one state.
    Direct(SourceName),
    /// By values.
    Select(Vec<ExpressionTree>, Vec<SelectCase>, SourceSpan),
}

/// A case of `select`.
#[derive(Clone, Debug)]
pub struct SelectCase {
    /// Set of values.
    pub keyset: ExpressionTree,
    /// State.
    pub state: SourceName,
}

/// A control.
#[derive(Clone, Debug)]
pub struct ControlSyntax {
    /// Type parameters.
    pub type_parameters: Vec<SourceName>,
    /// Parameters of `apply`.
    pub parameters: Vec<ParameterSyntax>,
    /// The body; a type has none.
    pub body: Option<ControlBody>,
}

/// Body of a control.
#[derive(Clone, Debug)]
pub struct ControlBody {
    /// Parameters of the constructor.
    pub constructor: Vec<ParameterSyntax>,
    /// Declarations.
    pub locals: Vec<DeclarationTree>,
    /// Statements of `apply`.
    pub apply: BlockSyntax,
}

/// A property of a table.
#[derive(Clone, Debug)]
pub struct TableProperty {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// It is `const`.
    pub is_constant: bool,
    /// Name.
    pub name: SourceName,
    /// Value.
    pub value: TablePropertyValue,
}

/// Value of a property.
#[derive(Clone, Debug)]
pub enum TablePropertyValue {
    /// `key = { ... }`
    Keys(Vec<TableKey>),
    /// `actions = { ... }`
    Actions(Vec<TableAction>),
    /// `entries = { ... }`
    Entries(Vec<TableEntry>),
    /// Any other.
    Value(ExpressionTree),
}

/// An element of a key.
#[derive(Clone, Debug)]
pub struct TableKey {
    /// Expression.
    pub expression: ExpressionTree,
    /// Match kind.
    pub match_kind: SourceName,
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
}

/// An action of a table.
#[derive(Clone, Debug)]
pub struct TableAction {
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
    /// A name, or a call that binds arguments.
    pub action: ExpressionTree,
}

/// An entry of a table.
#[derive(Clone, Debug)]
pub struct TableEntry {
    /// It is `const`.
    pub is_constant: bool,
    /// Priority.
    pub priority: Option<ExpressionTree>,
    /// Set of values.
    pub keyset: ExpressionTree,
    /// A name, or a call.
    pub action: ExpressionTree,
    /// Annotations.
    pub annotations: Vec<AnnotationTree>,
}

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
