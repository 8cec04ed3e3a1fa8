//! The graph of crates in ARCHITECTURE.md is that of their manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::root;

type CrateGraph = BTreeMap<String, BTreeSet<String>>;

/// Names of crates, which stand between commas.
fn names(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The graph of the page, with the layer of each crate: rows of a layer, crates and what they use.
fn drawn() -> (CrateGraph, BTreeMap<String, u32>) {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (mut graph, mut layers) = (CrateGraph::new(), BTreeMap::new());
    let (mut layer, mut row) = (0, Vec::new());
    let rows = text.lines().skip_while(|line| !line.contains("This is the whole graph"));
    for line in rows.take_while(|line| !line.starts_with("### ")).filter(|line| line.starts_with("    ")) {
        let line = &line[4..];
        if let Some(number) = line.split(' ').next().and_then(|word| word.parse().ok()) {
            layer = number;
        }
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let cells = rest.trim_start().split_once("  ");
        let uses = match cells {
            // A row goes on.
            _ if line.starts_with("           ") => line,
            Some((crates, uses)) => {
                row = names(crates).collect();
                uses
            }
            None => {
                row = names(rest).collect();
                ""
            }
        };
        for name in &row {
            graph.entry(name.clone()).or_default().extend(names(uses));
            layers.insert(name.clone(), layer);
        }
    }
    (graph, layers)
}

/// The graph of the manifests, without what only tests use.
fn built() -> CrateGraph {
    let folders = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let edges = |folder: std::path::PathBuf| {
        let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let lines = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        let uses = lines.filter_map(|line| line.strip_prefix("millstream-")?.split(['.', ' ', '=']).next());
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        (name, uses.map(str::to_owned).collect())
    };
    folders.map(edges).collect()
}

#[test]
fn the_graph_of_crates_is_that_of_their_manifests_and_leads_downwards() {
    let ((drawn, layers), built) = (drawn(), built());
    let of = |graph: &CrateGraph, name: &String| graph.get(name).cloned().unwrap_or_default();
    let mut faults = Vec::new();
    for name in built.keys().chain(drawn.keys()).collect::<BTreeSet<_>>() {
        if of(&drawn, name) != of(&built, name) {
            faults.push(format!("{name}: drawn {:?}, built {:?}", of(&drawn, name), of(&built, name)));
        }
        let upwards = of(&built, name).into_iter().filter(|used| layers.get(used) >= layers.get(name));
        faults.extend(upwards.map(|used| format!("{name} uses {used}, which is no lower")));
    }
    assert!(drawn.len() > 40, "{drawn:?}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
