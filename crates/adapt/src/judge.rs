//! Comparison of a form of the program with the program itself, on sampled packets: results and time.

use millstream_native::{PacketBatch, SampledPacket, VariantCode};

use crate::replicas::{ReplicaSide, Replicas};
use crate::settings::PacketModel;

/// Rounds in which both are timed, in turns.
const ROUNDS: usize = 15;
/// `XDP_REDIRECT`: the verdict with a target.
const REDIRECT: u32 = 4;

/// Result for a packet: verdict and target, or output and number; and the bytes.
pub(crate) type PacketOutput = (u64, u64, Vec<u8>);

/// Verdict on a form of the program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judgement {
    /// Packets that were compared.
    pub(crate) compared: u64,
    /// Batches with other results, or other contents of tables behind all of them.
    pub(crate) differences: u64,
    /// Median time as a share of the program's.
    pub(crate) time: f64,
}

/// Results of the packets of a batch.
pub(crate) fn outputs(batch: &PacketBatch, model: PacketModel) -> Vec<PacketOutput> {
    match model {
        PacketModel::Verdicts => (0..batch.len())
            .map(|at| {
                let verdict = batch.verdict(at);
                let target = if verdict == REDIRECT { batch.target(at) } else { 0 };
                (verdict.into(), target.into(), batch.bytes(at).to_vec())
            })
            .collect(),
        PacketModel::Graph => {
            batch.sent().map(|(bytes, output, number)| (output, number as u64, bytes.to_vec())).collect()
        }
    }
}

/// Compares and times.
pub(crate) fn judge(replicas: &mut Replicas, code: &VariantCode, packets: &[SampledPacket]) -> Judgement {
    let size = replicas.batch_size();
    let mut differences = 0;
    for chunk in packets.chunks(size) {
        replicas.run(ReplicaSide::Reference, None, chunk);
        let expected = replicas.outputs();
        replicas.run(ReplicaSide::Candidate, Some(code), chunk);
        differences += u64::from(replicas.outputs() != expected);
    }
    differences += u64::from(!replicas.has_equal_state());
    let mut shares = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let mut times = [0, 0];
        let sides = [(ReplicaSide::Reference, None), (ReplicaSide::Candidate, Some(code))];
        // Whoever is second finds the packets in the caches.
        for turn in [round % 2, (round + 1) % 2] {
            let (side, code) = sides[turn];
            times[turn] = packets.chunks(size).map(|chunk| replicas.run(side, code, chunk)).sum();
        }
        let [program, variant] = times.map(|time: u64| time.max(1) as f64);
        shares.push(variant / program);
    }
    shares.sort_unstable_by(f64::total_cmp);
    Judgement { compared: packets.len() as u64, differences, time: shares[ROUNDS / 2] }
}
