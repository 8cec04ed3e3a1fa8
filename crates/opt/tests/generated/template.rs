//! Object that generated functions are put into: maps, global data and declarations, compiled by clang.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use millstream_isa::{Insn, Operand, Reg, Width, encode_all};
use millstream_object::{FuncId, MapId, NewFunction, Object};

/// Numbers of the object's maps.
#[derive(Clone, Copy)]
pub(crate) struct Maps {
    pub(crate) slots: MapId,
    pub(crate) flows: MapId,
    pub(crate) counts: MapId,
    pub(crate) totals: MapId,
    pub(crate) settings: MapId,
    /// Program arrays, one for each type of program.
    pub(crate) chains: [MapId; 2],
}

/// The object with trivial functions, and where everything is in it.
pub(crate) struct Template {
    pub(crate) object: Object,
    pub(crate) maps: Maps,
    pub(crate) subs: Vec<FuncId>,
    pub(crate) shared: FuncId,
    pub(crate) each: FuncId,
    /// Entry, and the two programs that it may tail-call; XDP, then TC.
    pub(crate) programs: [[FuncId; 3]; 2],
}

impl Template {
    pub(crate) fn new() -> Template {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let own = format!("generated-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(own);
        std::fs::create_dir_all(&folder).expect("a folder for the template");
        let out = folder.join("generated.bpf.o");
        let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/generated/template.bpf.c");
        let machine = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
        let status = Command::new(&clang)
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", &machine, "-c", source, "-o"])
            .arg(&out)
            .status()
            .unwrap_or_else(|e| panic!("{clang}: {e}"));
        assert!(status.success(), "{clang} rejects the template");
        let data = std::fs::read(&out).expect("what clang wrote");
        std::fs::remove_dir_all(&folder).expect("our own folder");
        let mut object = Object::parse("generated.bpf.o", &data).expect("the template can be read");
        let func = |name: &str| {
            let at = object.functions.iter().position(|f| f.name == name);
            FuncId(at.unwrap_or_else(|| panic!("no function {name}")) as u32)
        };
        let map = |name: &str| {
            let at = object.maps.iter().position(|m| m.name == name || m.section == name);
            MapId(at.unwrap_or_else(|| panic!("no map {name}")) as u32)
        };
        let maps = Maps {
            slots: map("slots"),
            flows: map("flows"),
            counts: map("counts"),
            totals: map(".bss"),
            settings: map(".rodata"),
            chains: [map("xdp_chain"), map("tc_chain")],
        };
        let subs = ["sub0", "sub1", "sub2", "sub3"].map(func).to_vec();
        let (shared, each) = (func("shared"), func("each"));
        let programs =
            ["xdp", "tc"].map(|kind| ["entry", "link0", "link1"].map(|p| func(&format!("{kind}_{p}"))));
        for id in 0..object.functions.len() as u32 {
            let trivial = NewFunction { insns: trivial(), ..NewFunction::default() };
            object.replace_function(FuncId(id), trivial).expect("it fits");
        }
        Template { object, maps, subs, shared, each, programs }
    }
}

fn trivial() -> Vec<millstream_isa::RawInsn> {
    let zero = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Imm(0) };
    encode_all(&[zero, Insn::Exit])
}
