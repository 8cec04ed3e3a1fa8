//! Programs compiled ahead of time do what those compiled in place do.

use millstream_native::{ClockSource, NativeEngine, NativeImage, NativeOptions, PacketBatch};
use millstream_object::Object;
use millstream_programs::packet::partly_broken;
use millstream_programs::router::generate;
use millstream_programs::{BALANCER, FIREWALL, NAT, ROUTER, SWITCH};
use millstream_rng::Rng;

const INGRESS: u32 = 1;

/// Verdicts, targets and bytes of all frames, then all maps.
type Seen = (Vec<(u32, u32, Vec<u8>)>, Vec<(String, Vec<(Vec<u8>, Option<Vec<u8>>)>)>);

fn seen(engine: &mut NativeEngine, router: bool, frames: &[Vec<u8>]) -> Seen {
    engine.set_clock(ClockSource::Fixed(7_000_000_000));
    if router {
        for entry in generate(500, &[INGRESS, 2], 8, 1).entries().expect("fits") {
            let map = engine.map(entry.map).expect("the object's map");
            assert_eq!(map.update(&entry.key, &entry.value, 0, None), 0);
        }
    }
    let mut batch = PacketBatch::new(64).expect("memory");
    let mut fates = Vec::new();
    for group in frames.chunks(64) {
        batch.clear();
        assert!(group.iter().all(|frame| batch.push(frame, INGRESS)));
        engine.run(&mut batch);
        fates.extend(
            (0..group.len()).map(|at| (batch.verdict(at), batch.target(at), batch.bytes(at).to_vec())),
        );
    }
    let maps = engine.maps().filter(|map| !map.holds_addresses() && map.len() <= 1 << 16);
    let contents = maps.map(|map| {
        let mut keys = map.keys();
        keys.sort_unstable();
        let entries = keys.into_iter().map(|key| (key.clone(), map.get(&key))).collect();
        (map.name().to_owned(), entries)
    });
    (fates, contents.collect())
}

/// Only one program at a time can have fixed addresses in a process, so this is one test.
#[test]
fn built_programs_do_what_programs_in_place_do() {
    for program in [ROUTER, FIREWALL, NAT, BALANCER, SWITCH] {
        let object = Object::parse(program.name, program.object).expect("our own");
        let options = NativeOptions::default();
        let frames = partly_broken(&mut Rng::new(5), 640);
        let router = program.name == ROUTER.name;
        let mut here = NativeEngine::of_object(&object, None, &options).expect("compiled");
        let expected = seen(&mut here, router, &frames);
        drop(here);
        let image = NativeEngine::build_object(&object, None, &options).expect("built");
        let text = serde_json::to_string(&image).expect("plain data");
        let read: NativeImage = serde_json::from_str(&text).expect("what was written");
        let read = read.with_code(image.code().to_vec());
        assert_eq!(read, image);
        let mut built = NativeEngine::of_image(&read).expect("loaded");
        assert!(NativeEngine::of_image(&read).is_err(), "the places are taken");
        assert!(seen(&mut built, router, &frames) == expected, "{}", program.name);
    }
}
