//! The switch's own tests in the kernel.

use millstream_kernel::testing;
use millstream_p4_kernel::KernelHook;
use millstream_p4_switch::stf::run_stf;

use crate::common::{kernel_switch, test_files};

#[test]
fn programs_of_each_group_of_constructs_behave_in_the_kernel_as_their_tests_say() {
    if !testing::require() {
        return;
    }
    for name in ["control", "express", "filter", "headers", "sets", "tables", "user"] {
        let (path, commands) = test_files(name);
        let mut switch =
            kernel_switch(&path, KernelHook::Tc).unwrap_or_else(|error| panic!("{name}: {error}"));
        run_stf(&mut switch, &commands).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
