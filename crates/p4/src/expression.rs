//! Syntax trees of expressions and types.

use num_bigint::BigInt;

use crate::source::{SourceName, SourceSpan, Symbol};

/// Number of an expression in its program; the checker's tables use it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExpressionId(pub u32);

/// An expression.
#[derive(Clone, Debug)]
pub struct ExpressionTree {
    /// Number.
    pub id: ExpressionId,
    /// Kind and parts.
    pub kind: ExpressionKind,
    /// Place.
    pub span: SourceSpan,
    /// Height of the tree, which is limited.
    pub(crate) height: u32,
}

/// Kinds of expressions.
#[derive(Clone, Debug)]
pub enum ExpressionKind {
    /// A number.
    Number(NumberLiteral),
    /// `true` or `false`
    Boolean(bool),
    /// A string.
    Text(Symbol),
    /// A name; a global one has a dot in front.
    Name(QualifiedName),
    /// `this`
    This,
    /// `...`: the default value, or the rest of a list.
    Default,
    /// `_` or `default`, as a set.
    Anything,
    /// `{#}`: an invalid header.
    Invalid,
    /// Operators with one operand.
    Unary(UnaryOperator, Box<ExpressionTree>),
    /// Operators with two operands.
    Binary(BinaryOperator, Box<ExpressionTree>, Box<ExpressionTree>),
    /// `CONDITION ? THEN : OTHERWISE`
    Ternary(Box<[ExpressionTree; 3]>),
    /// `(TYPE) VALUE`
    Cast(Box<TypeSyntax>, Box<ExpressionTree>),
    /// `VALUE.MEMBER`
    Member(Box<ExpressionTree>, SourceName),
    /// `TYPE.MEMBER`
    TypeMember(Box<TypeSyntax>, SourceName),
    /// `VALUE[INDEX]`
    Index(Box<ExpressionTree>, Box<ExpressionTree>),
    /// `VALUE[HIGH:LOW]`
    Slice(Box<[ExpressionTree; 3]>),
    /// `VALUE[LOW+:WIDTH]`
    WidthSlice(Box<[ExpressionTree; 3]>),
    /// `{A, B}`
    List(Vec<ExpressionTree>),
    /// `{a = A, b = B}`; the mark says that `...` ends it.
    Record(Vec<(SourceName, ExpressionTree)>, bool),
    /// `(A, B)` as a set.
    KeysetTuple(Vec<ExpressionTree>),
    /// `FUNCTION<TYPES>(ARGUMENTS)`
    Call(Box<ExpressionTree>, Vec<TypeSyntax>, Vec<CallArgument>),
    /// `TYPE(ARGUMENTS)`
    Construct(Box<TypeSyntax>, Vec<CallArgument>),
}

/// A number as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumberLiteral {
    /// Width and sign; a number without them is of type `int`.
    pub width: Option<(u32, bool)>,
    /// Value.
    pub value: BigInt,
}

/// A name, possibly with a dot in front.
#[derive(Clone, Debug)]
pub struct QualifiedName {
    /// It is looked up in the outermost scope.
    pub is_global: bool,
    /// Name.
    pub name: SourceName,
}

/// An argument of a call.
#[derive(Clone, Debug)]
pub struct CallArgument {
    /// Name of the parameter, if it is given.
    pub name: Option<SourceName>,
    /// Value; none is `_`.
    pub value: Option<ExpressionTree>,
    /// Place.
    pub span: SourceSpan,
}

/// Operators with one operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryOperator {
    /// `!`
    Not,
    /// `~`
    Complement,
    /// `-`
    Minus,
    /// `+`
    Plus,
}

macro_rules! binary_operators {
    ($($name:ident $text:literal $strength:literal,)*) => {
        /// Operators with two operands.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum BinaryOperator { $(#[doc = concat!("`", $text, "`")] $name),* }

        impl BinaryOperator {
            /// Spelling.
            pub fn text(self) -> &'static str {
                match self { $(BinaryOperator::$name => $text),* }
            }

            /// Operator of a mark, and its strength.
            pub(crate) fn of(mark: &str) -> Option<(BinaryOperator, u8)> {
                match mark {
                    $($text => Some((BinaryOperator::$name, $strength)),)*
                    _ => None,
                }
            }
        }
    };
}

binary_operators! {
    Range ".." 1, Mask "&&&" 2, Or "||" 3, And "&&" 4, Equal "==" 5, NotEqual "!=" 5,
    Less "<" 6, Greater ">" 6, AtMost "<=" 6, AtLeast ">=" 6, BitOr "|" 7, BitXor "^" 8, BitAnd "&" 9,
    ShiftLeft "<<" 10, ShiftRight ">>" 10, Add "+" 11, Subtract "-" 11, AddSaturating "|+|" 11,
    SubtractSaturating "|-|" 11, Concatenate "++" 11, Multiply "*" 12, Divide "/" 12, Remainder "%" 12,
}

/// A type.
#[derive(Clone, Debug)]
pub struct TypeSyntax {
    /// Kind and parts.
    pub kind: TypeSyntaxKind,
    /// Place.
    pub span: SourceSpan,
}

/// Kinds of types.
#[derive(Clone, Debug)]
pub enum TypeSyntaxKind {
    /// `bool`
    Bool,
    /// `error`
    ErrorCode,
    /// `match_kind`
    MatchKind,
    /// `string`
    Text,
    /// `void`
    Void,
    /// `int` without a width.
    Integer,
    /// `bit<WIDTH>`
    Bits(Option<Box<ExpressionTree>>),
    /// `int<WIDTH>`
    SignedBits(Box<ExpressionTree>),
    /// `varbit<WIDTH>`
    VariableBits(Box<ExpressionTree>),
    /// A name.
    Named(QualifiedName),
    /// `NAME<TYPES>`
    Specialized(QualifiedName, Vec<TypeSyntax>),
    /// `TYPE[SIZE]`
    Stack(Box<TypeSyntax>, Box<ExpressionTree>),
    /// `tuple<TYPES>`
    Tuple(Vec<TypeSyntax>),
    /// `list<TYPE>`
    List(Box<TypeSyntax>),
    /// `_`
    Anything,
}
