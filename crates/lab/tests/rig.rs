//! The rig on the real kernel.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_kernel::{KernelProgram, ProgramSpec, ProgramType, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence, stale_resources};

/// One rig at a time: on a small machine two of them in parallel only wait for one another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn xdp(insns: &[u64]) -> KernelProgram {
    KernelProgram::load(&ProgramSpec {
        name: "verdict",
        program_type: ProgramType::XDP,
        insns,
        license: "GPL",
        ..ProgramSpec::default()
    })
    .unwrap()
}

/// An instruction: its code, registers, offset and immediate.
fn slot(code: u8, registers: u8, offset: u16, imm: i32) -> u64 {
    u64::from(code) | u64::from(registers) << 8 | u64::from(offset) << 16 | (imm as u32 as u64) << 32
}

/// An XDP program that does nothing but say `verdict`.
fn verdict(verdict: i32) -> KernelProgram {
    xdp(&[slot(0xb7, 0, 0, verdict), slot(0x95, 0, 0, 0)])
}

/// An XDP program that sends back the frames of queue 0, and drops those of queue 1.
fn back_by_queue() -> KernelProgram {
    let queue = slot(0x61, 0x12, 16, 0);
    let twice = slot(0x67, 0x02, 0, 1);
    xdp(&[queue, slot(0xb7, 0, 0, 3), twice, slot(0x1f, 0x20, 0, 0), slot(0x95, 0, 0, 0)])
}

fn frames(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().map(|&n| (0..n).map(|i| i as u8).collect()).collect()
}

#[test]
fn two_lanes_send_on_two_cpus_and_lose_nothing() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let lanes = RigConfig { lanes: 2, ..RigConfig::default() };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert!(TestRig::new(lanes).unwrap_err().to_string().contains("2 lanes, where 1 can be had"));
        return;
    }
    let rig = TestRig::new(lanes).unwrap();
    let frames = frames(&[64; 10]);
    rig.load_traffic(&TrafficSequence { frames: &frames, sequence: &[0, 3, 9, 1] }).unwrap();
    rig.attach(&back_by_queue()).unwrap();
    let alone = rig.send(10_000).unwrap().packets;
    let first = rig.counts().unwrap().returned;
    assert!(first == 0 || first == alone, "{first} of the first lane's {alone} came by one queue");
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let all = scope.spawn(|| rig.generator_loop(&stop, None));
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::SeqCst);
        all.join().unwrap().unwrap()
    });
    let counts = rig.counts().unwrap();
    assert_eq!((counts.sent, counts.lost()), (alone + sent.packets, 0));
    let returned = counts.returned - first;
    assert!(
        returned > 0 && returned < sent.packets,
        "{returned} of {} came by the first queue",
        sent.packets
    );
}

#[test]
fn a_hundred_thousand_frames_and_none_lost() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let rig = TestRig::new(RigConfig::default()).unwrap();
    let (frames, sequence) = (frames(&[64; 10]), [0, 3, 9, 1]);
    rig.load_traffic(&TrafficSequence { frames: &frames, sequence: &sequence }).unwrap();

    rig.attach(&verdict(3)).unwrap();
    let sent = rig.send(100_000).unwrap();
    assert_eq!(sent.packets, 100_000);
    let counts = rig.counts().unwrap();
    assert_eq!(
        (counts.sent, counts.received, counts.returned, counts.lost()),
        (100_000, 100_000, 100_000, 0)
    );
    assert_eq!(counts.returned_bytes, 6_400_000);

    rig.attach(&verdict(1)).unwrap();
    rig.send(1_000).unwrap();
    let dropping = rig.counts().unwrap() - counts;
    assert_eq!((dropping.received, dropping.returned, dropping.lost()), (1_000, 0, 0));

    rig.detach();
    rig.send(1_000).unwrap();
    let without = rig.counts().unwrap();
    assert_eq!(
        without.lost(),
        1_000,
        "an interface without a program takes no frame, and that shows as loss"
    );
    println!("{:.1} ns per frame", sent.ns_per_packet());
}

#[test]
fn frames_of_several_lengths_keep_theirs() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let rig = TestRig::new(RigConfig::default()).unwrap();
    let lengths = [60, 61, 1514, 67, 14, 128];
    let sequence: Vec<u32> = (0..lengths.len() as u32).collect();
    let frames = frames(&lengths);
    rig.load_traffic(&TrafficSequence { frames: &frames, sequence: &sequence }).unwrap();
    rig.attach(&verdict(3)).unwrap();
    rig.send(6 * 500).unwrap();
    let counts = rig.counts().unwrap();
    assert_eq!((counts.returned, counts.lost()), (3_000, 0));
    assert_eq!(counts.returned_bytes, 500 * lengths.iter().sum::<usize>() as u64);
}

#[test]
fn a_loop_sends_at_a_rate_until_told() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let frames = frames(&[64]);
    // By a process's clock, and in the kernel, which alone can keep to a rate of many bursts.
    for (urgent, wanted) in [(false, 100_000.0), (true, 100_000.0), (true, 1_000_000.0)] {
        let rig = TestRig::new(RigConfig { urgent, ..RigConfig::default() }).unwrap();
        rig.load_traffic(&TrafficSequence { frames: &frames, sequence: &[0] }).unwrap();
        rig.attach(&verdict(3)).unwrap();
        let mut total = 0;
        let mut share = || {
            let stop = AtomicBool::new(false);
            let sent = std::thread::scope(|scope| {
                let sender = scope.spawn(|| rig.generator_loop(&stop, Some(wanted)));
                std::thread::sleep(Duration::from_millis(300));
                stop.store(true, Ordering::Relaxed);
                sender.join().unwrap().unwrap()
            });
            total += sent.packets;
            let counts = rig.counts().unwrap();
            assert_eq!((counts.sent, counts.lost()), (total, 0));
            sent.packets as f64 / sent.ns as f64 * 1e9 / wanted
        };
        // A machine that is busy with other work is too slow, by as much as it likes, but never too fast.
        let share = share();
        assert!(share > 0.0 && share < 1.05, "{share} of {wanted} frames per second, urgent: {urgent}");
        // Afterwards all is as before: as many as go.
        assert_eq!(rig.send(10_000).unwrap().packets, 10_000);
    }
}

#[test]
fn traffic_that_cannot_be_sent_is_refused() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let rig = TestRig::new(RigConfig::default()).unwrap();
    assert!(rig.send(1).is_err(), "nothing loaded");
    for (frames, sequence) in [
        (frames(&[64]), vec![1]),
        (frames(&[64]), vec![]),
        (frames(&[]), vec![]),
        (frames(&[13]), vec![0]),
        (frames(&[9000]), vec![0]),
    ] {
        assert!(rig.load_traffic(&TrafficSequence { frames: &frames, sequence: &sequence }).is_err());
    }
    rig.load_traffic(&TrafficSequence { frames: &frames(&[64; 3]), sequence: &[0, 1] }).unwrap();
    assert!(rig.reorder(&[0]).is_err());
    assert!(rig.reorder(&[0, 3]).is_err());
    rig.reorder(&[2, 2]).unwrap();
}

#[test]
fn load_on_another_cpu_is_accounted_for_to_the_frame() {
    let _alone = alone();
    if !testing::require() || std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let rig = |stamps| {
        let rig = TestRig::new(RigConfig { stamps, ..RigConfig::default() }).unwrap();
        rig.load_traffic(&TrafficSequence { frames: &frames(&[64]), sequence: &[0] }).unwrap();
        rig.attach(&verdict(3)).unwrap();
        rig
    };
    let (plain, stamped) = (rig(false), rig(true));
    let curve = millstream_lab::curve::curve(&plain, &stamped, 2, 0.1).unwrap();
    println!("{curve:#?}");
    assert_ne!(curve.sender_cpu, curve.receiver_cpu);
    assert!(curve.capacity_mpps > 0.0 && curve.points.len() == 2);
    for point in &curve.points {
        assert!(point.latency.frames > 0);
        let accounted = point.received_mpps + point.loss * point.offered_mpps;
        assert!((accounted / point.offered_mpps - 1.0).abs() < 1e-6, "{point:?}");
    }
}

/// Not a test by itself: the process that the next one kills.
#[test]
fn holds_a_rig_if_asked() {
    if std::env::var_os("MILLSTREAM_LAB_HOLD").is_none() {
        return;
    }
    let rig = TestRig::new(RigConfig::default()).unwrap();
    println!("holding {}", rig.name());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn what_a_killed_rig_leaves_is_removed_by_the_next() {
    let _alone = alone();
    if !testing::require() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds_a_rig_if_asked", "--nocapture"])
        .env("MILLSTREAM_LAB_HOLD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let name = wait_for_name(&mut child);
    let path = std::path::Path::new("/run/netns").join(&name);
    assert!(path.exists());
    assert!(!stale_resources::find().unwrap().contains(&path), "its process lives");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(stale_resources::find().unwrap().contains(&path));

    let rig = TestRig::new(RigConfig::default()).unwrap();
    assert!(!path.exists(), "the next rig removes it");
    let own = std::path::Path::new("/run/netns").join(rig.name());
    assert!(own.exists());
    drop(rig);
    assert!(!own.exists(), "and leaves nothing itself");
}

fn wait_for_name(child: &mut std::process::Child) -> String {
    use std::io::{BufRead, BufReader};
    let output = BufReader::new(child.stdout.take().unwrap());
    let line = output.lines().map_while(Result::ok).find(|l| l.contains("holding ")).unwrap();
    line.split("holding ").nth(1).unwrap().trim().to_owned()
}
