//! The parser: bodies of functions.

use cranelift_entity::EntityRef;
use smallvec::SmallVec;

use super::ParseError;
use super::line_reader::{LineReader, pair};
use super::scan::{LineScanner, TextPosition};
use crate::entities::*;
use crate::func::{BlockCall, BlockData, Function, InstData, SlotData, ValueDef};
use crate::op::{Attr, Op, ResultKind};
use crate::types::Type;

/// The highest number of a value or block, so that a few bytes of text cannot ask for much memory.
const MAX_INDEX: u32 = 1 << 20;

/// Reads the body of a function.
pub(super) struct FuncParser {
    func: Function,
    /// Definitions read so far, by number.
    defs: Vec<Option<(ValueDef, Type)>>,
    /// First use of each value and block whose definition may still follow.
    value_uses: Vec<(Value, TextPosition)>,
    block_uses: Vec<(Block, TextPosition)>,
    /// Blocks that have been read.
    seen: Vec<bool>,
    current: Option<Block>,
}

impl FuncParser {
    pub(super) fn new(func: Function) -> Self {
        FuncParser {
            func,
            defs: Vec::new(),
            value_uses: Vec::new(),
            block_uses: Vec::new(),
            seen: Vec::new(),
            current: None,
        }
    }

    /// Reads to the closing brace.
    pub(super) fn parse(mut self, lines: &mut LineReader<'_>) -> Result<Function, ParseError> {
        loop {
            let mut line = lines.next_line().ok_or_else(|| lines.ended("the function's closing brace"))?;
            if line.eat("}") {
                line.expect_end()?;
                return self.finish();
            }
            self.parse_line(&mut line)?;
            line.expect_end()?;
        }
    }

    fn parse_line(&mut self, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
        if line.at_entity("block") {
            return self.parse_block(line);
        }
        if line.at_entity("ss") && self.current.is_none() {
            return self.parse_slot(line);
        }
        if self.current.is_none() && line.eat("locs") {
            while !line.at_end() {
                self.func.locs.push(line.number("a line record")?);
            }
            return Ok(());
        }
        match self.current {
            Some(block) => self.parse_inst(block, line),
            None => Err(line.error("expected a stack object, locs, or a block")),
        }
    }

    fn parse_slot(&mut self, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
        let place = line.place();
        let number = line.entity("ss")?;
        let next = self.func.slots.len();
        if number as usize != next {
            return Err(place.error(format!("expected ss{next}, found ss{number}")));
        }
        let (size, align) = (pair(line, "size")?, pair(line, "align")?);
        let fixed = if line.at_end() { None } else { Some(pair(line, "fixed")?) };
        self.func.slots.push(SlotData { size, align, fixed });
        Ok(())
    }

    fn parse_block(&mut self, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
        let place = line.place();
        let block = self.block(line)?;
        if std::mem::replace(&mut self.seen[block.index()], true) {
            return Err(place.error(format!("{block} is defined twice")));
        }
        self.func.layout.push(block);
        self.current = Some(block);
        if line.eat("(") {
            self.parse_params(block, line)?;
        }
        line.expect(":")
    }

    fn parse_params(&mut self, block: Block, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
        loop {
            let index = self.func.blocks[block].params.len();
            let at = line.place();
            let index = u16::try_from(index).map_err(|_| at.error("too many parameters"))?;
            let value = self.parse_def(line, ValueDef::Param(block, index))?;
            self.func.blocks[block].params.push(value);
            if !line.eat(",") {
                return line.expect(")");
            }
        }
    }

    /// Reads `vN: type` as a definition.
    fn parse_def(&mut self, line: &mut LineScanner<'_>, def: ValueDef) -> Result<Value, ParseError> {
        let place = line.place();
        let value = checked_index(line, "v").map(|i| Value::new(i as usize))?;
        line.expect(":")?;
        let type_place = line.place();
        let ty = Type::parse(line.type_token()?).map_err(|m| type_place.error(m))?;
        if self.defs.len() <= value.index() {
            self.defs.resize(value.index() + 1, None);
        }
        if self.defs[value.index()].replace((def, ty)).is_some() {
            return Err(place.error(format!("{value} is defined twice")));
        }
        Ok(value)
    }

    fn parse_inst(&mut self, block: Block, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
        let inst = Inst::new(self.func.insts.len());
        let result = match line.at_entity("v") {
            true => {
                let value = self.parse_def(line, ValueDef::Inst(inst))?;
                line.expect("=")?;
                Some(value)
            }
            false => None,
        };
        let op = parse_op(line, result)?;
        let mut data = InstData {
            op,
            args: SmallVec::new(),
            targets: SmallVec::new(),
            result: result.into(),
            loc: u32::MAX,
        };
        self.parse_operands(&mut data, line)?;
        if line.eat("!") {
            data.loc = line.number("a line record's index")?;
        }
        self.func.insts.push(data);
        self.func.blocks[block].insts.push(inst);
        Ok(())
    }

    fn parse_operands(&mut self, data: &mut InstData, line: &mut LineScanner<'_>) -> Result<(), ParseError> {
        if !line.at_entity("v") && !line.at_entity("block") {
            return Ok(());
        }
        loop {
            if line.at_entity("block") {
                data.targets.push(self.parse_target(line)?);
            } else if data.targets.is_empty() {
                data.args.push(self.value(line)?);
            } else {
                return Err(line.error("expected a block: arguments stand before targets"));
            }
            if !line.eat(",") {
                return Ok(());
            }
        }
    }

    fn parse_target(&mut self, line: &mut LineScanner<'_>) -> Result<BlockCall, ParseError> {
        let mut call = BlockCall::new(self.block(line)?);
        if line.eat("(") {
            loop {
                call.args.push(self.value(line)?);
                if !line.eat(",") {
                    line.expect(")")?;
                    break;
                }
            }
        }
        Ok(call)
    }

    fn value(&mut self, line: &mut LineScanner<'_>) -> Result<Value, ParseError> {
        let place = line.place();
        let value = Value::new(checked_index(line, "v")? as usize);
        if self.defs.get(value.index()).is_none_or(Option::is_none) {
            self.value_uses.push((value, place));
        }
        Ok(value)
    }

    fn block(&mut self, line: &mut LineScanner<'_>) -> Result<Block, ParseError> {
        let place = line.place();
        let block = Block::new(checked_index(line, "block")? as usize);
        while self.func.blocks.len() <= block.index() {
            self.func.blocks.push(BlockData::default());
            self.seen.push(false);
        }
        if !self.seen[block.index()] {
            self.block_uses.push((block, place));
        }
        Ok(block)
    }

    fn finish(mut self) -> Result<Function, ParseError> {
        for (block, place) in &self.block_uses {
            if !self.seen[block.index()] {
                return Err(place.error(format!("{block} is not defined")));
            }
        }
        for (value, place) in &self.value_uses {
            if self.defs.get(value.index()).is_none_or(Option::is_none) {
                return Err(place.error(format!("{value} is not defined")));
            }
        }
        for def in std::mem::take(&mut self.defs) {
            let (def, ty) = def.unwrap_or_else(|| (self.hole(), Type::Any));
            let value = self.func.defs.push(def);
            self.func.types[value] = ty;
        }
        Ok(self.func)
    }

    /// The definition of a number that the text skips: an instruction that is in no block, as removal leaves
    /// it.
    fn hole(&mut self) -> ValueDef {
        let result = Value::new(self.func.defs.len());
        ValueDef::Inst(self.func.insts.push(InstData {
            op: Op::Undef {},
            args: SmallVec::new(),
            targets: SmallVec::new(),
            result: result.into(),
            loc: u32::MAX,
        }))
    }
}

fn checked_index(line: &mut LineScanner<'_>, prefix: &str) -> Result<u32, ParseError> {
    let place = line.place();
    let number = line.entity(prefix)?;
    match number {
        0..=MAX_INDEX => Ok(number),
        _ => Err(place.error(format!("{prefix}{number} is above the limit of {prefix}{MAX_INDEX}"))),
    }
}

/// Reads mnemonic and attributes, and checks the result against the operation's kind of result.
fn parse_op(line: &mut LineScanner<'_>, result: Option<Value>) -> Result<Op, ParseError> {
    let place = line.place();
    let token = line.token("an operation", &[])?;
    let mut parts = token.split('.');
    let mnemonic = parts.next().unwrap_or("");
    let attrs: Vec<&str> = parts.collect();
    let op = Op::parse(mnemonic, &attrs).map_err(|m| place.error(m))?;
    match (op.result_kind(), result) {
        (ResultKind::Value, None) => Err(place.error(format!("expected `vN: type =` before `{mnemonic}`"))),
        (ResultKind::None, Some(_)) => Err(place.error(format!("`{mnemonic}` has no result"))),
        _ => Ok(op),
    }
}
