//! Failures: each message explains the error and gives advice, each exit code is the documented one, and
//! nothing is detached or changed.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use millstream_isa::MapType;
use millstream_kernel::{
    KernelMap, KernelProgram, Link, MapSpec, Namespace, XdpMode, create_veth, interface_index, probe,
    query_xdp, replace_xdp_netlink, set_up_pair, testing,
};
use millstream_loader::ObjectLoader;
use millstream_object::Object;
use millstream_programs::{GUARD, ROUTER};

use crate::flat::flat;
use crate::session::{Place, Session, ended};

pub(crate) const DEV: &str = "run0";

/// A namespace with a veth pair, of which one end is [`DEV`]; its index.
pub(crate) fn namespace() -> (Namespace, u32) {
    let namespace = Namespace::new().unwrap();
    let index = namespace
        .enter(|| {
            let ends = create_veth(DEV, "run1", 1).unwrap();
            set_up_pair(ends).unwrap();
            ends.0
        })
        .unwrap();
    (namespace, index)
}

fn on_hook(namespace: &Namespace, index: u32) -> Option<u32> {
    namespace.enter(|| query_xdp(index).unwrap()).unwrap().map(|s| s.program_id)
}

/// Waits until nothing is on the hook: a link that was dropped stays as long as somebody inspects it, as
/// sessions of other tests do to find the writers of a map.
fn until_free(namespace: &Namespace, index: u32) {
    let start = Instant::now();
    while on_hook(namespace, index).is_some() {
        assert!(start.elapsed() < Duration::from_secs(60), "it stays: {:?}", on_hook(namespace, index));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks that the output has all of these words, and ends with this code.
#[track_caller]
pub(crate) fn says(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    let flat = flat(&output.stderr);
    for word in words {
        assert!(flat.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_before_anything_is_touched() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("input");
    says(&ended(&namespace, &mut place.run("nosuchdev")), 2, &["no such interface", "ip link"]);
    says(&ended(&namespace, place.run(DEV).args(["--prog", "other"])), 2, &["\"other\"", "router", "--prog"]);
    says(&ended(&namespace, place.run(DEV).arg("--egress")), 2, &["XDP program", "nothing was changed"]);
    says(&ended(&namespace, place.run(DEV).arg("--adopt")), 2, &["no program", "adopted"]);
    let unknown = ended(&namespace, place.run(DEV).args(["--exclude", "rutes"]));
    says(&unknown, 2, &["no map \"rutes\"", "routes"]);
    let exact = ended(&namespace, place.run(DEV).args(["--approximate-lru", "routes"]));
    says(&exact, 2, &["\"routes\" is none of least recent use", "none"]);
    let guard = place.files.join("guard.o");
    std::fs::write(&guard, GUARD.object).unwrap();
    let several = ended(&namespace, &mut place.run_object(&guard, DEV));
    says(&several, 2, &["several programs", "guard_enter", "guard_exit"]);
    let tracing = ended(&namespace, place.run_object(&guard, DEV).args(["--prog", "guard_enter"]));
    says(&tracing, 2, &["guard_enter", "tracing", "XDP and TC"]);
    assert_eq!((on_hook(&namespace, index), place.pins.exists()), (None, false));
}

#[test]
fn a_program_of_somebody_else_stays() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("other");
    let theirs = probe::constant_xdp(2).unwrap();
    let link = namespace.enter(|| Link::attach_xdp(&theirs, index, XdpMode::Native).unwrap()).unwrap();
    says(&ended(&namespace, &mut place.run(DEV)), 1, &["another program", "--adopt", "nothing was changed"]);
    assert_eq!(on_hook(&namespace, index), Some(theirs.id().unwrap()));
    assert!(!place.pins.exists());
    drop(link);
}

#[test]
fn what_is_no_chain_is_not_fused_and_stays() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("fused");
    let fused = |more: &[&str]| ended(&namespace, place.run(DEV).arg("--fuse").args(more));
    says(&fused(&[]), 2, &["no XDP program is on the interface", "xdp-loader load", "nothing was changed"]);
    says(&fused(&["--dev", "run1"]), 2, &["chain of one interface", "start one for each"]);
    says(&fused(&["--adopt"]), 2, &["--adopt", "cannot be used"]);
    let theirs = probe::constant_xdp(2).unwrap();
    let link = namespace.enter(|| Link::attach_xdp(&theirs, index, XdpMode::Native).unwrap()).unwrap();
    let id = theirs.id().unwrap();
    says(&fused(&[]), 2, &[&format!("(id {id})"), "is no dispatcher", "nothing was changed"]);
    assert_eq!((on_hook(&namespace, index), place.pins.exists()), (Some(id), false));
    drop(link);
}

#[test]
fn an_adopted_program_is_given_back_also_after_a_kill() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("adopt");
    let theirs = probe::constant_xdp(2).unwrap();
    let id = theirs.id().unwrap();
    let put = |new: Option<&KernelProgram>, old: Option<&KernelProgram>| {
        namespace.enter(|| replace_xdp_netlink(index, new, old, XdpMode::Native).unwrap()).unwrap();
    };
    put(Some(&theirs), None);
    for killed in [false, true] {
        let mut session = Session::start(&namespace, place.run(DEV).arg("--adopt=any"));
        session.wait_for("attached");
        assert_ne!(on_hook(&namespace, index), Some(id));
        if killed {
            session.kill();
            assert_ne!(on_hook(&namespace, index), Some(id));
            session = Session::start(&namespace, &mut place.run(DEV));
            let line = session.wait_for("attached");
            assert!(line.contains("\"took_over\":true"), "{line}");
        }
        let (code, last) = session.interrupt();
        assert_eq!(code, Some(0), "{last}");
        assert_eq!((on_hook(&namespace, index), place.pins.exists()), (Some(id), false));
    }
    put(None, Some(&theirs));
}

#[test]
fn a_session_that_fails_gives_back_what_it_adopted() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let peer = namespace.enter(|| interface_index("run1").unwrap()).unwrap();
    let place = Place::new("fails");
    let (theirs, other) = (probe::constant_xdp(2).unwrap(), probe::constant_xdp(2).unwrap());
    let put = |index: u32, new: Option<&KernelProgram>, old: Option<&KernelProgram>| {
        namespace.enter(|| replace_xdp_netlink(index, new, old, XdpMode::Native).unwrap()).unwrap();
    };
    [index, peer].into_iter().for_each(|on| put(on, Some(&theirs), None));
    let both = ["--adopt=any", "--dev", "run1"];
    let mut session = Session::start(&namespace, place.run(DEV).args(both));
    session.wait_for("attached");
    let ours = KernelProgram::from_id(on_hook(&namespace, peer).unwrap()).unwrap();
    assert_ne!(ours.id().unwrap(), theirs.id().unwrap());
    put(index, Some(&other), Some(&ours));
    let (start, id) = (Instant::now(), theirs.id().unwrap());
    while on_hook(&namespace, peer) != Some(id) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", session.lines());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        on_hook(&namespace, index),
        Some(other.id().unwrap()),
        "what somebody else has put there stays"
    );
    put(index, None, Some(&other));
    put(peer, None, Some(&theirs));
}

/// The router as another loader would load it, with room for fewer routes than the object says.
fn theirs() -> (KernelProgram, KernelMap) {
    let mut object = Object::parse("router", ROUTER.object).unwrap();
    let routes = object.maps.iter_mut().find(|m| m.name == "routes").unwrap();
    routes.spec.max_entries = 100;
    let loaded = ObjectLoader::new(&object).load().unwrap();
    let map = loaded.session.map_by_name("routes").unwrap().try_clone().unwrap();
    (loaded.program("router").unwrap().try_clone().unwrap(), map)
}

#[test]
fn the_program_of_the_object_is_adopted_with_its_maps_and_no_other() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("same");
    let other = probe::constant_xdp(2).unwrap();
    let link = namespace.enter(|| Link::attach_xdp(&other, index, XdpMode::Native).unwrap()).unwrap();
    let refused = ended(&namespace, place.run(DEV).arg("--adopt"));
    says(&refused, 2, &["not the object's", "--adopt=any", "nothing was changed"]);
    assert_eq!((on_hook(&namespace, index), place.pins.exists()), (Some(other.id().unwrap()), false));
    let (theirs, routes) = theirs();
    drop(link);
    until_free(&namespace, index);
    let link = namespace.enter(|| Link::attach_xdp(&theirs, index, XdpMode::Native).unwrap()).unwrap();
    let mut session = Session::start(&namespace, place.run(DEV).arg("--adopt"));
    let line = session.wait_for("attached");
    assert!(line.contains("\"watched\":[\"next_hops\",\"routes\"]"), "nobody else holds them: {line}");
    let ours = on_hook(&namespace, index);
    let held = KernelProgram::from_id(ours.unwrap()).unwrap().info().unwrap().map_ids;
    assert!(ours != Some(theirs.id().unwrap()) && held.contains(&routes.id()), "{held:?}");
    // Killed, and taken over by a session that adopts as well: the present program is not the one to give
    // back.
    session.kill();
    let mut session = Session::start(&namespace, place.run(DEV).arg("--adopt"));
    assert!(session.wait_for("attached").contains("\"took_over\":true"));
    assert_eq!(session.interrupt().0, Some(0));
    assert_eq!((on_hook(&namespace, index), place.pins.exists()), (Some(theirs.id().unwrap()), false));
    drop(link);
    until_free(&namespace, index);
}

#[test]
fn two_sessions_do_not_meet_and_the_original_is_kept_if_asked_for() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("two");
    let mut first = Session::start(&namespace, place.run(DEV).arg("--keep"));
    first.wait_for("attached");
    says(&ended(&namespace, &mut place.run(DEV)), 1, &["another session", "--pin", "nothing was changed"]);
    // The first session may have put a variant onto the hook meanwhile; it leaves the original there all the
    // same.
    assert!(on_hook(&namespace, index).is_some());
    assert_eq!(first.interrupt().0, Some(0));
    let kept = on_hook(&namespace, index).map(|id| KernelProgram::from_id(id).unwrap().info().unwrap().tag);
    let (original, _) = theirs();
    assert_eq!(
        (kept, place.pinned()),
        (Some(original.info().unwrap().tag), vec![format!("link_{DEV}"), "maps".into()])
    );
    let mut next = Session::start(&namespace, &mut place.run(DEV));
    assert!(next.wait_for("attached").contains("\"took_over\":true"));
    assert_eq!(next.interrupt().0, Some(0));
    assert_eq!((on_hook(&namespace, index), place.pins.exists()), (None, false));
}

#[test]
fn a_map_of_another_layout_stays_as_it_is() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("layout");
    let spec = MapSpec {
        name: "routes",
        map_type: MapType::HASH,
        key_size: 4,
        value_size: 4,
        max_entries: 8,
        ..MapSpec::default()
    };
    let other = KernelMap::create(&spec).unwrap();
    let pin = place.pins.join("maps/routes");
    std::fs::create_dir_all(pin.parent().unwrap()).unwrap();
    other.pin(&pin).unwrap();
    says(&ended(&namespace, &mut place.run(DEV)), 2, &["map routes", "--pin", "nothing was changed"]);
    assert_eq!(KernelMap::from_pin(&pin).unwrap().id(), other.id());
    assert_eq!((on_hook(&namespace, index), place.pinned()), (None, vec!["maps".into()]));
}

#[test]
fn a_directory_of_pins_that_a_stranger_can_change_is_refused() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("stranger");
    std::fs::create_dir_all(place.pins.join("maps")).unwrap();
    for (owner, mode) in [(54_321, 0o755), (54_321, 0o1777)] {
        std::os::unix::fs::chown(&place.pins, Some(owner), None).unwrap();
        std::fs::set_permissions(&place.pins, std::fs::Permissions::from_mode(mode)).unwrap();
        let words = ["user 54321", "could remove or replace", "mode=0700", "nothing was changed"];
        says(&ended(&namespace, &mut place.run(DEV)), 4, &words);
        assert_eq!((on_hook(&namespace, index), place.pinned()), (None, vec!["maps".into()]));
    }
    // Nor may the other directory on the path.
    std::os::unix::fs::chown(&place.pins, Some(0), None).unwrap();
    std::os::unix::fs::chown(place.pins.join("maps"), Some(54_321), None).unwrap();
    says(&ended(&namespace, &mut place.run(DEV)), 4, &["maps belongs to user 54321"]);
    std::fs::remove_dir(place.pins.join("maps")).unwrap();
}

#[test]
fn a_pin_outside_of_a_bpf_file_system_is_refused() {
    if !testing::require() {
        return;
    }
    let (namespace, _) = namespace();
    let mut place = Place::new("where");
    place.pins = place.files.join("pins");
    says(&ended(&namespace, &mut place.run(DEV)), 4, &["BPF file system", "mount -t bpf"]);
    assert!(!place.pins.exists());
}

#[test]
fn without_native_xdp_it_says_so_or_runs_in_the_stack() {
    if !testing::require() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let place = Place::new("generic");
    says(&ended(&namespace, place.run("lo").args(["--mode", "native"])), 4, &["no native XDP", "generic"]);
    assert!(!place.pins.exists());
    let mut session = Session::start(&namespace, &mut place.run("lo"));
    assert!(session.wait_for("attached").contains("\"mode\":\"generic\""));
    assert_eq!(session.interrupt().0, Some(0));
}

#[test]
fn without_privileges_or_types_of_the_kernel_it_says_what_is_missing() {
    if !testing::require() {
        return;
    }
    let (namespace, index) = namespace();
    let place = Place::new("root");
    std::fs::write(place.files.join("r.o"), ROUTER.object).unwrap();
    let line = format!(
        "{} run {} --dev {DEV} --pin {}",
        env!("CARGO_BIN_EXE_millstream"),
        place.files.join("r.o").display(),
        place.pins.display()
    );
    let caps = ["--bounding-set=-all", "--inh-caps=-all", "sh", "-c", &line];
    let refused = ended(&namespace, Command::new("setpriv").args(caps));
    says(&refused, 4, &["EPERM", "root", "millstream doctor"]);
    let hide = format!("mount -t tmpfs none /sys/kernel/btf && {line}");
    let without = ended(&namespace, Command::new("unshare").args(["--mount", "sh", "-c", &hide]));
    says(&without, 4, &["BTF", "/sys/kernel/btf/vmlinux", "millstream doctor"]);
    assert_eq!((on_hook(&namespace, index), place.pins.exists()), (None, false));
}
