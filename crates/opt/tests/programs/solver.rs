//! The solver of tests.

use millstream_prove::Solver;

/// The solver, if it is there: without one only equal terms are proven. In CI it has to be.
pub(crate) fn solver() -> Option<Solver> {
    let solver = Solver::new("z3");
    match solver.version() {
        Ok(_) => Some(solver),
        Err(e) => {
            assert!(std::env::var("CI").is_err(), "{e}");
            eprintln!("skipped: the part that needs a solver: {e}");
            None
        }
    }
}
