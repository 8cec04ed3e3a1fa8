//! Types: every query on every type ends; what is read is written as it was. The types resolve relocations
//! against themselves, one of each kind for each type.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_btf::{Btf, BtfBuilder, BtfExt, CoreKind, CoreRelo, StrOff, core};

fuzz_target!(|data: &[u8]| {
    let Ok(btf) = Btf::parse(data) else { return };
    for id in btf.ids().take(64) {
        let _ = (btf.size_of(id), btf.align_of(id), btf.c_name(id), btf.field(id, "a"), btf.prototype(id));
        for kind in (0..13).filter_map(CoreKind::from_code) {
            let relo = CoreRelo { insn_off: 0, type_id: id, access: StrOff(1), kind };
            let _ = core::resolve(&relo, &btf, &btf);
        }
    }
    let _ = BtfExt::parse(data, &btf);
    let builder = BtfBuilder::from_btf(&btf).expect("what was read decodes");
    let _ = builder.write().map(|b| Btf::from_vec(b).expect("what is written can be read"));
});
