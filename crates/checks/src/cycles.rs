//! Import cycles: modules of one crate that use each other.
//!
//! An arrow leads from a module to each module whose item, or which itself, it names in a `use` declaration,
//! a path, a macro or an attribute; through re-exports, to the module that defines the item. `mod x;` is no
//! arrow. Nor is any use of a module below: a parent may call its children, which use the parent's types. A
//! child that uses its parent's items has an arrow to the parent. A cycle is a strongly connected component
//! of at least two modules.

use std::collections::BTreeMap;

use crate::figure::{FigurePlace, MeasuredFigure};
use crate::files::RustFile;
use crate::modules::ModuleTree;
use crate::repository::SourceRepository;

/// Arrows from each module: the modules used, and the line of the first use.
type ModuleArrows = Vec<BTreeMap<usize, usize>>;

pub(crate) fn measure(repository: &SourceRepository) -> Vec<MeasuredFigure> {
    let cycles = cycles(repository);
    vec![
        MeasuredFigure::count("import_cycles", cycles.clone()),
        MeasuredFigure::maximum("import_cycle_modules", cycles),
    ]
}

fn cycles(repository: &SourceRepository) -> Vec<FigurePlace> {
    let mut found = Vec::new();
    for tree in repository.packages.iter().flat_map(|package| &package.trees) {
        let arrows = arrows(tree);
        let cycles = components(&arrows).into_iter();
        found.extend(cycles.map(|cycle| finding(tree, &arrows, &cycle, &repository.files)));
    }
    found
}

fn arrows(tree: &ModuleTree) -> ModuleArrows {
    let of_module = |module: usize| {
        let facts = &tree.nodes[module].facts;
        let mut arrows = BTreeMap::new();
        let mut add = |path: &[String], line: usize| {
            let Some(target) = tree.resolve(module, path) else { return };
            let to = target.module();
            if tree.is_within(to, module) {
                return;
            }
            let first = arrows.entry(to).or_insert(line);
            *first = line.min(*first);
        };
        for import in &facts.imports {
            add(&import.path, import.line);
        }
        // A single name is an item of the module itself, or one that an import brings.
        for reference in facts.references.iter().filter(|reference| reference.path.len() > 1) {
            add(&reference.path, reference.line);
        }
        arrows
    };
    (0..tree.nodes.len()).map(of_module).collect()
}

fn finding(tree: &ModuleTree, arrows: &ModuleArrows, cycle: &[usize], files: &[RustFile]) -> FigurePlace {
    let name = |module: usize| tree.nodes[module].name.as_str();
    let path = |module: usize| files[tree.nodes[module].file].path.as_str();
    let names: Vec<&str> = cycle.iter().map(|module| name(*module)).collect();
    let mut text = format!("{} modules use each other: {}", cycle.len(), names.join(", "));
    for &from in cycle {
        for (&to, line) in arrows[from].iter().filter(|(to, _)| cycle.contains(to)) {
            text += &format!("\n    {}:{line}: {} -> {}", path(from), name(from), name(to));
        }
    }
    FigurePlace { path: path(cycle[0]).to_owned(), line: 0, weight: cycle.len() as f64, text }
}

/// Finds the strongly connected components of at least two modules (Tarjan, "Depth-first search and linear
/// graph algorithms", 1972), each in ascending order.
fn components(arrows: &ModuleArrows) -> Vec<Vec<usize>> {
    let mut search = ComponentSearch {
        arrows,
        order: vec![None; arrows.len()],
        low: vec![0; arrows.len()],
        stack: Vec::new(),
        visited: 0,
        found: Vec::new(),
    };
    for module in 0..arrows.len() {
        if search.order[module].is_none() {
            search.visit(module);
        }
    }
    search.found.sort();
    search.found
}

struct ComponentSearch<'a> {
    arrows: &'a ModuleArrows,
    /// Position of each visited module in the order of visits.
    order: Vec<Option<usize>>,
    /// Least position that is known to be reached from each module.
    low: Vec<usize>,
    /// Visited modules that are in no component yet.
    stack: Vec<usize>,
    visited: usize,
    found: Vec<Vec<usize>>,
}

impl ComponentSearch<'_> {
    /// Visits a module. The recursion is no deeper than a crate has modules.
    fn visit(&mut self, module: usize) {
        let at = self.visited;
        self.visited += 1;
        (self.order[module], self.low[module]) = (Some(at), at);
        self.stack.push(module);
        for &to in self.arrows[module].keys() {
            match self.order[to] {
                None => {
                    self.visit(to);
                    self.low[module] = self.low[module].min(self.low[to]);
                }
                Some(order) if self.stack.contains(&to) => self.low[module] = self.low[module].min(order),
                Some(_) => {}
            }
        }
        if self.low[module] == at {
            let start = self.stack.iter().rposition(|on_stack| *on_stack == module).unwrap_or_default();
            let mut component = self.stack.split_off(start);
            component.sort_unstable();
            if component.len() > 1 {
                self.found.push(component);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::sample;

    /// Returns the modules of the cycles of a library.
    fn cycles(text: &str) -> Vec<String> {
        let figures = measure(&sample(&[("crates/a/src/lib.rs", text)]));
        let first_line = |finding: &FigurePlace| finding.text.lines().next().unwrap_or_default().to_owned();
        let lines = figures[0].findings.iter().map(first_line);
        lines.map(|line| line.split_once(": ").unwrap().1.to_owned()).collect()
    }

    #[test]
    fn modules_that_use_each_other_are_a_cycle() {
        assert_eq!(
            cycles("mod b { use crate::c::C; pub struct B; }\nmod c { use super::b::B; pub struct C; }\n"),
            ["a::b, a::c"]
        );
        assert_eq!(cycles("mod b { use crate::c::C; }\nmod c { pub struct C; }\n"), [""; 0]);
    }

    #[test]
    fn paths_macros_and_attributes_are_arrows() {
        let with = |code: &str| cycles(&format!("mod b {{ use crate::c::C; }}\nmod c {{ {code} }}\n"));
        assert_eq!(with("fn f() { super::b::g(); }"), ["a::b, a::c"]);
        assert_eq!(with("fn f() { m!(x, crate::b::g()); }"), ["a::b, a::c"]);
        assert_eq!(with("#[arg(value_parser = crate::b::g)] struct C;"), ["a::b, a::c"]);
        assert_eq!(with("fn f() { use crate::b::g; }"), ["a::b, a::c"]);
        assert_eq!(with("#[cfg(test)] mod tests { use crate::b::g; }"), [""; 0]);
        assert_eq!(with("#[test] fn t() { crate::b::g(); }"), [""; 0]);
    }

    #[test]
    fn a_parent_may_use_its_children() {
        let with =
            |code: &str| cycles(&format!("{code}\nmod b {{ use super::R; pub struct B; }}\nstruct R;\n"));
        for code in ["pub use b::B;", "pub(crate) use b::*;", "use b::B;", "fn f() { b::g(); }"] {
            assert_eq!(with(code), [""; 0], "{code}");
        }
    }

    #[test]
    fn reexports_lead_to_the_defining_module() {
        // `c` uses an item of `b` through the root; the root uses `c`.
        let text =
            "pub use b::B;\nuse c::C;\nmod b { pub struct B; }\nmod c { use crate::B; pub struct C; }\n";
        assert_eq!(cycles(text), [""; 0]);
        // A re-export of what is no child's is an arrow.
        let text = "mod b { pub use super::c::C; pub struct B; }\nmod c { use super::b::B; pub struct C; }\n";
        assert_eq!(cycles(text), ["a::b, a::c"]);
    }

    #[test]
    fn cycles_are_counted_and_the_largest_is_measured() {
        let text = "mod b { use super::c::C; }\nmod c { use super::d::D; }\nmod d { use super::b::B; }\n\
                    mod e { use super::f::F; use super::b::B; }\nmod f { use super::e::E; }\n";
        let figures = measure(&sample(&[("crates/a/src/lib.rs", text), ("crates/a/src/bin/x.rs", "")]));
        assert_eq!(figures.iter().map(MeasuredFigure::highest).collect::<Vec<_>>(), [2.0, 3.0]);
        assert_eq!(
            figures[0].findings[0].to_string(),
            "crates/a/src/lib.rs: 3 modules use each other: a::b, a::c, a::d\n    \
             crates/a/src/lib.rs:1: a::b -> a::c\n    \
             crates/a/src/lib.rs:2: a::c -> a::d\n    \
             crates/a/src/lib.rs:3: a::d -> a::b"
        );
    }
}
