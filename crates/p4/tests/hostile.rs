//! Broken programs: nothing panics, and errors have places.
//!
//! `MILLSTREAM_HOSTILE_RUNS=N` changes each program N times; `MILLSTREAM_P4_PROGRAMS=DIR` adds the programs
//! of a folder.

mod common;

use std::path::{Path, PathBuf};

use millstream_rng::Rng;

/// Texts that are put into programs.
const PARTS: [&str; 36] = [
    "<",
    ">",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    "...",
    "_",
    "{#}",
    "&&&",
    "..",
    "#if 1\n",
    "#endif\n",
    "#define A A A\n",
    "A",
    "0",
    "-1",
    "8w255",
    "32s0x7f",
    "99999999999999999999",
    "bit<0>",
    "int",
    "T<T>",
    "this",
    "error",
    "list<",
    "tuple<",
    "\"",
    "/*",
    "@a[",
    "apply",
    "é",
];

fn programs() -> Vec<(PathBuf, String)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let more = std::env::var("MILLSTREAM_P4_PROGRAMS").ok().map(PathBuf::from);
    let files =
        std::iter::once(own).chain(more).flat_map(|folder| walkdir::WalkDir::new(folder).sort_by_file_name());
    let paths = files.filter_map(Result::ok).map(|file| file.into_path());
    let programs = paths.filter(|path| path.extension().is_some_and(|e| e == "p4"));
    programs.filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text))).collect()
}

/// A number below `limit`, or 0 if that is 0.
fn below(random: &mut Rng, limit: usize) -> usize {
    random.below(limit.max(1) as u64) as usize
}

/// Cuts, doubles, swaps or inserts words of a text.
fn changed(text: &str, random: &mut Rng) -> String {
    let mut words: Vec<&str> = text.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_').collect();
    for _ in 0..=below(random, 4) {
        let at = below(random, words.len());
        let other = below(random, words.len());
        match below(random, 5) {
            _ if words.is_empty() => words.push("x"),
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[other]),
            2 => words.swap(at, other),
            3 => words.truncate(at.max(words.len() / 2)),
            _ => words.insert(at, PARTS[below(random, PARTS.len())]),
        }
    }
    words.concat()
}

#[test]
fn changed_programs_do_not_panic() {
    let runs: usize =
        std::env::var("MILLSTREAM_HOSTILE_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(500);
    let mut random = Rng::new(1);
    for (path, text) in programs() {
        for _ in 0..runs {
            let text = changed(&text, &mut random);
            let start = std::time::Instant::now();
            common::through(&text, path.parent());
            // Far more than it takes on a busy machine.
            assert!(start.elapsed().as_secs() < 300, "hangs: {text}");
        }
    }
}

#[test]
fn deep_and_long_programs_end() {
    let repeated = |open: &str, middle: &str, close: &str| {
        format!("const int a = {}{middle}{};", open.repeat(50_000), close.repeat(50_000))
    };
    let nested_types = format!("const {}bit{} a = 1;", "tuple<".repeat(50_000), ">".repeat(50_000));
    let doubled: String =
        (1..200).map(|n| format!("typedef tuple<t{}, t{}> t{n};\n", n - 1, n - 1)).collect();
    let squares: String = (1..200).map(|n| format!("const int a{n} = a{} * a{};\n", n - 1, n - 1)).collect();
    for text in [
        repeated("(", "1", ")"),
        repeated("{", "1", "}"),
        repeated("-", "1", ""),
        repeated("1+", "1", ""),
        repeated("a<bit<(", "1", ")>"),
        repeated("(bit<(", "1", ")>) 1"),
        repeated("a.b[", "1", "]"),
        nested_types,
        format!("typedef bit t0;\n{doubled}const t199 a = 1;"),
        format!("const int a0 = 3;\n{squares}"),
        format!("control c() {{ apply {} }}", "if (true) {".repeat(50_000)),
        format!("control c() {{ apply {{ {} }} }}", "if (true) ; else ".repeat(50_000)),
        "#define A B B\n#define B C C\n".to_owned()
            + &(0..64).map(|n| format!("#define C{n} C{} C{}\n", n + 1, n + 1)).collect::<String>()
            + "C0",
        "#define F(x) x x\n".to_owned() + &"F(".repeat(5_000) + "1" + &")".repeat(5_000),
        "#if ".to_owned() + &"(".repeat(50_000),
        "#include \"program.p4\"\n".repeat(100),
        format!("const int a = 1 << {};", "9".repeat(50)),
        "/*".to_owned(),
    ] {
        assert!(!common::through(&text, None).is_accepted() || text.len() < 10_000);
    }
}

#[test]
fn the_sample_is_accepted() {
    for (path, text) in programs().into_iter().take(1) {
        let program = common::through(&text, path.parent());
        let messages: Vec<String> = program
            .diagnostics
            .iter()
            .filter(|d| d.is_error())
            .map(|d| d.render(&program.sources).to_string())
            .collect();
        assert!(messages.is_empty(), "{}", messages.join("\n"));
    }
}
