//! The page of classes and arguments agrees with the classes, and the classes are right: an argument without
//! effect is accepted, and a refused one is refused.

use std::path::Path;

use millstream_click::{Error, flatten, parse};
use millstream_click_elements::{LIBRARY, compile, reference};

#[test]
fn the_page_is_what_the_classes_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/click-classes.md");
    let made = reference();
    if std::env::var_os("MILLSTREAM_BLESS").is_some() {
        std::fs::write(&path, &made).expect("docs/ can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/click-classes.md is not what the classes say: MILLSTREAM_BLESS=1 writes it");
}

#[test]
fn every_class_and_argument_says_what_becomes_of_it() {
    let page = reference();
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| argument")) {
        let fate = line.split('|').nth(2).unwrap_or_default().trim();
        let why = fate.split_once(": ").map_or("", |(_, why)| why);
        assert!(fate == "implemented" || why.len() > 10, "{line}");
    }
    let abouts = page.split("\n## ").skip(1).map(|section| section.lines().nth(2).unwrap_or_default());
    for about in abouts {
        assert!(about.ends_with('.') && about.len() > 15, "{about:?}");
    }
}

#[test]
fn no_class_is_declared_twice() {
    let mut names: Vec<&str> = LIBRARY.all().map(|class| class.name).collect();
    names.sort_unstable();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert_eq!(twice, [""; 0]);
}

fn compiled(text: &str) -> Result<(), Vec<Error>> {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    compile(&graph).map(drop)
}

#[test]
fn arguments_are_judged_by_name_and_by_position() {
    for text in [
        "FromDevice(eth0, true, 96, SNIFFER false, BURST 8, HEADROOM 100) -> Discard;",
        "InfiniteSource(abc, 5, 32, true) -> Discard;",
        "InfiniteSource(abc, LIMIT 5, 32, true) -> Discard;",
        "FromDump(a, false, ACTIVE 1, SAMPLE 1) -> Discard;",
        "Idle -> Queue(BLOCKING no) -> Discard;",
        "Idle -> r :: RoundRobinSched(2) -> Discard; Idle -> [1] r;",
    ] {
        assert_eq!(compiled(text), Ok(()), "{text}");
    }
    for (text, why) in [
        ("FromDevice(eth0, maybe) -> Discard;", "truth value"),
        ("FromDevice(eth0, true, 13) -> Discard;", "from 14"),
        ("FromDevice(eth0, HEADROOM 217) -> Discard;", "216"),
        ("FromDevice(eth0, ACTIVE false) -> Discard;", "ACTIVE false"),
        ("FromDevice(eth0, OUTBOUND true) -> Discard;", "receives"),
        ("InfiniteSource(abc, 5, 0) -> Discard;", "less than 1"),
        ("InfiniteSource(abc, 5, 1, true, 7) -> Discard;", "no further argument"),
        ("InfiniteSource(LIMIT 5, LIMIT 6) -> Discard;", "LIMIT"),
        ("FromDump(a, SAMPLE 0.5) -> Discard;", "SAMPLE 0.5"),
        ("FromDump(a, START 3) -> Discard;", "START"),
        ("FromDevice(a) -> Null(FOO 1) -> Discard;", "no further argument"),
        ("Idle -> r :: RoundRobinSched(1) -> Discard; Idle -> [1] r;", "nobody would pull"),
        ("Idle -> s :: StrideSched(1, 0) -> Discard; Idle -> [1] s;", "without tickets"),
        ("Idle -> s :: StrideSched(1) -> Discard; Idle -> [1] s;", "one each"),
        ("FromDevice(a) -> Queue -> ReplayUnqueue(TIMING_FNT x) -> Discard;", "TIMING_FNT x"),
        ("Idle -> r :: MultiReplayUnqueue -> Discard; Idle -> [1] r [1] -> Discard;", "several inputs"),
        ("FromDevice(a) -> IPRewriter(pass, GUARANTEE 5) -> Discard;", "MAPPING_CAPACITY of 1024"),
    ] {
        let errors = compiled(text).expect_err(text);
        assert!(errors.iter().any(|error| error.message.contains(why)), "{text}: {errors:?}");
    }
}
