//! Names while a program is lowered: lexical scopes, and what a name stands for.

use std::cell::RefCell;
use std::rc::Rc;

use millstream_p4::Symbol;
use millstream_p4::ast::{DeclarationTree, FunctionSyntax, ParameterSyntax};
use millstream_p4::expression::{CallArgument, ExpressionTree};
use rustc_hash::FxHashMap;

use crate::types::RuntimeType;
use crate::values::Place;

/// A lexical scope.
#[derive(Debug)]
pub(crate) struct Scope<'p> {
    names: RefCell<FxHashMap<Symbol, Binding<'p>>>,
    types: RefCell<FxHashMap<Symbol, RuntimeType>>,
    parent: Option<Rc<Scope<'p>>>,
    /// Instance whose body this is.
    pub(crate) owner: Option<Rc<BlockInstance<'p>>>,
}

/// Meaning of a name. Actions, tables and constants belong to the scope that they are found in.
#[derive(Clone, Debug)]
pub(crate) enum Binding<'p> {
    Variable(Place),
    /// A constant or a constructor's parameter: an expression of another scope, which has no variables.
    Constant(&'p ExpressionTree, RuntimeType, Option<Rc<Scope<'p>>>),
    Instance(Rc<Instance<'p>>),
    Action(&'p DeclarationTree),
    Table(&'p DeclarationTree),
    Method(&'p FunctionSyntax),
}

/// An object that exists as long as the program.
#[derive(Debug)]
pub(crate) enum Instance<'p> {
    PacketIn,
    PacketOut,
    /// A parser or control.
    Block(Rc<BlockInstance<'p>>),
    /// An extern of an architecture, by its type's name, with its number among those of the type.
    Extern(Symbol, usize),
    /// Number of the value set.
    ValueSet(usize),
}

/// An instance of a parser or control, with the objects in it.
#[derive(Debug)]
pub(crate) struct BlockInstance<'p> {
    pub(crate) declaration: &'p DeclarationTree,
    /// Type arguments and arguments of the constructor.
    pub(crate) arguments: Rc<Scope<'p>>,
    /// Name for the control plane.
    pub(crate) path: String,
    /// Instances within, by place of the declaration.
    pub(crate) objects: RefCell<FxHashMap<(Symbol, u32), Rc<Instance<'p>>>>,
    /// Tables within, by name: numbers in the pipeline.
    pub(crate) tables: RefCell<FxHashMap<Symbol, usize>>,
}

/// Parts of a table that the code needs.
#[derive(Clone, Debug)]
pub(crate) struct TableParts<'p> {
    pub(crate) keys: Vec<(&'p ExpressionTree, RuntimeType)>,
    pub(crate) actions: Vec<TableActionParts<'p>>,
    /// Elements of the key that choose a member of a group.
    pub(crate) selectors: Vec<&'p ExpressionTree>,
    /// Object of the direct meter.
    pub(crate) meter: Option<usize>,
}

/// An action of a table.
#[derive(Clone, Debug)]
pub(crate) struct TableActionParts<'p> {
    pub(crate) declaration: &'p DeclarationTree,
    /// It is global.
    pub(crate) is_global: bool,
    /// Arguments that the list binds.
    pub(crate) bound: &'p [CallArgument],
    /// Types and offsets of the parameters that entries set, in order.
    pub(crate) parameters: Vec<(&'p ParameterSyntax, RuntimeType, u32)>,
}

impl<'p> Scope<'p> {
    pub(crate) fn new(parent: Option<Rc<Scope<'p>>>) -> Rc<Scope<'p>> {
        Scope::of_owner(parent, None)
    }

    pub(crate) fn of_owner(
        parent: Option<Rc<Scope<'p>>>,
        owner: Option<Rc<BlockInstance<'p>>>,
    ) -> Rc<Scope<'p>> {
        let owner = owner.or_else(|| parent.as_ref().and_then(|parent| parent.owner.clone()));
        Rc::new(Scope { names: RefCell::default(), types: RefCell::default(), parent, owner })
    }

    pub(crate) fn bind(&self, name: Symbol, binding: Binding<'p>) {
        self.names.borrow_mut().insert(name, binding);
    }

    pub(crate) fn bind_type(&self, name: Symbol, value: RuntimeType) {
        self.types.borrow_mut().insert(name, value);
    }

    /// Finds a name, and the scope that has it.
    pub(crate) fn find(self: &Rc<Self>, name: &str) -> Option<(Binding<'p>, Rc<Scope<'p>>)> {
        let mut scope = self;
        loop {
            if let Some(binding) = scope.names.borrow().get(name) {
                return Some((binding.clone(), scope.clone()));
            }
            scope = scope.parent.as_ref()?;
        }
    }

    pub(crate) fn find_type(&self, name: &str) -> Option<RuntimeType> {
        let mut scope = self;
        loop {
            if let Some(found) = scope.types.borrow().get(name) {
                return Some(found.clone());
            }
            scope = scope.parent.as_ref()?;
        }
    }
}
