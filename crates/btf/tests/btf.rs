//! Reading, writing and queries.

use millstream_btf::{
    Array, Btf, BtfBuilder, BtfError, Composite, Datasec, Enum, Enumerator, FuncLinkage, FuncProto, KindTag,
    Member, Param, SectionVar, TypeId, TypeKind, VarLinkage, essential_name,
};
use millstream_isa::ByteOrder;
use proptest::prelude::*;

fn member(b: &mut BtfBuilder, name: &str, ty: TypeId, bit_offset: u32, bit_size: u8) -> Member {
    Member { name: b.string(name), ty, bit_offset, bit_size }
}

/// One type of each kind, and references between them.
fn everything() -> BtfBuilder {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, true);
    let byte = b.int("u8", 1, false);
    let double = b.add("double", TypeKind::Float { size: 8 });
    let bytes = b.add("", TypeKind::Array(Array { element: byte, index: int, len: 6 }));
    let inner_members = vec![member(&mut b, "deep", int, 0, 0), member(&mut b, "addr", bytes, 32, 0)];
    let inner =
        b.add("", TypeKind::Struct(Composite { size: 12, bit_fields: false, members: inner_members }));
    let forward = b.add("later", TypeKind::Fwd { union: true });
    let pointer = b.add("", TypeKind::Ptr(forward));
    let constant = b.add("", TypeKind::Const(pointer));
    let name = b.add("handle_t", TypeKind::Typedef(constant));
    let volatile = b.add("", TypeKind::Volatile(int));
    let restrict = b.add("", TypeKind::Restrict(pointer));
    let tag = b.add("user", TypeKind::TypeTag { ty: volatile, attribute: false });
    let members = vec![
        member(&mut b, "first", name, 0, 0),
        member(&mut b, "", inner, 64, 0),
        member(&mut b, "low", int, 160, 3),
        member(&mut b, "high", int, 163, 29),
    ];
    let outer = b.add("outer", TypeKind::Struct(Composite { size: 24, bit_fields: true, members }));
    b.add("both", TypeKind::Union(Composite { size: 24, bit_fields: false, members: vec![] }));
    let values = [("MINUS", -1i64 as u64), ("ONE", 1)];
    for wide in [false, true] {
        let values = values.iter().map(|(n, v)| Enumerator { name: b.string(n), value: *v }).collect();
        b.add(
            if wide { "wide" } else { "narrow" },
            TypeKind::Enum(Enum { size: if wide { 8 } else { 4 }, signed: true, wide, values }),
        );
    }
    let params =
        vec![Param { name: b.string("o"), ty: outer }, Param { name: b.string(""), ty: TypeId::VOID }];
    let proto = b.add("", TypeKind::FuncProto(FuncProto { ret: tag, params }));
    let func = b.add("f", TypeKind::Func { proto, linkage: FuncLinkage::Global });
    b.add("note", TypeKind::DeclTag { ty: func, component: 0, attribute: false });
    let var = b.add("v", TypeKind::Var { ty: double, linkage: VarLinkage::Static });
    b.add(
        ".data",
        TypeKind::Datasec(Datasec { size: 8, vars: vec![SectionVar { ty: var, offset: 0, size: 8 }] }),
    );
    b.add("", TypeKind::Ptr(restrict));
    b
}

fn built() -> Btf {
    Btf::from_vec(everything().write().expect("can be written")).expect("can be read")
}

#[test]
fn every_kind_is_written_as_it_is_read() {
    let btf = built();
    let again = BtfBuilder::from_btf(&btf).expect("decodes").write().expect("can be written");
    assert_eq!(again, btf.bytes());
    let tags: std::collections::BTreeSet<u8> =
        btf.ids().map(|id| btf.tag(id).expect("a kind") as u8).collect();
    assert_eq!(tags.len(), 19, "every kind is there");
}

#[test]
fn sizes_fields_and_names() {
    let btf = built();
    let outer = btf.find(KindTag::Struct, "outer").expect("outer");
    assert_eq!((btf.size_of(outer), btf.align_of(outer)), (Ok(24), Ok(8)));
    let addr = btf.field(outer, "addr").expect("a structure").expect("found inside the anonymous one");
    assert_eq!((addr.bit_offset, btf.size_of(addr.ty)), (96, Ok(6)));
    let high = btf.field(outer, "high").expect("a structure").expect("there");
    assert_eq!((high.bit_offset, high.bit_size), (163, 29));
    assert_eq!(btf.field(outer, "nothing"), Ok(None));
    let first = btf.field(outer, "first").expect("a structure").expect("there");
    assert_eq!(btf.c_declaration(first.ty, "x"), "handle_t x");
    assert_eq!(btf.c_name(btf.resolve(first.ty).expect("a pointer")), "union later *");
    assert_eq!(btf.c_declaration(addr.ty, "mac"), "u8 mac[6]");
    let f = btf.find(KindTag::Func, "f").expect("f");
    assert_eq!(btf.c_name(f), "volatile int f(struct outer o, ...)");
    assert_eq!(btf.prototype(f).expect("a function").params.len(), 2);
    let narrow = btf.ty(btf.find(KindTag::Enum, "narrow").expect("narrow")).expect("decodes").kind;
    assert!(matches!(narrow, TypeKind::Enum(e) if e.values[0].value == u64::MAX));
    assert_eq!(btf.size_of(f), Err(BtfError::NoSize(f.0)));
}

#[test]
fn flavours_end_a_name() {
    assert_eq!(essential_name("task_struct___old"), "task_struct");
    assert_eq!(essential_name("a___b___c"), "a___b");
    for whole in ["a", "a___", "___a", "a__b", "", "a____b"] {
        assert_eq!(essential_name(whole), whole);
    }
}

#[test]
fn cycles_are_errors() {
    let mut b = BtfBuilder::new();
    let me = b.next_id();
    b.add("t", TypeKind::Typedef(me));
    let own = b.next_id();
    b.add("", TypeKind::Array(Array { element: own, index: own, len: 2 }));
    let s = b.next_id();
    let m = Member { name: b.string(""), ty: s, bit_offset: 0, bit_size: 0 };
    b.add("s", TypeKind::Struct(Composite { size: 8, bit_fields: false, members: vec![m, m] }));
    let btf = Btf::from_vec(b.write().expect("can be written")).expect("can be read");
    assert_eq!(btf.resolve(me), Err(BtfError::TooDeep(me.0)));
    assert_eq!(btf.size_of(own), Err(BtfError::TooDeep(own.0)));
    assert_eq!(btf.align_of(s), Err(BtfError::TooDeep(s.0)));
    assert_eq!(btf.field(s, "x"), Err(BtfError::TooDeep(s.0)));
    for id in btf.ids() {
        assert!(btf.c_name(id).len() < 4096);
    }
}

#[test]
fn errors_say_where() {
    let good = everything().write().expect("can be written");
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut data = good.clone();
        change(&mut data);
        Btf::from_vec(data).expect_err("damaged").to_string()
    };
    assert!(error(&|d| d.truncate(10)).contains("the header at offset 0x0 needs 24 bytes, 10 are left"));
    // The magic number alone says that numbers have the other order.
    assert!(error(&|d| d[..2].reverse()).contains("header"));
    assert!(error(&|d| d[24 + 7] = 0x1e).contains("type [1] at offset 0x0 has unknown kind 30"));
    assert!(
        error(&|d| d[24] = 0xff).is_empty() || error(&|d| d[26] = 0xff).contains("type [1] at offset 0x0")
    );
}

#[test]
fn big_endian_types_are_read_and_written_in_their_order() {
    let little = everything().write().expect("can be written");
    let mut big = little.clone();
    let strings = u32::from_le_bytes(little[16..20].try_into().expect("4 bytes")) as usize;
    let types = u32::from_le_bytes(little[12..16].try_into().expect("4 bytes")) as usize;
    assert_eq!(strings, types, "the strings follow the types");
    big[..2].reverse();
    big[4..24 + types].chunks_mut(4).for_each(<[u8]>::reverse);
    let [a, b] = [&little, &big].map(|data| Btf::parse(data).expect("can be read"));
    assert_eq!((a.order(), b.order()), (ByteOrder::Little, ByteOrder::Big));
    assert_eq!(a.bytes(), b.bytes());
    for id in a.ids() {
        assert_eq!(a.ty(id), b.ty(id));
    }
    assert_eq!(BtfBuilder::from_btf(&b).expect("decodes").write().expect("can be written"), big);
}

/// Every query on every type: none may panic or hang.
fn exercise(data: &[u8]) {
    let Ok(btf) = Btf::parse(data) else { return };
    for id in btf.ids() {
        let _ = (btf.ty(id), btf.size_of(id), btf.align_of(id), btf.c_name(id), btf.field(id, "deep"));
        let _ = btf.find_all(btf.name(id)).count();
    }
    if let Ok(b) = BtfBuilder::from_btf(&btf) {
        let _ = b.write();
    }
}

proptest! {
    #[test]
    fn damaged_types_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut data = everything().write().expect("can be written");
        for (at, value) in flips {
            *at.get_mut(&mut data) = value;
        }
        let len = cut.map_or(data.len(), |c| c.index(data.len()));
        exercise(&data[..len]);
    }
}

#[test]
fn a_kernels_types() {
    let Ok(data) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: this kernel has no /sys/kernel/btf/vmlinux");
    };
    let start = std::time::Instant::now();
    let btf = Btf::from_vec(data).expect("the kernel's own");
    let read = start.elapsed();
    let task = btf.find(KindTag::Struct, "task_struct").expect("every kernel has it");
    let found = start.elapsed();
    eprintln!("{} types read in {read:?}, first name found after {found:?}", btf.len());
    assert!(btf.size_of(task).expect("a size") > 1000);
    let pid = btf.field(task, "pid").expect("a structure").expect("a field");
    assert_eq!(btf.c_declaration(pid.ty, "pid"), "pid_t pid");
    let again = BtfBuilder::from_btf(&btf).expect("decodes").write().expect("can be written");
    assert!(again == btf.bytes(), "written as it was read");
}

/// `everything`, with a layout section, and the type `handle_t` made one of kind 100 with two words and more
/// parts than 16 bits count.
fn with_an_unknown_kind() -> (Vec<u8>, TypeId) {
    let word =
        |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let old = built();
    let (bytes, changed) = (old.bytes(), old.find(KindTag::Typedef, "handle_t").expect("there"));
    let (types, strings) = (word(bytes, 12) as usize, word(bytes, 20) as usize);
    let name = word(bytes, 24 + find_head(&old, changed));
    let at = find_head(&old, changed);
    let mut new_types = bytes[24..24 + at].to_vec();
    for head in [name, 1 << 31 | 100 << 24 | 0x1_0003, 7] {
        new_types.extend(u32::to_le_bytes(head));
    }
    new_types.extend((0..8 + 4 * 0x1_0003u32).map(|n| n as u8));
    new_types.extend(&bytes[24 + at + 12..24 + types]);
    let mut layout = vec![0u8; 4 * 102];
    layout[400..404].copy_from_slice(&[8, 4, 0, 0]);
    let mut out = bytes[..4].to_vec();
    let (types_len, layout_len) = (new_types.len() as u32, layout.len() as u32);
    for field in [32, 0, types_len, types_len + layout_len, strings as u32, types_len, layout_len] {
        out.extend(u32::to_le_bytes(field));
    }
    out.extend(new_types);
    out.extend(layout);
    out.extend(&bytes[24 + types..]);
    (out, changed)
}

/// Offset of a type in the type section: the length of the types before it, as written.
fn find_head(btf: &Btf, id: TypeId) -> usize {
    let mut before = BtfBuilder::new();
    for earlier in btf.ids().take_while(|earlier| *earlier < id) {
        before.add("", btf.ty(earlier).expect("decodes").kind);
    }
    before.write().expect("can be written").len() - 24 - 1
}

#[test]
fn a_kind_that_is_not_known_is_skipped_by_its_layout_and_written_back() {
    let (bytes, changed) = with_an_unknown_kind();
    let btf = Btf::parse(&bytes).expect("the layout says how long it is");
    assert_eq!(btf.len(), built().len());
    assert_eq!((btf.tag(changed), btf.name(changed)), (Ok(KindTag::Unknown), "handle_t"));
    assert_eq!(btf.size_of(changed), Err(BtfError::NoSize(changed.0)));
    let outer = btf.find(KindTag::Struct, "outer").expect("what follows is found");
    assert_eq!(btf.size_of(outer), Ok(24));
    assert_eq!(BtfBuilder::from_btf(&btf).expect("decodes").write().expect("can be written"), bytes);
    let mut more = BtfBuilder::from_btf(&btf).expect("decodes");
    more.int("added", 4, false);
    let more = Btf::from_vec(more.write().expect("can be written")).expect("can be read");
    assert_eq!(more.ty(changed), btf.ty(changed));
    assert!(more.find(KindTag::Int, "added").is_some());
}

#[test]
fn a_kind_without_a_layout_or_with_a_wrong_one_is_refused() {
    let (bytes, _) = with_an_unknown_kind();
    let with = |at: usize, field: u32| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&field.to_le_bytes());
        Btf::parse(&bytes)
    };
    assert!(matches!(with(28, 0), Err(BtfError::UnknownKind { kind: 100, .. })));
    assert!(matches!(with(28, 400), Err(BtfError::UnknownKind { kind: 100, .. })), "ends before that kind");
    assert!(matches!(with(28, 401), Err(BtfError::BadHeader(_))));
    assert!(matches!(with(28, u32::MAX - 3), Err(BtfError::BadHeader(_))));
    assert!(matches!(with(24, u32::MAX), Err(BtfError::BadHeader(_))));
}
