//! Programs made for the kernel of this machine are accepted by it, and shorter where it knows more than
//! others.

use millstream_kernel::testing;
use millstream_object::Object;
use millstream_opt::{KernelFeatures, OptimizeOptions, check};
use millstream_programs::{BALANCER, DataPlaneProgram, NAT, ROUTER};

fn slots(program: DataPlaneProgram, host: Option<KernelFeatures>) -> usize {
    let object = Object::parse(program.name, program.object).unwrap();
    let checked = check(&object, OptimizeOptions { host, ..OptimizeOptions::default() }).unwrap();
    assert!(checked.is_clean(), "{}: {:?}", program.name, checked.programs);
    checked.optimized.functions.iter().map(|f| f.after).sum()
}

#[test]
fn programs_for_this_kernel_are_accepted_and_shorter() {
    if !testing::require() {
        return;
    }
    let host = KernelFeatures::probe();
    for program in [ROUTER, BALANCER] {
        slots(program, Some(host));
    }
    let (here, any) = (slots(NAT, Some(host)), slots(NAT, None));
    assert!(here < any || !host.elides_null_checks, "{here} slots here, {any} anywhere");
}
