//! CO-RE: paths of any text, of any kind, into every type of an object, resolved against its own types, and
//! the answer written into instructions of any bytes.
//!
//! Input: kind, offset of the first type, length of the path, the path, instructions.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use millstream_btf::{Btf, BtfBuilder, CoreKind, CoreRelo, core};
use millstream_isa::RawInsn;

static TYPES: &[u8] = include_bytes!("../seeds/btf/core");

fn types() -> &'static Btf {
    static READ: OnceLock<Btf> = OnceLock::new();
    READ.get_or_init(|| Btf::parse(TYPES).expect("a seed"))
}

fuzz_target!(|data: &[u8]| {
    let Some((&[kind, first, length], rest)) = data.split_first_chunk::<3>() else { return };
    let Some(kind) = CoreKind::from_code(u32::from(kind % 16)) else { return };
    let Some((path, code)) = rest.split_at_checked(usize::from(length)) else { return };
    let Ok(path) = std::str::from_utf8(path) else { return };
    let mut builder = BtfBuilder::from_btf(types()).expect("a seed");
    let access = builder.string(path);
    let local = Btf::from_vec(builder.write().expect("can be written")).expect("can be read");
    let code = RawInsn::slice_from_bytes(&code[..code.len() & !7]).unwrap_or_default();
    for type_id in local.ids().skip(usize::from(first)).take(8) {
        let relo = CoreRelo { insn_off: 0, type_id, access, kind };
        let Ok(resolved) = core::resolve(&relo, &local, types()) else { continue };
        for at in 0..code.len().min(8) {
            let _ = core::patch(&mut code.clone(), at, &resolved);
        }
    }
});
