//! The IR verifier: conditions on every module, before and after every pass.
//!
//! Structure: each block in the layout once; its instructions in no other; a terminator at its end and
//! nowhere before; as many arguments for a target as it has parameters; no branch to the entry, whose
//! parameters are the function's. Definitions: one a value, and it dominates every use in a reachable block.
//! Operations: the rules of `ops.rs` for each. Types must be plausible; [`Type::Any`](crate::Type::Any)
//! always is.
//!
//! A function without blocks has lost its body; nothing may call it. Unreachable blocks are tolerated (see
//! [`unreachable_blocks`]), with dominance unchecked in them.

mod decls;
mod ops;

use std::fmt;

use cranelift_entity::SecondaryMap;

use crate::cfg::{Cfg, DomTree};
use crate::entities::*;
use crate::func::{Function, ValueDef};
use crate::module::Module;
use crate::text::print_inst;

/// A violation and where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyError {
    /// Name of the function, if it is in one.
    pub func: Option<String>,
    /// The block, if it is in one.
    pub block: Option<Block>,
    /// The instruction with its text, if it is in one.
    pub inst: Option<(Inst, String)>,
    /// The violation.
    pub message: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(func) = &self.func {
            write!(f, "{func}: ")?;
        }
        if let Some(block) = self.block {
            write!(f, "{block}: ")?;
        }
        if let Some((_, text)) = &self.inst {
            write!(f, "`{text}`: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for VerifyError {}

/// Verifies a module; an empty list means that it is valid.
pub fn verify_module(module: &Module) -> Vec<VerifyError> {
    let mut errors = decls::verify(module);
    for func in module.funcs.values() {
        errors.extend(verify_function(func, module));
    }
    errors
}

/// Verifies a function against the module around it; an empty list means that it is valid.
pub fn verify_function(func: &Function, module: &Module) -> Vec<VerifyError> {
    verify(func, Some(module))
}

/// Verifies the structure of a function, and that every value is defined wherever it is used; an empty list
/// means that both hold. Operations are not checked: that takes the module.
pub fn verify_definitions(func: &Function) -> Vec<VerifyError> {
    verify(func, None)
}

fn verify(func: &Function, module: Option<&Module>) -> Vec<VerifyError> {
    let mut verifier = Verifier {
        func,
        errors: Vec::new(),
        in_layout: SecondaryMap::new(),
        home: SecondaryMap::with_default(None),
    };
    verifier.slots();
    if func.layout.is_empty() {
        return verifier.errors;
    }
    verifier.layout();
    verifier.blocks();
    // With broken blocks or numbers out of range, the graph cannot be built.
    if verifier.errors.is_empty() {
        verifier.dominance();
        if let Some(module) = module {
            verifier.operations(module);
        }
    }
    verifier.errors
}

/// Blocks of the layout that control cannot reach. The function must be valid.
pub fn unreachable_blocks(func: &Function) -> Vec<Block> {
    if func.layout.is_empty() {
        return Vec::new();
    }
    let cfg = Cfg::new(func);
    func.layout.iter().copied().filter(|&b| !cfg.is_reachable(b)).collect()
}

struct Verifier<'a> {
    func: &'a Function,
    errors: Vec<VerifyError>,
    in_layout: SecondaryMap<Block, bool>,
    /// Block and position of each instruction that is in a block.
    home: SecondaryMap<Inst, Option<(Block, u32)>>,
}

impl Verifier<'_> {
    fn error(&mut self, block: Option<Block>, inst: Option<Inst>, message: impl Into<String>) {
        self.errors.push(VerifyError {
            func: Some(self.func.name.clone()),
            block,
            inst: inst.map(|i| (i, print_inst(self.func, i))),
            message: message.into(),
        });
    }

    fn slots(&mut self) {
        for (slot, data) in &self.func.slots {
            if !matches!(data.align, 1 | 2 | 4 | 8) {
                self.error(None, None, format!("{slot} has alignment {}: not 1, 2, 4 or 8", data.align));
            }
            if data.fixed.is_some_and(|offset| offset >= 0) {
                self.error(None, None, format!("{slot} is fixed at or above the frame pointer"));
            }
        }
    }

    fn layout(&mut self) {
        for &block in &self.func.layout {
            if !self.func.blocks.is_valid(block) {
                self.error(Some(block), None, "the block does not exist");
            } else if std::mem::replace(&mut self.in_layout[block], true) {
                self.error(Some(block), None, "the block is in the layout twice");
            }
        }
        if !self.errors.is_empty() {
            return;
        }
        let entry = self.func.entry();
        for &block in &self.func.layout {
            for &inst in &self.func.blocks[block].insts {
                if !self.func.insts.is_valid(inst) {
                    self.error(Some(block), None, format!("{inst} does not exist"));
                    continue;
                }
                for target in &self.func.insts[inst].targets {
                    if !self.in_layout[target.block] {
                        self.error(
                            Some(block),
                            None,
                            format!("its target {} is not in the layout", target.block),
                        );
                    } else if target.block == entry {
                        self.error(Some(block), None, "it branches to the entry");
                    }
                }
            }
        }
    }

    fn blocks(&mut self) {
        if !self.errors.is_empty() {
            return;
        }
        for &block in &self.func.layout {
            self.params(block);
            self.block(block);
        }
    }

    fn params(&mut self, block: Block) {
        for (i, &param) in self.func.blocks[block].params.iter().enumerate() {
            if !self.func.defs.is_valid(param) || self.func.defs[param] != ValueDef::Param(block, i as u16) {
                self.error(Some(block), None, format!("{param} is not defined as its parameter {i}"));
            }
        }
    }

    fn block(&mut self, block: Block) {
        let insts = &self.func.blocks[block].insts;
        if insts.is_empty() {
            self.error(Some(block), None, "the block is empty: it needs a terminator");
        }
        for (at, &inst) in insts.iter().enumerate() {
            if let Some((other, _)) = self.home[inst].replace((block, at as u32)) {
                self.error(Some(block), Some(inst), format!("the instruction is in {other} too"));
            }
            let ends = self.func.insts[inst].op.is_terminator();
            if ends && at + 1 != insts.len() {
                self.error(Some(block), Some(inst), "a terminator before the end of the block");
            } else if !ends && at + 1 == insts.len() {
                self.error(Some(block), Some(inst), "the block does not end with a terminator");
            }
            self.inst_structure(block, inst);
        }
    }

    fn inst_structure(&mut self, block: Block, inst: Inst) {
        let func = self.func;
        let data = &func.insts[inst];
        let at = (Some(block), Some(inst));
        let (expected, found) = (data.op.target_count(), data.targets.len());
        if expected != found {
            self.error(at.0, at.1, format!("expected {expected} targets, found {found}"));
        }
        for target in &data.targets {
            let (expected, found) = (func.blocks[target.block].params.len(), target.args.len());
            if expected != found {
                let message = format!("{} has {expected} parameters, but is given {found}", target.block);
                self.error(at.0, at.1, message);
            }
        }
        match data.result.expand() {
            Some(value) if !func.defs.is_valid(value) || func.defs[value] != ValueDef::Inst(inst) => {
                self.error(at.0, at.1, format!("{value} is not defined as its result"));
            }
            _ => {}
        }
        let mut unknown = Vec::new();
        func.for_each_use(inst, |v| {
            if !func.defs.is_valid(v) {
                unknown.push(v);
            }
        });
        for value in unknown {
            self.error(at.0, at.1, format!("{value} does not exist"));
        }
    }

    fn dominance(&mut self) {
        let cfg = Cfg::new(self.func);
        let dom = DomTree::new(self.func, &cfg);
        for &block in &self.func.layout {
            for (at, &inst) in self.func.blocks[block].insts.iter().enumerate() {
                let mut bad = Vec::new();
                self.func.for_each_use(inst, |value| {
                    if let Err(message) = self.check_use(value, block, at as u32, &cfg, &dom) {
                        bad.push(message);
                    }
                });
                for message in bad {
                    self.error(Some(block), Some(inst), message);
                }
            }
        }
    }

    fn check_use(&self, value: Value, block: Block, at: u32, cfg: &Cfg, dom: &DomTree) -> Result<(), String> {
        let (def_block, def_at) = match self.func.defs[value] {
            ValueDef::Param(def_block, index) => {
                let params = self.func.blocks.get(def_block).map_or(&[][..], |b| &b.params);
                if params.get(usize::from(index)) != Some(&value) || !self.in_layout[def_block] {
                    return Err(format!("{value} is a parameter of no block"));
                }
                (def_block, None)
            }
            ValueDef::Inst(inst) => match self.home.get(inst).copied().flatten() {
                Some((def_block, def_at)) => (def_block, Some(def_at)),
                None => return Err(format!("the definition of {value} is in no block")),
            },
        };
        if !cfg.is_reachable(block) {
            return Ok(());
        }
        let before = def_at.is_none_or(|def_at| def_at < at);
        match def_block == block {
            true if before => Ok(()),
            true => Err(format!("{value} is used before its definition")),
            false if dom.dominates(def_block, block) => Ok(()),
            false => Err(format!("{value} of {def_block} does not dominate its use")),
        }
    }

    fn operations(&mut self, module: &Module) {
        for (block, inst) in self.func.insts_in_order() {
            for message in ops::check(self.func, module, inst) {
                self.error(Some(block), Some(inst), message);
            }
        }
    }
}
