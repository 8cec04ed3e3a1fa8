//! `.BTF.ext`: information on instructions, section by section.
//!
//! Records are kept as read, per section and in order; sizes of records larger than we know are accepted and
//! the surplus is dropped (the format grows by appending fields). [`BtfExt::write`] writes the sizes known
//! here.

use crate::{Btf, BtfError, StrOff, TypeId, byte_order};
use millstream_isa::ByteOrder;

/// The records of one kind that belong to one ELF section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionRecords<T> {
    /// The section's name, in the BTF's strings.
    pub section: StrOff,
    /// Its records.
    pub records: Vec<T>,
}

/// Start of a function at an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuncInfo {
    /// Offset of the instruction in its section, in bytes.
    pub insn_off: u32,
    /// The function: a [`TypeKind::Func`](crate::TypeKind::Func).
    pub type_id: TypeId,
}

/// Source line of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineInfo {
    /// Offset of the instruction in its section, in bytes.
    pub insn_off: u32,
    /// Name of the source file.
    pub file: StrOff,
    /// Text of the line.
    pub text: StrOff,
    /// Number of the line, from 1.
    pub line: u32,
    /// Number of the column, from 1.
    pub column: u32,
}

/// A CO-RE relocation: a constant in an instruction that depends on the layout of types in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreRelo {
    /// Offset of the instruction in its section, in bytes.
    pub insn_off: u32,
    /// The type as the program knows it.
    pub type_id: TypeId,
    /// The path into the type, numbers joined by colons.
    pub access: StrOff,
    /// Property that is asked for.
    pub kind: CoreKind,
}

/// A CO-RE relocation of an unknown kind: its contents are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StrangeCore {
    /// Offset of the instruction in its section, in bytes.
    pub insn_off: u32,
    /// Type, access string and kind, as the file has them.
    pub words: [u32; 3],
}

/// Question of a CO-RE relocation about a type, field or enumerator (`enum bpf_core_relo_kind`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CoreKind {
    /// Offset of the field, in bytes.
    FieldByteOffset = 0,
    /// Size of the field, in bytes.
    FieldByteSize = 1,
    /// 1 if the field exists, else 0.
    FieldExists = 2,
    /// 1 if the field is signed, else 0.
    FieldSigned = 3,
    /// Bits to shift a field left, once loaded into 64 bits.
    FieldLshiftU64 = 4,
    /// Bits to shift it right after that.
    FieldRshiftU64 = 5,
    /// The type's number in the program's BTF.
    TypeIdLocal = 6,
    /// The type's number in the kernel's BTF.
    TypeIdTarget = 7,
    /// 1 if the type exists, else 0.
    TypeExists = 8,
    /// Size of the type, in bytes.
    TypeSize = 9,
    /// 1 if the enumerator exists, else 0.
    EnumvalExists = 10,
    /// Value of the enumerator.
    EnumvalValue = 11,
    /// 1 if the type exists and matches in detail, else 0.
    TypeMatches = 12,
}

impl CoreKind {
    const ALL: [CoreKind; 13] = [
        CoreKind::FieldByteOffset,
        CoreKind::FieldByteSize,
        CoreKind::FieldExists,
        CoreKind::FieldSigned,
        CoreKind::FieldLshiftU64,
        CoreKind::FieldRshiftU64,
        CoreKind::TypeIdLocal,
        CoreKind::TypeIdTarget,
        CoreKind::TypeExists,
        CoreKind::TypeSize,
        CoreKind::EnumvalExists,
        CoreKind::EnumvalValue,
        CoreKind::TypeMatches,
    ];

    /// The kind with this number.
    pub fn from_code(code: u32) -> Option<CoreKind> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// Returns true if it is about a field, named by a path.
    pub fn is_field(self) -> bool {
        (self as u32) < CoreKind::TypeIdLocal as u32
    }

    /// Returns true if it is about an enumerator.
    pub fn is_enumval(self) -> bool {
        matches!(self, CoreKind::EnumvalExists | CoreKind::EnumvalValue)
    }
}

/// `.BTF.ext`, read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BtfExt {
    /// Byte order of the section.
    pub order: ByteOrder,
    /// Functions by the instructions at which they start.
    pub func_info: Vec<SectionRecords<FuncInfo>>,
    /// Source lines of instructions.
    pub line_info: Vec<SectionRecords<LineInfo>>,
    /// CO-RE relocations.
    pub core_relos: Vec<SectionRecords<CoreRelo>>,
    /// CO-RE relocations of unknown kinds.
    pub strange_cores: Vec<SectionRecords<StrangeCore>>,
}

const HEADER: usize = 24;
const HEADER_WITH_CORE: usize = 32;

/// A record of fixed size, as the format has it.
trait ExtRecord: Sized {
    const WORDS: usize;
    fn from_words(words: &[u32], at: usize) -> Result<Self, BtfError>;
    fn to_words(&self) -> [u32; 4];
}

impl ExtRecord for FuncInfo {
    const WORDS: usize = 2;
    fn from_words(w: &[u32], _at: usize) -> Result<Self, BtfError> {
        Ok(FuncInfo { insn_off: w[0], type_id: TypeId(w[1]) })
    }
    fn to_words(&self) -> [u32; 4] {
        [self.insn_off, self.type_id.0, 0, 0]
    }
}

impl ExtRecord for LineInfo {
    const WORDS: usize = 4;
    fn from_words(w: &[u32], _at: usize) -> Result<Self, BtfError> {
        Ok(LineInfo {
            insn_off: w[0],
            file: StrOff(w[1]),
            text: StrOff(w[2]),
            line: w[3] >> 10,
            column: w[3] & 0x3ff,
        })
    }
    fn to_words(&self) -> [u32; 4] {
        let line = self.line.min((1 << 22) - 1) << 10 | self.column.min(0x3ff);
        [self.insn_off, self.file.0, self.text.0, line]
    }
}

/// A CO-RE relocation of any kind.
#[derive(Clone, Copy)]
enum AnyCore {
    Known(CoreRelo),
    Strange(StrangeCore),
}

impl ExtRecord for AnyCore {
    const WORDS: usize = 4;
    fn from_words(w: &[u32], _at: usize) -> Result<Self, BtfError> {
        Ok(match CoreKind::from_code(w[3]) {
            Some(kind) => {
                AnyCore::Known(CoreRelo { insn_off: w[0], type_id: TypeId(w[1]), access: StrOff(w[2]), kind })
            }
            None => AnyCore::Strange(StrangeCore { insn_off: w[0], words: [w[1], w[2], w[3]] }),
        })
    }
    fn to_words(&self) -> [u32; 4] {
        match self {
            AnyCore::Known(c) => [c.insn_off, c.type_id.0, c.access.0, c.kind as u32],
            AnyCore::Strange(StrangeCore { insn_off, words: [a, b, c] }) => [*insn_off, *a, *b, *c],
        }
    }
}

/// The CO-RE relocations of each section that `pick` takes.
fn picked<T>(all: &[SectionRecords<AnyCore>], pick: fn(&AnyCore) -> Option<T>) -> Vec<SectionRecords<T>> {
    let part = |s: &SectionRecords<AnyCore>| SectionRecords {
        section: s.section,
        records: s.records.iter().filter_map(pick).collect(),
    };
    all.iter().map(part).filter(|s| !s.records.is_empty()).collect()
}

/// A part of the section, with its place for messages.
#[derive(Clone, Copy)]
struct ExtCursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> ExtCursor<'a> {
    fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], BtfError> {
        let short = BtfError::Truncated { what, at: self.at, need: n, have: self.data.len() };
        let (head, tail) = self.data.split_at_checked(n).ok_or(short)?;
        self.data = tail;
        self.at += n;
        Ok(head)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, BtfError> {
        Ok(word(self.take(4, what)?))
    }
}

/// The first four bytes as a little-endian number; `b` must have as many.
fn word(b: &[u8]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

impl BtfExt {
    /// Reads a `.BTF.ext` section. `btf` is the object's `.BTF`, in which the records' types and strings must
    /// exist.
    pub fn parse(data: &[u8], btf: &Btf) -> Result<BtfExt, BtfError> {
        let order = byte_order::of_section(data);
        let little = (order == ByteOrder::Big).then(|| {
            let mut data = data.to_vec();
            byte_order::exchange_records(&mut data);
            data
        });
        let data = little.as_deref().unwrap_or(data);
        let mut head = ExtCursor { data, at: 0 };
        let prefix = head.take(HEADER, "the header")?;
        let magic = u16::from_le_bytes([prefix[0], prefix[1]]);
        match magic {
            0xeb9f => {}
            _ => return Err(BtfError::BadMagic(magic)),
        }
        if prefix[2] != 1 {
            return Err(BtfError::BadVersion(prefix[2]));
        }
        let header_len = word(&prefix[4..]) as usize;
        if header_len < HEADER || header_len > data.len() {
            return Err(BtfError::BadHeader("its own length is impossible"));
        }
        // Parts that are not read would be lost when the section is written.
        if data.get(HEADER_WITH_CORE..header_len).is_some_and(|more| more.iter().any(|b| *b != 0)) {
            return Err(BtfError::BadHeader("it has parts that are not known"));
        }
        let field = |n: usize| word(&data[8 + 4 * n..]) as usize;
        let part = |n: usize| -> Result<ExtCursor<'_>, BtfError> {
            let start = header_len.checked_add(field(n)).filter(|s| *s <= data.len());
            let start = start.ok_or(BtfError::BadHeader("a part lies outside the section"))?;
            let end = start.checked_add(field(n + 1)).filter(|e| *e <= data.len());
            let end = end.ok_or(BtfError::BadHeader("a part ends outside the section"))?;
            Ok(ExtCursor { data: &data[start..end], at: start })
        };
        let core = if header_len >= HEADER_WITH_CORE { read_part(part(4)?, btf)? } else { Vec::new() };
        let ext = BtfExt {
            order,
            func_info: read_part(part(0)?, btf)?,
            line_info: read_part(part(2)?, btf)?,
            core_relos: picked(&core, |c| if let AnyCore::Known(c) = c { Some(*c) } else { None }),
            strange_cores: picked(&core, |c| if let AnyCore::Strange(c) = c { Some(*c) } else { None }),
        };
        ext.check(btf)?;
        Ok(ext)
    }

    /// Every reference into the BTF exists.
    fn check(&self, btf: &Btf) -> Result<(), BtfError> {
        let bad = |what: String| Err(BtfError::BadExt { at: 0, what });
        let ty = |t: TypeId| t.0 < btf.len();
        let string = |s: StrOff| btf.try_str(s).is_some();
        for f in self.func_info.iter().flat_map(|s| &s.records) {
            if !ty(f.type_id) {
                return bad(format!("function record for type [{}], which does not exist", f.type_id.0));
            }
        }
        for l in self.line_info.iter().flat_map(|s| &s.records) {
            if !string(l.file) || !string(l.text) {
                return bad(format!("line record at instruction offset {:#x} names no string", l.insn_off));
            }
        }
        for c in self.core_relos.iter().flat_map(|s| &s.records) {
            if !ty(c.type_id) || !string(c.access) {
                return bad(format!(
                    "CO-RE relocation at instruction offset {:#x} names nothing",
                    c.insn_off
                ));
            }
        }
        Ok(())
    }

    /// All CO-RE relocations, section by section and in order of instruction.
    fn cores(&self) -> Vec<SectionRecords<AnyCore>> {
        let mut all: Vec<SectionRecords<AnyCore>> = Vec::new();
        let mut put =
            |section: StrOff, records: Vec<AnyCore>| match all.iter_mut().find(|s| s.section == section) {
                Some(s) => s.records.extend(records),
                None => all.push(SectionRecords { section, records }),
            };
        for s in &self.core_relos {
            put(s.section, s.records.iter().copied().map(AnyCore::Known).collect());
        }
        for s in &self.strange_cores {
            put(s.section, s.records.iter().copied().map(AnyCore::Strange).collect());
        }
        for s in all.iter_mut().filter(|_| !self.strange_cores.is_empty()) {
            s.records.sort_by_key(|r| r.to_words()[0]);
        }
        all
    }

    /// The section's bytes. The header has CO-RE relocations even if there are none, as clang does:
    /// cilium/ebpf reads that part of it whatever its length says.
    pub fn write(&self) -> Result<Vec<u8>, BtfError> {
        let parts = [write_part(&self.func_info)?, write_part(&self.line_info)?, write_part(&self.cores())?];
        let header_len = 8 + 8 * parts.len();
        let mut out = vec![0x9f, 0xeb, 1, 0];
        out.extend((header_len as u32).to_le_bytes());
        let mut offset = 0u32;
        for part in &parts {
            let len = length(part.len())?;
            out.extend(offset.to_le_bytes());
            out.extend(len.to_le_bytes());
            offset = offset.checked_add(len).ok_or(TOO_LARGE)?;
        }
        for part in &parts {
            out.extend(part);
        }
        if self.order == ByteOrder::Big {
            byte_order::exchange_records(&mut out);
        }
        Ok(out)
    }
}

const TOO_LARGE: BtfError = BtfError::Unwritable("a part of .BTF.ext exceeds 4 GiB");

fn length(n: usize) -> Result<u32, BtfError> {
    u32::try_from(n).map_err(|_| TOO_LARGE)
}

fn read_part<T: ExtRecord>(mut c: ExtCursor<'_>, btf: &Btf) -> Result<Vec<SectionRecords<T>>, BtfError> {
    let mut sections = Vec::new();
    if c.data.is_empty() {
        return Ok(sections);
    }
    let at = c.at;
    let size = c.u32("the size of a record")? as usize;
    if size < 4 * T::WORDS || !size.is_multiple_of(4) {
        return Err(BtfError::BadExt { at, what: format!("records of {size} bytes") });
    }
    while !c.data.is_empty() {
        let at = c.at;
        let section = StrOff(c.u32("a section's name")?);
        if btf.try_str(section).is_none_or(str::is_empty) {
            return Err(BtfError::BadExt { at, what: "records of a section without a name".into() });
        }
        let count = c.u32("a section's number of records")? as usize;
        let bytes = count.checked_mul(size).ok_or(BtfError::BadHeader("too many records"))?;
        let start = c.at;
        let data = c.take(bytes, "a section's records")?;
        let records = data
            .chunks_exact(size)
            .enumerate()
            .map(|(i, r)| {
                if r[4 * T::WORDS..].iter().any(|b| *b != 0) {
                    let what = format!("records of {size} bytes with fields that are not known");
                    return Err(BtfError::BadExt { at: start + i * size, what });
                }
                let mut words = [0; 4];
                for (w, b) in words.iter_mut().zip(r.chunks_exact(4)) {
                    *w = word(b);
                }
                T::from_words(&words, start + i * size)
            })
            .collect::<Result<Vec<T>, _>>()?;
        sections.push(SectionRecords { section, records });
    }
    Ok(sections)
}

fn write_part<T: ExtRecord>(sections: &[SectionRecords<T>]) -> Result<Vec<u8>, BtfError> {
    let mut out = Vec::new();
    if sections.is_empty() {
        return Ok(out);
    }
    out.extend((4 * T::WORDS as u32).to_le_bytes());
    for s in sections.iter().filter(|s| !s.records.is_empty()) {
        out.extend(s.section.0.to_le_bytes());
        out.extend(length(s.records.len())?.to_le_bytes());
        for r in &s.records {
            for w in &r.to_words()[..T::WORDS] {
                out.extend(w.to_le_bytes());
            }
        }
    }
    Ok(out)
}
