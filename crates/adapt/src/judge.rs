//! Comparison of a form of the program with the program itself, on sampled packets: results and time.

use millstream_native::{SampledPacket, VariantCode};

use crate::replicas::{ReplicaSide, Replicas};

/// Rounds in which both are timed, in turns.
const ROUNDS: usize = 15;
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

/// Compares code for the candidate's tables with the program, and times both.
pub(crate) fn judge(replicas: &mut Replicas, code: &VariantCode, packets: &[SampledPacket]) -> Judgement {
    replicas.set_clocks();
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

#[cfg(test)]
mod tests {
    use millstream_ir::{Func, Module, text::parse_module};
    use millstream_native::{ArrivalMetadata, NativeEngine, NativeOptions, VariantOptions, VariantSupport};

    use super::*;
    use crate::program::AdaptableProgram;
    use crate::settings::PacketModel;

    /// A program with this verdict for all packets.
    fn program(verdict: u32) -> (Module, Func) {
        let text = format!(
            "fn0 \"f\" program(6) returns {{
block0(v0: ptr(ctx)):
  v1: i64 = const.{verdict}
  return v1
}}
"
        );
        let module = parse_module(&text).unwrap_or_else(|e| panic!("{e:?}"));
        let entry = module.funcs.keys().next().expect("one");
        (module, entry)
    }

    /// Otherwise their times say nothing of the code that is installed.
    #[test]
    fn candidates_are_compiled_as_the_program_is() {
        let (module, entry) = program(3);
        let options = NativeOptions { variants: VariantSupport::Installed, ..NativeOptions::default() };
        let engine = NativeEngine::of_module(module, entry, &options).expect("compiled");
        let builder = engine.variant_builder().expect("adaptable");
        let adaptable = AdaptableProgram::new(builder).expect("prepared");
        let replicas =
            Replicas::build(builder, &adaptable, &Vec::new(), PacketModel::Verdicts).expect("compiled");
        let form = builder.module().clone();
        let llvm_passes = Some(builder.llvm_passes().to_owned());
        let options = VariantOptions { llvm_passes, ..VariantOptions::default() };
        let [judged, installed] = [
            replicas.candidate_builder().expect("adaptable").compile(form.clone(), &options),
            builder.compile(form, &VariantOptions::default()),
        ];
        let bytes = |code: Result<VariantCode, _>| code.expect("compiled").timings.bytes;
        assert_eq!(bytes(judged), bytes(installed));
    }

    #[test]
    fn other_verdicts_are_differences() {
        let (module, entry) = program(3);
        let options = NativeOptions { variants: VariantSupport::Installed, ..NativeOptions::default() };
        let engine = NativeEngine::of_module(module, entry, &options).expect("compiled");
        let builder = engine.variant_builder().expect("adaptable");
        let adaptable = AdaptableProgram::new(builder).expect("prepared");
        let mut replicas =
            Replicas::build(builder, &adaptable, &Vec::new(), PacketModel::Verdicts).expect("compiled");
        let packet = SampledPacket { bytes: vec![0; 60], ingress: 1, arrival: ArrivalMetadata::default() };
        let packets = vec![packet; 100];
        for (verdict, is_equal) in [(3, true), (1, false)] {
            let builder = replicas.candidate_builder().expect("adaptable");
            let code = builder.compile(program(verdict).0, &VariantOptions::default());
            let judgement = judge(&mut replicas, &code.expect("compiled"), &packets);
            assert_eq!((judgement.compared, judgement.differences == 0), (100, is_equal));
        }
    }
}
