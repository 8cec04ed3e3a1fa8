//! Predictions of the model of the verifier for the programs of object files, a line of JSON each:
//!
//!     verification_effort GENERATION OBJECT...
//!
//! The generation is a version of Linux, as `6.18` is. `bench/verifier_model.py` compares the predictions with a
//! kernel. A walk is given up after five million instructions.

use std::process::ExitCode;

use millstream_isa::generation::VerifierGeneration;
use millstream_object::Object;
use millstream_search::verification_effort;

/// Instructions after which a walk is given up.
const MOST: u64 = 5_000_000;

fn main() -> ExitCode {
    let mut exit = ExitCode::SUCCESS;
    let generation = match std::env::args().nth(1).unwrap_or_default().parse::<VerifierGeneration>() {
        Ok(generation) => generation,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    for path in std::env::args().skip(2) {
        let read = std::fs::read(&path).map_err(|e| e.to_string());
        let object = match read.and_then(|bytes| Object::parse(&path, &bytes).map_err(|e| e.to_string())) {
            Ok(object) => object,
            Err(error) => {
                eprintln!("{path}: {error}");
                exit = ExitCode::from(2);
                continue;
            }
        };
        for program in &object.programs {
            let effort = verification_effort(&object, program.func, generation, MOST);
            let (name, section) = (&program.name, &program.section);
            let (instructions, certain) = (effort.instructions, effort.certain);
            println!(
                "{{\"section\": {section:?}, \"name\": {name:?}, \"instructions\": {instructions}, \
                 \"certain\": {certain}}}"
            );
        }
    }
    exit
}
