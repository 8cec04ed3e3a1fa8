//! Our router as native code: verdicts, packets, accounts and files.

use millstream_native::io::pcap::Writer;
use millstream_native::io::{Nowhere, Plan, Reason, Replay, run};
use millstream_native::{Batch, Engine, Error, LONGEST, Options};
use millstream_object::Object;
use millstream_programs::ROUTER;
use millstream_programs::packet::Frame;
use millstream_programs::rng::Rng;
use millstream_programs::router::{Config, Model, NextHop, Outcome, Route, flows, generate};
use millstream_programs::traffic::Locality;

const INGRESS: u32 = 1;
const PLAN: Plan = Plan { batch: 32, ingress: INGRESS };

fn router(config: &Config) -> Engine {
    let object = Object::parse(ROUTER.name, ROUTER.object).expect("our own");
    let mut engine = Engine::of_object(&object, None, &Options::default()).expect("compiled");
    for entry in config.entries().expect("fits") {
        let map = engine.map(entry.map).expect("the object's map");
        assert_eq!(map.update(&entry.key, &entry.value, 0, None), 0);
    }
    engine
}

#[test]
fn batches_agree_with_the_model_of_the_router() {
    let config = generate(2592, &[INGRESS, 2], 8, 1);
    let mut engine = router(&config);
    let model = Model::new(&config);
    let mut rng = Rng::new(3);
    let mut frames = flows(&config, 3000, Locality::NONE, 2).packets;
    for frame in &mut frames {
        if rng.below(3) == 0 {
            let at = rng.below(34) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
    }
    let mut batch = Batch::new(61).expect("memory");
    for group in frames.chunks(61) {
        batch.clear();
        assert!(group.iter().all(|frame| batch.push(frame, INGRESS)));
        engine.run(&mut batch);
        for (at, frame) in group.iter().enumerate() {
            let (verdict, bytes) = (batch.verdict(at), batch.bytes(at));
            match model.process(frame) {
                Outcome::Forward { port, frame } => {
                    assert_eq!(bytes, frame);
                    match port == INGRESS {
                        true => assert_eq!(verdict, 3),
                        false => assert_eq!((verdict, batch.target(at)), (4, port)),
                    }
                }
                Outcome::Drop(_) => assert_eq!((verdict, bytes), (1, &frame[..])),
                Outcome::Stack(_) => assert_eq!((verdict, bytes), (2, &frame[..])),
            }
        }
    }
}

#[test]
fn every_packet_is_accounted_for_and_written_once() {
    let hop = |port| NextHop::Forward { dst_mac: [2; 6], src_mac: [4; 6], port, mtu: 1500 };
    let route = |prefix: &str, next_hop| Route { prefix: prefix.parse().expect("a prefix"), next_hop };
    let config = Config {
        next_hops: vec![hop(INGRESS), hop(2), NextHop::Drop],
        routes: vec![route("10.0.0.0/8", 0), route("10.2.0.0/16", 1), route("10.3.0.0/16", 2)],
    };
    let mut engine = router(&config);
    let to = |dst: &str| Frame { dst: dst.parse().expect("an address"), ..Frame::default() }.to_bytes();
    let frames =
        [to("10.1.1.1"), to("10.2.1.1"), to("10.3.1.1"), to("11.1.1.1"), vec![0; 13], vec![0; LONGEST + 1]];
    let order = [0, 1, 2, 3, 4, 5, 0];
    let source = Replay { frames: &frames, order: &order, count: 70 };
    let times: Vec<u64> = (1..=7).map(|s| s * 1_000_000_007).collect();
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &times).expect("a header");
    let ran = run(&mut engine, &source, &mut writer, PLAN).expect("written");
    writer.finish().expect("written");
    let a = ran.account;
    assert!(a.adds_up());
    assert_eq!((a.received, a.transmitted, a.redirected), (70, 20, 10));
    let dropped = |reason: Reason| a.dropped[reason as usize];
    assert_eq!((dropped(Reason::Drop), dropped(Reason::Pass), dropped(Reason::Size)), (10, 10, 20));
    let record = 16 + frames[0].len();
    assert_eq!(file.len(), 24 + 30 * record);
    // The second packet that was sent is the source's second.
    let second = &file[24 + record..24 + 2 * record];
    assert_eq!(
        second[..16],
        [2, 0, 0, 0, 14, 0, 0, 0, record as u8 - 16, 0, 0, 0, record as u8 - 16, 0, 0, 0]
    );
    assert_eq!(second[16..22], [2; 6]);

    let endless = Replay { count: 100_000, ..source };
    let ran = run(&mut engine, &endless, &mut Nowhere, PLAN).expect("run");
    assert!(ran.account.adds_up() && ran.account.received == 100_000);
    assert!(ran.percentile(0.1).is_some_and(|ns| ns > 0.0 && ns <= ran.percentile(0.9).unwrap_or(0.0)));
    let source = Replay { order: &[], ..source };
    assert_eq!(run(&mut engine, &source, &mut Nowhere, PLAN).expect("run").account.received, 0);
}

#[test]
fn programs_are_chosen_by_name() {
    let object = Object::parse(ROUTER.name, ROUTER.object).expect("our own");
    let error =
        Engine::of_object(&object, Some("nobody"), &Options::default()).err().expect("no such program");
    assert!(
        matches!(&error, Error::Choose(text) if text.contains("nobody") && text.contains("router")),
        "{error}"
    );
}
