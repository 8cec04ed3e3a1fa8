//! Functions that are to go through less get the passes that shorten, and no others.

use millstream_bpf::lower::BlockOrder;
use millstream_object::Object;
use millstream_opt::{LoweringChoice, OptimizeOptions, optimize};
use millstream_programs::BALANCER;

#[test]
fn plain_functions_go_through_the_shortening_passes_only() {
    let object = Object::parse("balancer.o", BALANCER.object).unwrap();
    let passes = ["simplify-cfg", "split-stack", "mem2reg", "params", "gvn", "dce", "simplify-cfg"];
    let shortened = OptimizeOptions {
        passes: passes.map(String::from).to_vec(),
        inline: Some(false),
        keep_longer: true,
        ..OptimizeOptions::default()
    };
    let way = LoweringChoice { form: 1, order: BlockOrder::Best };
    let all = (0..object.functions.len() as u32).map(|f| (f, way)).collect();
    let plain =
        OptimizeOptions { ways: all, inline: Some(false), keep_longer: true, ..OptimizeOptions::default() };
    let (shortened, plain) = (optimize(&object, &shortened).unwrap(), optimize(&object, &plain).unwrap());
    let full =
        optimize(&object, &OptimizeOptions { inline: Some(false), ..OptimizeOptions::default() }).unwrap();
    let code = |o: &Object| o.functions.iter().map(|f| f.insns.clone()).collect::<Vec<_>>();
    assert_eq!(code(&plain.object), code(&shortened.object));
    assert_ne!(code(&plain.object), code(&full.object), "the test would not see a difference");
}
