//! Section 6.5: a NAT whose connections are forgotten as fast as user space can delete them, so that packets
//! make new ones all the time, with a session and without, in turn.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millstream_kernel::{KernelMap, testing};
use millstream_lab::stats::{self, RatioEstimate};
use millstream_lab::workload::BuiltinWorkload;
use millstream_lab::{RigConfig, os};
use millstream_programs::NAT;
use millstream_programs::nat::CONNECTIONS;
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;
use millstream_specialize::SessionReport;
use serde::Serialize;

use super::{plane, seconds};
use crate::bars::{asked, keep};
use crate::data_planes::in_turn;

#[derive(Debug, Serialize)]
struct Churn {
    connections: usize,
    slice_s: f64,
    /// Entries that were deleted, two for each connection, and packets, of all slices.
    deleted: u64,
    packets: u64,
    generations: usize,
    /// Nanoseconds a packet in each slice without a session, and with one.
    slices: Vec<(f64, f64)>,
    /// With a session, over without.
    ratio: RatioEstimate,
}

#[test]
fn a_nat_whose_connections_are_forgotten_all_the_time() {
    if !testing::require() {
        return;
    }
    let builtin = BuiltinWorkload::generated(NAT, 10_000);
    let slice = Duration::from_secs_f64(seconds().min(3.0));
    let deleted = AtomicU64::new(0);
    let (mut generations, mut packets) = (0, 0);
    let slices = plane(builtin, FlowLocality::NONE, RigConfig::default()).placed(
        |_| (),
        |placed, live| {
            let map = live.map(CONNECTIONS).expect("the table").try_clone().expect("a descriptor");
            let slices = in_turn(asked("MILLSTREAM_SLICES", 2) as usize, |with| {
                live.roll_back("another slice", &mut |_| ()).expect("the original");
                let mut tell = |r: &SessionReport| {
                    generations += usize::from(matches!(r, SessionReport::Specialised { .. }))
                };
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        // Not on the CPU that handles packets.
                        let other = os::allowed_cpus().into_iter().find(|cpu| *cpu != placed.rig.cpu());
                        other.map(os::pin_to_cpu).transpose().expect("moved");
                        forget(&map, &stop, &deleted);
                    });
                    let spent = placed.spent(with.then_some(&mut *live), slice, &mut tell);
                    stop.store(true, Ordering::SeqCst);
                    spent
                })
            });
            packets = placed.rig.counts().expect("counts").received;
            slices
        },
    );
    let (deleted, connections) = (deleted.into_inner(), builtin.size);
    let (ratio, slice_s) = (stats::judge(&slices, &mut Rng::new(1)), slice.as_secs_f64());
    let churn = Churn { connections, slice_s, deleted, packets, generations, slices, ratio };
    keep("specialize-churn.json", &churn);
    assert!(churn.deleted > 0, "the table did not change: {churn:?}");
    assert!(churn.slices.iter().all(|(without, with)| *without > 0.0 && *with > 0.0), "{churn:?}");
}

/// Deletes all entries, again and again: new connections have other ports than those before.
fn forget(map: &KernelMap, stop: &AtomicBool, deleted: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for (key, _) in map.entries().expect("what is there").iter() {
            let gone = map.delete(key).expect("it can be deleted");
            deleted.fetch_add(u64::from(gone), Ordering::Relaxed);
        }
    }
}
