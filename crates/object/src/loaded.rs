//! Programs as loaders hand them to the kernel: one vector of instructions, with the program's function first,
//! and maps by descriptors.
//!
//! Such a program has no file: an object of it can be changed and linked, and not written.

use crate::codes::{CALL, LD_IMM64, PSEUDO_BTF_ID, PSEUDO_CALL, PSEUDO_FUNC, PSEUDO_KFUNC_CALL};
use crate::error::ObjectError;
use crate::ids::{ExternId, FuncId, RelocKind};
use crate::image::ObjectImage;
use crate::kinds::{AttachType, ProgramType};
use crate::model::{
    EntryProgram, Extern, ExternKind, LineInfo, Linkage, Object, ObjectFunction, ObjectMap, Reloc,
    SettledBytes,
};
use crate::read::relocs::{normalise, pseudo};
use crate::section::SectionKind;
use millstream_btf::{Btf, FuncLinkage, TypeId, TypeKind};
use millstream_isa::RawInsn;
use std::collections::BTreeSet;

/// A program as a loader hands it to the kernel.
#[derive(Clone, Debug)]
pub struct LoadableProgram {
    /// Name of the program.
    pub name: String,
    /// Its licence.
    pub license: String,
    /// Its type.
    pub program_type: ProgramType,
    /// Its expected attach type.
    pub attach_type: AttachType,
    /// All instructions; constants of maps are of no account.
    pub insns: Vec<RawInsn>,
    /// The instructions that name maps, in order, each as [`RelocKind::Map`] or [`RelocKind::MapValue`].
    pub references: Vec<Reloc>,
    /// The maps.
    pub maps: Vec<ObjectMap>,
    /// Constant data that has its final value: whole maps that are frozen.
    pub settled: Vec<SettledBytes>,
    /// The types that the next two refer to.
    pub btf: Option<Btf>,
    /// First instruction and type of each function; empty, or of all functions.
    pub func_info: Vec<(u32, TypeId)>,
    /// Source lines, in order of instruction.
    pub line_info: Vec<LineInfo>,
}

impl LoadableProgram {
    /// Makes the object of which this is the only program. Kernel variables become externs, in the order of
    /// their instructions, each named by the BTF id that its instruction has.
    ///
    /// # Errors
    /// If the program has references that lead nowhere, or calls kernel functions.
    pub fn into_object(self) -> Result<Object, ObjectError> {
        let starts = self.starts()?;
        let LoadableProgram { name, license, program_type, attach_type, .. } = &self;
        // Attachment beyond the type is the loader's.
        let kind = SectionKind {
            program_type: *program_type,
            attach_type: Some(*attach_type),
            attach_type_optional: true,
            ..SectionKind::parse("")
        };
        let main = EntryProgram { func: FuncId(0), name: name.clone(), section: String::new(), kind };
        let mut object = Object {
            name: name.clone(),
            license: license.clone(),
            kernel_version: None,
            functions: Vec::new(),
            programs: vec![main],
            maps: self.maps.clone(),
            externs: Vec::new(),
            btf: self.btf.clone(),
            notes: Vec::new(),
            frozen: None,
            settled: self.settled.clone(),
            image: ObjectImage::default(),
        };
        for (n, &start) in starts.iter().enumerate() {
            let end = starts.get(n + 1).copied().unwrap_or(self.insns.len() as u32);
            let function = self.function(n, start, end);
            object.functions.push(function);
            self.add_references(&mut object, FuncId(n as u32), &starts)?;
        }
        Ok(object)
    }

    fn bad(&self, insn: usize, what: &str) -> ObjectError {
        let insn = u32::try_from(insn).unwrap_or(u32::MAX);
        ObjectError::BadFunction { function: self.name.clone(), insn, what: what.to_owned() }
    }

    /// Instructions, without the second slots of constants.
    fn instructions(&self) -> impl Iterator<Item = (usize, RawInsn)> + '_ {
        let mut second = false;
        self.insns.iter().enumerate().filter_map(move |(at, insn)| {
            let is_second = second;
            second = !is_second && insn.code == LD_IMM64;
            (!is_second).then_some((at, *insn))
        })
    }

    /// The first instruction of each function, in order.
    fn starts(&self) -> Result<Vec<u32>, ObjectError> {
        let mut starts = BTreeSet::from([0]);
        starts.extend(self.func_info.iter().map(|(start, _)| *start));
        for (at, insn) in self.instructions() {
            if insn.code == LD_IMM64 && at + 1 == self.insns.len() {
                return Err(self.bad(at, "ld_imm64 without its second slot"));
            }
            if refers_to_function(insn) {
                starts.insert(self.target(at, insn)?);
            }
        }
        let firsts: BTreeSet<u32> = self.instructions().map(|(at, _)| at as u32).collect();
        match starts.iter().find(|start| !firsts.contains(start)) {
            Some(&start) => Err(self.bad(start as usize, "a function starts where no instruction does")),
            None => Ok(starts.into_iter().collect()),
        }
    }

    /// The instruction to which a reference to a function leads.
    fn target(&self, at: usize, insn: RawInsn) -> Result<u32, ObjectError> {
        let target = u32::try_from(at as i64 + 1 + i64::from(insn.imm));
        target.map_err(|_| self.bad(at, "it leads out of the program"))
    }

    /// A function, without its references.
    fn function(&self, n: usize, start: u32, end: u32) -> ObjectFunction {
        let type_id = self.func_info.iter().find(|(at, _)| *at == start).map(|(_, id)| *id);
        let known =
            type_id.zip(self.btf.as_ref()).and_then(|(id, btf)| Some((btf.name(id), btf.ty(id).ok()?)));
        let is_global = matches!(
            known.as_ref().map(|(_, ty)| &ty.kind),
            Some(TypeKind::Func { linkage: FuncLinkage::Global, .. })
        );
        let inside = |line: &&LineInfo| (start..end).contains(&line.insn);
        ObjectFunction {
            name: match known {
                Some((name, _)) if n > 0 => name.to_owned(),
                _ if n == 0 => self.name.clone(),
                _ => format!("{}+{start}", self.name),
            },
            section: String::new(),
            start,
            linkage: if n == 0 || is_global { Linkage::Global } else { Linkage::Static },
            hidden: false,
            subprogram: n > 0,
            insns: self.insns[start as usize..end as usize].to_vec(),
            relocs: Vec::new(),
            type_id,
            line_info: self
                .line_info
                .iter()
                .filter(inside)
                .map(|line| LineInfo { insn: line.insn - start, ..*line })
                .collect(),
            core_relos: Vec::new(),
            removed: false,
            kept: None,
        }
    }

    /// Gives a function its references, and normalises their instructions.
    fn add_references(&self, object: &mut Object, id: FuncId, starts: &[u32]) -> Result<(), ObjectError> {
        let function = &object.functions[id.index()];
        let range = function.start as usize..function.start as usize + function.insns.len();
        let mut relocs = Vec::new();
        for (at, insn) in self.instructions().filter(|(at, _)| range.contains(at)) {
            let kind = match (insn.code, insn.src) {
                _ if refers_to_function(insn) => {
                    let target = self.target(at, insn)?;
                    let callee = starts.binary_search(&target).unwrap_or_default() as u32;
                    if insn.code == CALL {
                        RelocKind::Call(FuncId(callee))
                    } else {
                        RelocKind::FuncAddr(FuncId(callee))
                    }
                }
                (CALL, PSEUDO_KFUNC_CALL) => return Err(self.bad(at, "it calls a kernel function")),
                (LD_IMM64, PSEUDO_BTF_ID) => RelocKind::Extern(self.add_variable(object, insn)),
                (LD_IMM64, src) if src != 0 => {
                    let found = self.references.binary_search_by_key(&(at as u32), |r| r.insn);
                    let found = found.ok().and_then(|n| self.references.get(n));
                    found.ok_or_else(|| self.bad(at, "it refers to something unknown"))?.kind
                }
                _ => continue,
            };
            relocs.push(Reloc { insn: (at - range.start) as u32, kind });
        }
        for reloc in &relocs {
            let code = object.functions[id.index()].insns[reloc.insn as usize].code;
            let (src, offset) = pseudo(object, reloc.kind, code);
            normalise(&mut object.functions[id.index()].insns, reloc.insn as usize, src, offset);
        }
        object.functions[id.index()].relocs = relocs;
        Ok(())
    }

    /// The extern of a kernel variable.
    fn add_variable(&self, object: &mut Object, insn: RawInsn) -> ExternId {
        let name = insn.imm.to_string();
        let known = object.externs.iter().position(|e| e.name == name);
        let index = known.unwrap_or_else(|| {
            let kind = ExternKind::Ksym { type_id: Some(TypeId(0)) };
            object.externs.push(Extern { name, kind, weak: false });
            object.externs.len() - 1
        });
        ExternId(index as u32)
    }
}

/// Returns true if an instruction calls a function of its program, or takes the address of one.
fn refers_to_function(insn: RawInsn) -> bool {
    matches!((insn.code, insn.src), (CALL, PSEUDO_CALL) | (LD_IMM64, PSEUDO_FUNC))
}
