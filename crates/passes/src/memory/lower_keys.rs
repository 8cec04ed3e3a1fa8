//! `lower-keys`: map operations that take keys and values as values become helper calls with pointers to the
//! stack.
//!
//! Each distinct key has a stack object of its own as long as there is room, so that a key that is stored
//! already is not stored again: since only its own stores write the object, a store that dominates a call is
//! still in effect there.

use millstream_ir::{
    Block, Cfg, DomTree, FuncCursor, Function, Inst, KeyLayout, Map, MemFlags, Op, Prov, Slot, SlotData,
    Type, Value,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::manager::{FuncPass, PassContext};

const NAME: &str = "lower-keys";
/// Bytes of stack objects up to which keys get objects of their own.
const ROOM: u32 = 320;

/// The pass.
pub(crate) struct LowerKeys;

impl FuncPass for LowerKeys {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "put the keys of map operations on the stack and call the helpers"
    }

    fn required(&self) -> bool {
        true
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let is_map_op = |i: Inst| {
            let op = &func.insts[i].op;
            matches!(op, Op::MapLookup { .. } | Op::MapUpdate { .. } | Op::MapDelete { .. })
        };
        if !func.insts_in_order().any(|(_, i)| is_map_op(i)) {
            return false;
        }
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let used = func.slots.values().map(|s| s.size.next_multiple_of(8)).sum();
        let mut state =
            KeyLowering { dom, objects: FxHashMap::default(), scratch: FxHashMap::default(), used };
        let mut changed = false;
        for &block in &cfg.rpo {
            changed |= state.block(func, block, cx);
        }
        changed
    }
}

/// A constant by its number, so that equal keys are found equal; another value as itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ContentWord {
    Constant(i64),
    Value(Value),
}

/// Contents of an object.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ObjectContents {
    bytes: u32,
    layout: KeyLayout,
    words: SmallVec<[ContentWord; 4]>,
}

struct KeyLowering {
    dom: DomTree,
    /// Objects of one content each, with the blocks that store it.
    objects: FxHashMap<ObjectContents, (Slot, Vec<Block>)>,
    /// Objects by size that any content goes to.
    scratch: FxHashMap<(u32, bool), Slot>,
    used: u32,
}

impl KeyLowering {
    fn block(&mut self, func: &mut Function, block: Block, cx: &mut PassContext<'_>) -> bool {
        let mut changed = false;
        let mut at = 0;
        while at < func.blocks[block].insts.len() {
            let inst = func.blocks[block].insts[at];
            let parts = match func.insts[inst].op.clone() {
                Op::MapLookup { map, key } => Some((1, map, key, None)),
                Op::MapUpdate { map, key, value } => Some((2, map, key, Some(value))),
                Op::MapDelete { map, key } => Some((3, map, key, None)),
                _ => None,
            };
            // No fuel is asked for: without this pass there is no code for the operation.
            if let Some((id, map, key, value)) = parts {
                at = self.lower(func, (block, at), id, map, key, value, cx);
                changed = true;
            }
            at += 1;
        }
        changed
    }

    /// Rewrites one operation; gives its new position.
    #[allow(clippy::too_many_arguments)] // the parts of one operation
    fn lower(
        &mut self,
        func: &mut Function,
        (block, at): (Block, usize),
        id: i32,
        map: Map,
        key: KeyLayout,
        value: Option<KeyLayout>,
        cx: &PassContext<'_>,
    ) -> usize {
        let inst = func.blocks[block].insts[at];
        let args = func.insts[inst].args.clone();
        let decl = &cx.info.maps[map];
        let mut cursor = func.at(block, at);
        cursor.loc = cursor.func.insts[inst].loc;
        let map = cursor.value(Op::MapAddr { map }, [], Type::Ptr(Prov::Map(map)));
        let keys = key.len();
        let mut new = vec![map, self.object(&mut cursor, decl.key_size, key, &args[..keys], false)];
        if let Some(layout) = value {
            let end = keys + layout.len();
            new.push(self.object(&mut cursor, decl.value_size, layout, &args[keys..end], true));
            new.push(args[end]);
        }
        let position = cursor.at;
        let data = &mut func.insts[inst];
        data.op = Op::Helper { id };
        data.args = new.into_iter().collect();
        position
    }

    /// The address of an object that holds these pieces, stored now unless a store above is in effect.
    fn object(
        &mut self,
        at: &mut FuncCursor<'_>,
        bytes: u32,
        layout: KeyLayout,
        values: &[Value],
        is_value: bool,
    ) -> Value {
        let words =
            values.iter().map(|&v| at.func.as_const(v).map_or(ContentWord::Value(v), ContentWord::Constant));
        let contents = ObjectContents { bytes, layout: layout.clone(), words: words.collect() };
        let room = self.used + bytes.next_multiple_of(8) <= ROOM;
        let (slot, stored) = match self.objects.get_mut(&contents) {
            Some((slot, blocks)) => {
                let stored = blocks.iter().any(|&b| self.dom.dominates(b, at.block));
                if !stored {
                    blocks.push(at.block);
                }
                (*slot, stored)
            }
            None if room => {
                let slot = self.new_slot(at.func, bytes);
                self.objects.insert(contents, (slot, vec![at.block]));
                (slot, false)
            }
            None => {
                let known = self.scratch.get(&(bytes, is_value)).copied();
                let slot = known.unwrap_or_else(|| self.new_slot(at.func, bytes));
                self.scratch.insert((bytes, is_value), slot);
                (slot, false)
            }
        };
        let address = at.value(Op::StackAddr { slot, offset: 0 }, [], Type::Ptr(Prov::Stack));
        if !stored {
            for (piece, &value) in layout.iter().zip(values) {
                let offset = i32::from(piece.offset);
                let op = Op::Store { size: piece.size, offset, flags: MemFlags::default() };
                at.effect(op, [address, value], []);
            }
        }
        address
    }

    fn new_slot(&mut self, func: &mut Function, bytes: u32) -> Slot {
        self.used += bytes.next_multiple_of(8);
        func.slots.push(SlotData { size: bytes.max(1), align: 8, fixed: None })
    }
}
