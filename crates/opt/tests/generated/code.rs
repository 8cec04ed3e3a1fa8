//! Code under construction: instructions with labels and relocations.

use millstream_isa::{AluOp, Callee, Cond, Insn, Operand, Pseudo, Reg, Size, Width, encode_all};
use millstream_object::{NewFunction, Reloc, RelocKind};

/// Place that jumps name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

enum Item {
    Plain(Insn),
    Relocated(Insn, RelocKind),
    Jump(Label),
    Branch { width: Width, cond: Cond, dst: Reg, src: Operand, to: Label },
    Here(Label),
}

/// Instructions of one function.
#[derive(Default)]
pub(crate) struct Code {
    items: Vec<Item>,
    labels: usize,
}

impl Code {
    pub(crate) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    pub(crate) fn here(&mut self, label: Label) {
        self.items.push(Item::Here(label));
    }

    pub(crate) fn put(&mut self, insn: Insn) {
        self.items.push(Item::Plain(insn));
    }

    pub(crate) fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Operand) {
        self.put(Insn::Alu { width, op, dst, src });
    }

    pub(crate) fn set(&mut self, dst: Reg, imm: i32) {
        self.put(Insn::Mov { width: Width::W64, dst, src: Operand::Imm(imm) });
    }

    pub(crate) fn copy(&mut self, dst: Reg, src: Reg) {
        self.put(Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) });
    }

    /// `dst = base + offset`.
    pub(crate) fn address(&mut self, dst: Reg, base: Reg, offset: i32) {
        self.copy(dst, base);
        if offset != 0 {
            self.alu(Width::W64, AluOp::Add, dst, Operand::Imm(offset));
        }
    }

    pub(crate) fn load(&mut self, size: Size, dst: Reg, src: Reg, off: i32) {
        self.put(Insn::Load { size, sext: false, dst, src, off: off as i16 });
    }

    pub(crate) fn store(&mut self, size: Size, dst: Reg, off: i32, src: Operand) {
        self.put(Insn::Store { size, dst, off: off as i16, src });
    }

    pub(crate) fn helper(&mut self, id: i32) {
        self.put(Insn::Call(Callee::Helper(id)));
    }

    pub(crate) fn exit(&mut self) {
        self.put(Insn::Exit);
    }

    pub(crate) fn relocated(&mut self, dst: Reg, kind: RelocKind) {
        let insn = match kind {
            RelocKind::Call(_) => Insn::Call(Callee::Local(-1)),
            _ => Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm: 0, off: 0 },
        };
        self.items.push(Item::Relocated(insn, kind));
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.items.push(Item::Jump(to));
    }

    pub(crate) fn branch(&mut self, width: Width, cond: Cond, dst: Reg, src: Operand, to: Label) {
        self.items.push(Item::Branch { width, cond, dst, src, to });
    }

    /// The function, with labels resolved.
    pub(crate) fn finish(self) -> NewFunction {
        let slots = |item: &Item| match item {
            Item::Plain(insn) | Item::Relocated(insn, _) => insn.slots() as i64,
            Item::Jump(_) | Item::Branch { .. } => 1,
            Item::Here(_) => 0,
        };
        let mut places = vec![0; self.labels];
        let mut at = 0;
        for item in &self.items {
            if let Item::Here(label) = item {
                places[label.0] = at;
            }
            at += slots(item);
        }
        let (mut insns, mut relocs, mut at) = (Vec::new(), Vec::new(), 0);
        for item in &self.items {
            let off = |to: Label| places[to.0] - at - 1;
            insns.extend(match *item {
                Item::Plain(insn) => Some(insn),
                Item::Relocated(insn, kind) => {
                    relocs.push(Reloc { insn: at as u32, kind });
                    Some(insn)
                }
                Item::Jump(to) => Some(Insn::Jump { off: off(to) as i32, long: false }),
                Item::Branch { width, cond, dst, src, to } => {
                    Some(Insn::Branch { width, cond, dst, src, off: off(to) as i16 })
                }
                Item::Here(_) => None,
            });
            at += slots(item);
        }
        NewFunction { insns: encode_all(&insns), relocs, ..NewFunction::default() }
    }
}
