//! Objects: what can be read can be linked, written, and read again as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_object::Object;

fuzz_target!(|data: &[u8]| {
    let Ok(object) = Object::parse("fuzz.o", data) else { return };
    for p in &object.programs {
        let _ = object.link(p.func);
    }
    let Ok(written) = object.write() else { return };
    let again = Object::parse("fuzz.o", &written).expect("what is written can be read");
    assert_eq!(object.programs.len(), again.programs.len());
    for (f, g) in object.functions.iter().zip(&again.functions) {
        assert_eq!((&f.insns, &f.core_relos), (&g.insns, &g.core_relos));
    }
});
