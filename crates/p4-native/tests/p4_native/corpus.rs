//! Random packets and entries through programs, by the interpreter and natively.
//!
//! `MILLSTREAM_P4_PROGRAMS=FOLDER:FOLDER MILLSTREAM_PACKETS=N` adds the programs of folders, and sends N
//! packets through each program. A program's STF file gives packets to begin with.

use std::path::Path;

use millstream_p4_switch::stf::{StfCommand, parse_stf};

use crate::common::{extra_folders, files, lowered, native_comparison, own_folder};
use crate::comparison::ComparisonResult;

/// Packets of the STF file of a program.
pub(crate) fn samples(program: &Path) -> Vec<Vec<u8>> {
    let stem = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let names = ["", "-bmv2", "_ubpf"].map(|end| program.with_file_name(format!("{stem}{end}.stf")));
    let texts = names.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    let lines = texts.filter_map(|text| parse_stf(&text).ok()).flatten();
    let data = |line: millstream_p4_switch::stf::StfLine| match line.command {
        StfCommand::Packet(_, data) => Some(data),
        _ => None,
    };
    lines.filter_map(data).collect()
}

#[test]
fn random_packets_and_entries_have_the_same_results_in_the_interpreter_and_natively() {
    let packets = std::env::var("MILLSTREAM_PACKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let (mut compared, mut sent, mut left, mut differences) = (0, 0, 0, Vec::new());
    for path in extra_folders().into_iter().chain([own_folder()]).flat_map(|folder| files(&folder, "p4")) {
        // Programs that are not supported are tests of other parts.
        let Ok(program) = lowered(&path, None) else { continue };
        match native_comparison(&program, samples(&path)).and_then(|mut both| both.run(packets)) {
            Ok(ComparisonResult { packets, answers }) => {
                (compared, sent, left) = (compared + 1, sent + packets, left + answers);
            }
            Err(difference) => differences.push(format!("{}: {difference}", path.display())),
        }
    }
    println!("programs: {compared}, packets: {sent}, packets that left: {left}");
    assert!(compared >= 9 && left > compared, "too little was compared");
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}
