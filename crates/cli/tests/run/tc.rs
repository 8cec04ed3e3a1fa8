//! TC programs: attached beside existing ones, and adopted from links, from `tc filter` and from tcx without
//! a link.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_isa::{asm, encode_all};
use millstream_kernel::{
    AttachType, Hook, KernelMap, KernelProgram, Link, Namespace, PacketSocket, ProgramSpec, ProgramType,
    UpdateMode, probe, testing,
};
use millstream_loader::{LoadedObject, ObjectLoader};
use millstream_object::Object;

use crate::fixtures;
use crate::messages::{DEV, namespace, says};
use crate::session::{Place, Session, ended};

/// Packets of so many sources, of which the first is blocked, again and again.
const SOURCES: u8 = 20;
const BLOCKED: [u8; 4] = [10, 0, 0, 0];

fn frame(source: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[..6].fill(0xff);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[26..30].copy_from_slice(&source);
    frame
}

/// The policer as clang makes it; `None` where there is no clang and none is required.
fn compiled(place: &Place) -> Option<PathBuf> {
    let (path, _) = fixtures::compile("policer", &[])?;
    let out = place.files.join("policer.o");
    std::fs::rename(path, &out).unwrap();
    Some(out)
}

/// Lets all packets go on to the next program.
fn passing() -> KernelProgram {
    let insns = encode_all(&asm::assemble("r0 = -1\nexit").unwrap());
    let slots: Vec<u64> = insns.iter().map(|r| u64::from_ne_bytes(r.to_bytes())).collect();
    KernelProgram::load(&ProgramSpec {
        name: "passing",
        program_type: ProgramType::SCHED_CLS,
        insns: &slots,
        license: "GPL",
        ..ProgramSpec::default()
    })
    .unwrap()
}

/// The policer as another loader would load it.
struct Theirs {
    _loaded: LoadedObject<'static>,
    program: KernelProgram,
    blocked: KernelMap,
    counts: KernelMap,
}

impl Theirs {
    fn new() -> Option<Theirs> {
        let object: &'static Object = Box::leak(Box::new(fixtures::read("policer", &[])?));
        let loaded = ObjectLoader::new(object).load().unwrap();
        let map = |name| loaded.session.map_by_name(name).unwrap().try_clone().unwrap();
        let (blocked, counts) = (map("blocked"), map("counts"));
        for n in 0..200u32 {
            blocked.update(&n.to_ne_bytes(), &[0; 4], UpdateMode::Any).unwrap();
        }
        blocked.update(&BLOCKED, &[1; 4], UpdateMode::Any).unwrap();
        let program = loaded.program("policer").unwrap().try_clone().unwrap();
        Some(Theirs { program, blocked, counts, _loaded: loaded })
    }

    fn counted(&self) -> [u64; 2] {
        [0u32, 1].map(|n| {
            let value = self.counts.lookup(&n.to_ne_bytes()).unwrap().unwrap();
            u64::from_ne_bytes(value.try_into().unwrap())
        })
    }
}

/// Program ids on ingress, in the order in which packets meet them.
fn on_tc(namespace: &Namespace, index: u32) -> Vec<u32> {
    let found = namespace.enter(|| Hook::adopt_tc(index, AttachType::TCX_INGRESS).unwrap()).unwrap();
    found.iter().map(|(_, program)| program.id().unwrap()).collect()
}

/// Waits until nothing is on ingress: a link that was dropped stays as long as somebody inspects it, as
/// sessions of other tests do to find the writers of a map.
fn until_gone(namespace: &Namespace, index: u32) {
    let start = Instant::now();
    while !on_tc(namespace, index).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "it stays: {:?}", on_tc(namespace, index));
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn tc(namespace: &Namespace, words: &str) -> String {
    let mut command = Command::new("tc");
    let output = ended(namespace, command.args(words.split_whitespace()));
    assert!(output.status.success(), "tc {words}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Sends from the other end while `act` runs.
fn under_load<R>(namespace: &Namespace, act: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let send = || {
                let peer = millstream_kernel::interface_index("run1").unwrap();
                let socket = PacketSocket::open(peer).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for n in 0..SOURCES {
                        let _ = socket.send(&frame([10, 0, 0, n]));
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            };
            namespace.enter(send).unwrap();
        });
        let _end = crate::kill::End(&stop);
        act()
    })
}

/// Adopts the program number `at`, specialises it under load, is killed, taken over by another session, which
/// gives it back.
fn adopted_and_given_back(namespace: &Namespace, index: u32, place: &Place, theirs: &Theirs, at: usize) {
    let before = on_tc(namespace, index);
    assert_eq!(before[at], theirs.program.id().unwrap());
    let object = place.files.join("policer.o");
    under_load(namespace, || {
        let mut session = Session::start(namespace, place.run_object(&object, DEV).arg("--adopt"));
        session.wait_for("specialised");
        let now = on_tc(namespace, index);
        let others = |ids: &[u32]| {
            ids.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, i)| *i).collect::<Vec<_>>()
        };
        assert_eq!(others(&now), others(&before), "others stay, where they were");
        assert_ne!(now[at], before[at]);
        let maps = KernelProgram::from_id(now[at]).unwrap().info().unwrap().map_ids;
        assert!(maps.contains(&theirs.blocked.id()) && maps.contains(&theirs.counts.id()));
        // The loader's own control plane goes on: packets that it unblocks pass at once.
        theirs.blocked.delete(&BLOCKED).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let shot = theirs.counted()[1];
        std::thread::sleep(Duration::from_millis(100));
        let [passed, now] = theirs.counted();
        assert!(now == shot && passed > 0, "stale: {shot} {now}");
        theirs.blocked.update(&BLOCKED, &[1; 4], UpdateMode::Any).unwrap();
        session.kill();
        let left = theirs.counted();
        std::thread::sleep(Duration::from_millis(100));
        assert!(theirs.counted().iter().zip(left).all(|(now, left)| *now > left), "packets go on");
        let mut next = Session::start(namespace, &mut place.run_object(&object, DEV));
        let line = next.wait_for("attached");
        assert!(line.contains("\"took_over\":true"), "{line}");
        let (code, last) = next.interrupt();
        assert_eq!(code, Some(0), "{last}");
    });
    assert_eq!((on_tc(namespace, index), place.pinned()), (before, Vec::new()));
}

#[test]
fn a_filter_of_clsact_is_adopted_and_given_back() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("clsact");
    if compiled(&place).is_none() {
        return;
    }
    let (Some(theirs), Some(other)) = (Theirs::new(), Theirs::new()) else { return };
    for (name, program) in [("theirs", &theirs.program), ("other", &other.program)] {
        std::fs::create_dir_all(&place.pins).unwrap();
        program.pin(&place.pins.join(name)).unwrap();
    }
    let path = |name: &str| place.pins.join(name).display().to_string();
    tc(&namespace, &format!("qdisc add dev {DEV} clsact"));
    let add = |rest: &str| tc(&namespace, &format!("filter add dev {DEV} ingress {rest}"));
    add(&format!("protocol ip prio 7 handle 3 bpf da pinned {}", path("theirs")));
    let egress = format!("filter add dev {DEV} egress bpf da pinned {}", path("theirs"));
    tc(&namespace, &egress);
    for name in ["theirs", "other"] {
        std::fs::remove_file(path(name)).unwrap();
    }
    let show = || {
        let text = tc(&namespace, &format!("filter show dev {DEV} ingress"));
        // The time is that of the query, and the image moves.
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let before = show();
    adopted_and_given_back(&namespace, index, &place, &theirs, 0);
    assert_eq!(show(), before);
}

#[test]
fn a_program_on_tcx_is_adopted_and_given_back() {
    if !testing::require() || !testing::permitted("tcx", &probe::tcx()) {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("tcx");
    let Some(object) = compiled(&place) else { return };
    let (Some(theirs), first) = (Theirs::new(), passing()) else { return };
    let attach = |p: &KernelProgram| {
        namespace.enter(|| Link::attach_tcx(p, index, AttachType::TCX_INGRESS).unwrap()).unwrap()
    };
    let links = [attach(&first), attach(&theirs.program)];
    let id = links[1].info().unwrap().id;
    adopted_and_given_back(&namespace, index, &place, &theirs, 1);
    assert_eq!(links[1].info().unwrap().id, id);
    drop(links);
    until_gone(&namespace, index);
    // Beside others, if no program is to be adopted.
    let link = attach(&theirs.program);
    let mut session = Session::start(&namespace, &mut place.run_object(&object, DEV));
    session.wait_for("attached");
    assert_eq!(on_tc(&namespace, index).len(), 2);
    assert_eq!(session.interrupt().0, Some(0));
    assert_eq!(on_tc(&namespace, index), [theirs.program.id().unwrap()]);
    drop(link);
    until_gone(&namespace, index);
    let nothing = ended(&namespace, place.run_object(&object, DEV).arg("--adopt"));
    says(&nothing, 2, &["no program", "adopted"]);
    let (one, two) = (attach(&first), attach(&passing()));
    let several = ended(&namespace, place.run_object(&object, DEV).arg("--adopt"));
    says(&several, 2, &["several programs", "it is identified by its name", "nothing was changed"]);
    drop((one, two));
}
