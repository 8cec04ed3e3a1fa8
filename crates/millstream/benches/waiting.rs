//! Times of the work that users wait for.
//!
//! ```text
//! cargo bench -p millstream                    all of them
//! cargo bench -p millstream -- optimize        those with this word in their name
//! ```

use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use millstream::Object;
use millstream::optimize::ObjectOptimizer;
use millstream::prove::{EquivalenceProver, ProofVerdict};
use millstream_click_elements::compile_with;
use millstream_p4::{CompileOptions, SourceLoader};
use millstream_programs::{BALANCER, ROUTER};

/// Slots of generated programs.
const SLOTS: [usize; 2] = [100, 4_600];

/// An XDP program of about so many slots: loads from the packet, arithmetic, and a branch in every eighth
/// statement.
fn generated(slots: usize) -> Object {
    let mut text = String::from(
        "r0 = 0\nr2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr4 = r2\nr4 += 64\nif r4 > r3 goto out\n",
    );
    // Six slots of the beginning, two of the end, five of a statement.
    for at in 0..slots.saturating_sub(8) / 5 {
        let (byte, constant) = (at % 64, at * 7 % 251);
        let _ = write!(text, "r5 = *(u8 *)(r2 + {byte})\nr5 += {constant}\nr5 <<= 2\nr5 &= 255\n");
        let _ = match at % 8 {
            0 => writeln!(text, "if r5 == {constant} goto out"),
            _ => writeln!(text, "r0 += r5"),
        };
    }
    text += "out:\nr0 &= 3\nexit\n";
    let program = millstream_isa::asm::assemble(&text).expect("a program");
    let bytes: Vec<u8> = millstream_isa::encode_all(&program)
        .into_iter()
        .flat_map(millstream_isa::RawInsn::to_bytes)
        .collect();
    let files = millstream_object::RawInput { insns: &bytes, ..Default::default() };
    Object::parse_raw("generated.insns", files, Some("xdp")).expect("a program")
}

fn read_objects(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read object");
    for program in [ROUTER, BALANCER] {
        group.bench_function(program.name, |bencher| {
            bencher.iter(|| Object::parse(program.name, black_box(program.object)).expect("an object"));
        });
    }
    group.finish();
}

fn optimize(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("optimize");
    group.sample_size(10);
    for slots in SLOTS {
        let object = generated(slots);
        group.bench_with_input(BenchmarkId::from_parameter(slots), &object, |bencher, object| {
            bencher.iter(|| ObjectOptimizer::new().optimize(black_box(object)).expect("an object"));
        });
    }
    group.finish();
}

fn prove(criterion: &mut Criterion) {
    let object = generated(SLOTS[0]);
    let optimized = ObjectOptimizer::new().optimize(&object).expect("an object").object;
    let prover = EquivalenceProver::without_solver();
    let is_proven = || {
        let proofs = prover.prove(black_box(&object), black_box(&optimized)).expect("the same programs");
        proofs.iter().all(|proof| matches!(proof.verdict, ProofVerdict::Equivalent))
    };
    assert!(is_proven());
    criterion.bench_function("prove/100", |bencher| bencher.iter(is_proven));
}

fn compile_click(criterion: &mut Criterion) {
    let text = include_str!("../../../conf/router.click");
    let compile = || {
        let statements = millstream_click::parse(black_box(text)).expect("a configuration");
        let graph = millstream_click::flatten(&statements, &[]).expect("a graph");
        compile_with(&graph, &|_, _| Err("no object files".to_owned())).expect("a program")
    };
    criterion.bench_function("compile Click/router", |bencher| bencher.iter(compile));
}

/// A program without files of its own; those of the architecture are part of the front end.
struct OneFile(&'static str);

impl SourceLoader for OneFile {
    fn load(&mut self, path: &str) -> Option<String> {
        (path == "router.p4").then(|| self.0.to_owned())
    }
}

fn compile_p4(criterion: &mut Criterion) {
    let text = include_str!("../../p4/tests/programs/router.p4");
    let compile = || {
        let program = millstream_p4::compile("router.p4", &mut OneFile(text), &CompileOptions::default());
        assert!(program.is_accepted());
        millstream_p4_lower::lower(black_box(&program)).expect("a pipeline")
    };
    criterion.bench_function("compile P4/router", |bencher| bencher.iter(compile));
}

criterion_group!(waiting, read_objects, optimize, prove, compile_click, compile_p4);
criterion_main!(waiting);
