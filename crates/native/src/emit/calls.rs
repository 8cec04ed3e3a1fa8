//! Calls and operations on maps.

use std::fmt::Write;

use cranelift_entity::EntityRef;
use millstream_ir::{Func, InstData, KeyLayout, Map, Op, Prov, Table, Type, Value};
use millstream_isa::helpers::id;
use millstream_isa::semantics;

use super::func::FunctionEmitter;
use super::{EmitError, MapCodegenInfo};
use millstream_native_runtime::packet::DescriptorField;
use millstream_native_runtime::{helpers, worker};

/// `XDP_REDIRECT`.
const XDP_REDIRECT: u32 = 4;

impl FunctionEmitter<'_> {
    pub(super) fn map(&self, map: Map) -> Result<MapCodegenInfo, EmitError> {
        let decl = &self.unit.module.maps[map];
        self.unit.maps[map].ok_or_else(|| EmitError::Map {
            func: self.func.name.clone(),
            map: decl.name.clone(),
            kind: decl.kind,
        })
    }

    /// Builds a key or value from its pieces, in memory; bytes that no piece covers are zero.
    fn pieces(&mut self, layout: &KeyLayout, values: &[Value], size: u32) -> String {
        let at = self.allocate(size);
        self.code.line(&format!("store [{size} x i8] zeroinitializer, ptr {at}, align 8"));
        for (piece, &value) in layout.iter().zip(values) {
            let value = self.int(value);
            let value = semantics::stored(&mut self.code, piece.size, &value);
            let place = self.code.value(&format!("getelementptr i8, ptr {at}, i64 {}", piece.offset));
            self.code.line(&format!("store i{} {value}, ptr {place}, align 1", piece.size.bits()));
        }
        at
    }

    pub(super) fn map_op(&mut self, data: &InstData) -> Result<(), EmitError> {
        let result = data.result.expand();
        match &data.op {
            Op::MapLookup { map, key } => {
                let info = self.map(*map)?;
                let key = self.pieces(key, &data.args, info.key_size);
                self.lookup(*map, &key, result);
            }
            Op::MapDelete { map, key } => {
                let info = self.map(*map)?;
                let key = self.pieces(key, &data.args, info.key_size);
                self.runtime("ms_map_delete", &[info.address.to_string()], &[&key], &[], result);
            }
            Op::MapUpdate { map, key, value } => {
                let info = self.map(*map)?;
                let (keys, rest) = data.args.split_at(key.len());
                let key = self.pieces(key, keys, info.key_size);
                let value = self.pieces(value, rest, info.value_size);
                let flags = self.int(data.args[data.args.len() - 1]);
                self.runtime("ms_map_update", &[info.address.to_string()], &[&key, &value], &[flags], result);
            }
            op => return Err(self.cannot(op, "it is no operation on maps")),
        }
        Ok(())
    }

    /// Writes a look-up; in a slice, writes a fetch of the lines that the look-up will read, which finds
    /// nothing.
    fn lookup(&mut self, map: Map, key: &str, result: Option<Value>) {
        if let Some(stage) = self.stage
            && self.unit.maps[map].is_some_and(|info| info.ahead)
        {
            let packet = self.func.blocks[self.func.entry()].params[0];
            let note = self.code.value(&format!(
                "getelementptr i8, ptr {}, i64 {}",
                super::func::name(packet),
                self.unit.note_of(map)
            ));
            self.code
                .line(&format!("call void @ahead{}x{stage}(ptr %w, ptr {note}, ptr {key})", map.index()));
            return self.define_int(result, "0");
        }
        let value = self.code.value(&format!("call ptr @lookup{}(ptr %w, ptr {key})", map.index()));
        self.define_ptr(result, &value);
    }

    /// Calls a function of the runtime with integers, pointers and integers.
    pub(super) fn runtime(
        &mut self,
        symbol: &str,
        before: &[String],
        pointers: &[&str],
        after: &[String],
        result: Option<Value>,
    ) {
        let mut args = before.to_vec();
        for pointer in pointers {
            args.push(self.code.value(&format!("ptrtoint ptr {pointer} to i64")));
        }
        args.extend_from_slice(after);
        args.resize(5, "0".to_owned());
        let args: String = args.iter().map(|a| format!(", i64 {a}")).collect();
        let value = self.code.value(&format!("call i64 @{symbol}(ptr %w{args})"));
        self.define_int(result, &value);
    }

    /// The map whose address a value is, if known.
    fn known_map(&self, value: Option<&Value>) -> Option<Map> {
        match self.func.def_op(*value?)? {
            Op::MapAddr { map } => Some(*map),
            _ => None,
        }
    }

    /// Stores an interface as the target of the current packet; gives the verdict.
    fn redirect(&mut self, interface: Value, result: Option<Value>) {
        if let Some(target) = self.unit.layout.offset(DescriptorField::Target) {
            let interface = self.int(interface);
            let current = self.code.value(&format!("getelementptr i8, ptr %w, i64 {}", worker::CURRENT));
            let packet = self.code.value(&format!("load ptr, ptr {current}, align 8"));
            let at = self.code.value(&format!("getelementptr i8, ptr {packet}, i64 {target}"));
            let number = self.code.value(&format!("trunc i64 {interface} to i32"));
            self.code.line(&format!("store i32 {number}, ptr {at}, align 4, !tbaa !5"));
        }
        self.define_int(result, &XDP_REDIRECT.to_string());
    }

    pub(super) fn helper(&mut self, id: i32, data: &InstData) -> Result<(), EmitError> {
        let result = data.result.expand();
        let known = self.known_map(data.args.first());
        let symbol = helpers::TABLE.iter().find(|(n, ..)| *n == id).map(|(_, symbol, _)| *symbol);
        let Some(symbol) = symbol else {
            return Err(EmitError::Helper { func: self.func.name.clone(), id });
        };
        match (id, known, data.args.as_slice()) {
            (id::TAIL_CALL, ..) => self.tail_call(data),
            (id::MAP_LOOKUP_ELEM, Some(map), &[_, key, ..]) => {
                let key = self.copy(key, self.map(map)?.key_size);
                self.lookup(map, &key, result);
            }
            (id::REDIRECT_MAP, Some(map), &[_, key, flags, ..]) if self.map(map)?.targets.is_some() => {
                let (key, flags) = (self.int(key), self.int(flags));
                let call = format!("call i64 @redirect{}(ptr %w, i64 {key}, i64 {flags})", map.index());
                let value = self.code.value(&call);
                self.define_int(result, &value);
            }
            (id::REDIRECT, _, &[interface, flags, ..]) if self.func.as_const(flags) == Some(0) => {
                self.redirect(interface, result);
            }
            (id::XDP_ADJUST_HEAD, _, &[packet, delta, ..])
                if self.func.types[packet] == Type::Ptr(Prov::Ctx) =>
            {
                self.adjust_head(packet, delta, result);
            }
            (id::KTIME_GET_COARSE_NS, ..) => {
                let at = self.code.value(&format!("getelementptr i8, ptr %w, i64 {}", worker::COARSE));
                let value = self.code.value(&format!("load i64, ptr {at}, align 8"));
                self.define_int(result, &value);
            }
            // The runtime gets copies, so that the program's own key and value need not be in memory.
            (id::MAP_UPDATE_ELEM | id::MAP_DELETE_ELEM, Some(map), &[_, key, ref rest @ ..]) => {
                let info = self.map(map)?;
                let key = self.copy(key, info.key_size);
                match (id, rest) {
                    (id::MAP_UPDATE_ELEM, &[value, flags, ..]) => {
                        let (value, flags) = (self.copy(value, info.value_size), self.int(flags));
                        let address = [info.address.to_string()];
                        self.runtime(symbol, &address, &[&key, &value], &[flags], result);
                    }
                    _ => self.runtime(symbol, &[info.address.to_string()], &[&key], &[], result),
                }
            }
            _ => {
                let args: Vec<String> = data.args.iter().take(5).map(|&v| self.int(v)).collect();
                self.runtime(symbol, &args, &[], &[], result);
            }
        }
        Ok(())
    }

    /// A copy of the memory behind a pointer, if that is on the stack: in the pieces in which it was stored,
    /// if they are known ([`super::keys`]).
    fn copy(&mut self, value: Value, size: u32) -> String {
        let from = self.ptr(value);
        if self.func.types[value] != Type::Ptr(Prov::Stack) {
            return from;
        }
        let to = self.allocate(size);
        if let Some(pieces) = self.seams.pieces(self.func, value, size) {
            for (at, bytes) in pieces {
                let (bits, place) = (8 * bytes, format!("i64 {at}"));
                let source = self.code.value(&format!("getelementptr i8, ptr {from}, {place}"));
                let piece = self.code.value(&format!("load i{bits}, ptr {source}, align 1"));
                // As in all loads from the stack.
                let piece = self.code.value(&format!("freeze i{bits} {piece}"));
                let target = self.code.value(&format!("getelementptr i8, ptr {to}, {place}"));
                self.code.line(&format!("store i{bits} {piece}, ptr {target}, align 1"));
            }
            return to;
        }
        self.code
            .line(&format!("call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {from}, i64 {size}, i1 false)"));
        to
    }

    /// Jumps to the program in a map instead of this one; continues here if there is none.
    fn tail_call(&mut self, data: &InstData) {
        let args: Vec<String> = data.args.iter().take(3).map(|&v| self.int(v)).collect();
        let args: String = args.iter().map(|a| format!(", i64 {a}")).collect();
        let to = self.code.value(&format!("call i64 @ms_tail_call(ptr %w{args}, i64 0, i64 0)"));
        let none = self.code.value(&format!("icmp eq i64 {to}, 0"));
        let (go, stay) = (self.code.fresh_label("go"), self.code.fresh_label("stay"));
        self.code.line(&format!("br i1 {none}, label %{stay}, label %{go}"));
        self.code.begin(&go);
        let callee = self.code.value(&format!("inttoptr i64 {to} to ptr"));
        let context = self.ptr(data.args[0]);
        let value = self.code.value(&format!("tail call i64 {callee}(ptr %w, ptr {context})"));
        self.code.line(&format!("ret i64 {value}"));
        self.code.begin(&stay);
        self.define_int(data.result.expand(), "0");
    }

    /// Calls the function of a match table.
    pub(super) fn match_table(&mut self, table: Table, data: &InstData) {
        let words: Vec<String> = data.args.iter().map(|&arg| format!("i64 {}", self.int(arg))).collect();
        let value = self.code.value(&format!("call i64 @table{}({})", table.index(), words.join(", ")));
        self.define_int(data.result.expand(), &value);
    }

    pub(super) fn call(&mut self, callee: Func, data: &InstData) {
        let func = &self.unit.module.funcs[callee];
        let params = func.layout.first().map_or(&[][..], |&entry| &func.blocks[entry].params);
        let mut args = String::new();
        for (&arg, &param) in data.args.iter().zip(params) {
            let _ = match func.types[param].prov().is_some() {
                true => write!(args, ", ptr {}", self.ptr(arg)),
                false => write!(args, ", i64 {}", self.int(arg)),
            };
        }
        let value = self.code.value(&format!("call i64 @fn{}(ptr %w{args})", callee.index()));
        self.define_int(data.result.expand(), &value);
    }

    pub(super) fn call_indirect(&mut self, data: &InstData) {
        let callee = self.ptr(data.args[0]);
        let mut args: Vec<String> = data.args[1..].iter().map(|&v| self.int(v)).collect();
        args.resize(5, "0".to_owned());
        let args: String = args.iter().map(|a| format!(", i64 {a}")).collect();
        let value = self.code.value(&format!("call i64 {callee}(ptr %w{args})"));
        self.define_int(data.result.expand(), &value);
    }
}
