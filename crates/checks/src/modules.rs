//! Module trees of crates, and the modules that a path leads to.
//!
//! A path is resolved as far as the source tells: through child modules, items, imports, re-exports and
//! globs. A name that is found nowhere, as one that a macro makes, counts as an item of the module in which
//! it is looked up.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Expr, ExprLit, Item, ItemMod, Lit, Meta};

use crate::facts::{ModuleFacts, attributes, is_test_only};
use crate::files::RustFile;

/// Bound of the chain of imports that is followed for one name.
const MAX_CHAIN: usize = 16;

/// A module of a crate.
pub(crate) struct ModuleNode {
    /// Name with the crate's: `click::elements::ip`.
    pub(crate) name: String,
    /// Index of its file.
    pub(crate) file: usize,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    pub(crate) facts: ModuleFacts,
}

/// Modules of a library, an executable, an example or a build script.
pub(crate) struct ModuleTree {
    /// Modules; the first is the root, and a parent comes before its children.
    pub(crate) nodes: Vec<ModuleNode>,
    /// Files of modules that are compiled for tests alone.
    pub(crate) test_files: BTreeSet<usize>,
}

/// Target of a path: a module, or an item of a module.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PathTarget {
    Module(usize),
    Item(usize, String),
}

impl PathTarget {
    /// Returns the module itself, or the one that defines the item.
    pub(crate) fn module(&self) -> usize {
        match self {
            PathTarget::Module(module) | PathTarget::Item(module, _) => *module,
        }
    }
}

impl ModuleTree {
    /// Builds the tree of the crate whose root is a file.
    pub(crate) fn build(package: &str, root: usize, files: &[RustFile]) -> ModuleTree {
        let mut tree = ModuleTree { nodes: Vec::new(), test_files: BTreeSet::new() };
        let path = &files[root].path;
        let name = match path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") {
            true => package.to_owned(),
            false => path.trim_start_matches("crates/").trim_end_matches(".rs").to_owned(),
        };
        let folder = folder_of(path).to_owned();
        TreeBuilder { tree: &mut tree, files }.add(name, root, None, &files[root].syntax.items, &folder);
        tree
    }

    /// Reports whether a file holds a module that is not compiled for tests alone.
    pub(crate) fn has_file(&self, file: usize) -> bool {
        self.nodes.iter().any(|node| node.file == file)
    }

    /// Finds the target of a path in a module. Paths to other crates and to what functions define have none.
    pub(crate) fn resolve(&self, module: usize, path: &[String]) -> Option<PathTarget> {
        self.resolve_within(module, path, MAX_CHAIN)
    }

    fn resolve_within(&self, module: usize, path: &[String], chain: usize) -> Option<PathTarget> {
        let chain = chain.checked_sub(1)?;
        let (first, mut rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => PathTarget::Module(0),
            "self" => PathTarget::Module(module),
            "super" => PathTarget::Module(self.nodes[module].parent?),
            name => self.lookup(module, name, chain)?,
        };
        while let (PathTarget::Module(at), Some((name, after))) = (&target, rest.split_first()) {
            target = match name.as_str() {
                "super" => PathTarget::Module(self.nodes[*at].parent?),
                name => {
                    self.lookup(*at, name, chain).unwrap_or_else(|| PathTarget::Item(*at, name.to_owned()))
                }
            };
            rest = after;
        }
        Some(target)
    }

    /// Finds a name in the scope of a module.
    fn lookup(&self, module: usize, name: &str, chain: usize) -> Option<PathTarget> {
        let chain = chain.checked_sub(1)?;
        let node = &self.nodes[module];
        if let Some(child) = node.children.get(name) {
            return Some(PathTarget::Module(*child));
        }
        if node.facts.items.contains(name) {
            return Some(PathTarget::Item(module, name.to_owned()));
        }
        let imports = || node.facts.imports.iter();
        // `use name;` gives a name of another crate, or a macro, a second time.
        let is_itself = |path: &[String]| matches!(path, [only] if only == name);
        if let Some(import) = imports().find(|import| import.name == name && !is_itself(&import.path)) {
            return self.resolve_within(module, &import.path, chain);
        }
        imports().filter(|import| import.name == "*").find_map(|import| {
            match self.resolve_within(module, &import.path, chain)? {
                PathTarget::Module(other) if other != module => self.lookup(other, name, chain),
                _ => None,
            }
        })
    }

    /// Reports whether a module is another one, or lies below it.
    pub(crate) fn is_within(&self, module: usize, ancestor: usize) -> bool {
        let mut at = Some(module);
        while let Some(module) = at {
            if module == ancestor {
                return true;
            }
            at = self.nodes[module].parent;
        }
        false
    }
}

struct TreeBuilder<'b> {
    tree: &'b mut ModuleTree,
    files: &'b [RustFile],
}

impl TreeBuilder<'_> {
    /// Adds a module whose child files lie in a folder, and all below it.
    fn add(
        &mut self,
        name: String,
        file: usize,
        parent: Option<usize>,
        items: &[Item],
        folder: &str,
    ) -> usize {
        let at = self.tree.nodes.len();
        let facts = ModuleFacts::of_items(items);
        let node = ModuleNode { name: name.clone(), file, parent, children: BTreeMap::new(), facts };
        self.tree.nodes.push(node);
        for item in items {
            let Item::Mod(child) = item else { continue };
            let ident = child.ident.to_string();
            if is_test_only(attributes(item)) {
                self.mark_tests(child, file, folder);
                continue;
            }
            let name = format!("{name}::{ident}");
            let added = match &child.content {
                Some((_, items)) => Some(self.add(name, file, Some(at), items, &format!("{folder}/{ident}"))),
                None => self.child_file(child, file, folder).map(|(file, folder)| {
                    let files = self.files;
                    self.add(name, file, Some(at), &files[file].syntax.items, &folder)
                }),
            };
            if let Some(added) = added {
                self.tree.nodes[at].children.insert(ident, added);
            }
        }
        at
    }

    /// Notes the files of a module that only tests have.
    fn mark_tests(&mut self, module: &ItemMod, file: usize, folder: &str) {
        let files = self.files;
        let (items, file, folder) = match &module.content {
            Some((_, items)) => (items, file, format!("{folder}/{}", module.ident)),
            None => match self.child_file(module, file, folder) {
                Some((file, folder)) if self.tree.test_files.insert(file) => {
                    (&files[file].syntax.items, file, folder)
                }
                _ => return,
            },
        };
        for item in items {
            if let Item::Mod(child) = item {
                self.mark_tests(child, file, &folder);
            }
        }
    }

    /// Finds the file of `mod name;`, and the folder of its children.
    fn child_file(&self, module: &ItemMod, file: usize, folder: &str) -> Option<(usize, String)> {
        let find = |path: &str| self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok();
        if let Some(path) = path_attribute(module) {
            let path = normal(&format!("{}/{path}", folder_of(&self.files[file].path)));
            return find(&path).map(|found| (found, folder_of(&path).to_owned()));
        }
        let below = format!("{folder}/{}", module.ident);
        find(&format!("{below}.rs")).or_else(|| find(&format!("{below}/mod.rs"))).map(|found| (found, below))
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the argument of `#[path = "..."]`.
fn path_attribute(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Removes `..` from a path.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "" | "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{SourceRepository, sample};

    fn tree(repository: &SourceRepository) -> &ModuleTree {
        &repository.packages[0].trees[0]
    }

    fn target(tree: &ModuleTree, from: &str, path: &str) -> Option<String> {
        let from = tree.nodes.iter().position(|node| node.name == from).unwrap();
        let path: Vec<String> = path.split("::").map(str::to_owned).collect();
        tree.resolve(from, &path).map(|target| match target {
            PathTarget::Module(module) => tree.nodes[module].name.clone(),
            PathTarget::Item(module, item) => format!("{} {item}", tree.nodes[module].name),
        })
    }

    #[test]
    fn modules_are_found_in_files_folders_and_text() {
        let repository = sample(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\nmod d { mod e; }\n#[path = \"odd/f.rs\"]\nmod g;\n"),
            ("crates/a/src/b.rs", "mod h;\n"),
            ("crates/a/src/b/h.rs", ""),
            ("crates/a/src/c/mod.rs", "mod i;\n"),
            ("crates/a/src/c/i.rs", ""),
            ("crates/a/src/d/e.rs", ""),
            ("crates/a/src/odd/f.rs", ""),
        ]);
        let names: Vec<&str> = tree(&repository).nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a", "a::b", "a::b::h", "a::c", "a::c::i", "a::d", "a::d::e", "a::g"]);
    }

    #[test]
    fn paths_lead_to_the_module_that_defines_the_item() {
        let repository = sample(&[(
            "crates/a/src/lib.rs",
            "mod b { pub struct B; pub mod inner { pub fn f() {} } }\n\
             mod c { pub use super::b::*; use std::fmt; use super::b::inner as other; }\n\
             pub use b::B;\npub struct Root;\n",
        )]);
        let tree = tree(&repository);
        let of = |from: &str, path: &str| target(tree, from, path);
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("a::c", "crate::B"), some("a::b B"));
        assert_eq!(of("a::c", "crate::Root"), some("a Root"));
        assert_eq!(of("a", "c::B::new"), some("a::b B"));
        assert_eq!(of("a::c", "other::f"), some("a::b::inner f"));
        assert_eq!(of("a::b::inner", "super::super::c"), some("a::c"));
        assert_eq!(of("a", "b::made_by_a_macro"), some("a::b made_by_a_macro"));
        assert_eq!(of("a::c", "fmt::Debug"), None);
        assert_eq!(of("a::c", "unknown::f"), None);
    }

    #[test]
    fn imports_in_a_circle_end() {
        let repository = sample(&[(
            "crates/a/src/lib.rs",
            "mod b { pub use super::c::*; }\nmod c { pub use super::b::*; pub use super::b::x; }\nuse vec;\n",
        )]);
        assert!(target(tree(&repository), "a::b", "x").is_some());
        assert_eq!(target(tree(&repository), "a", "vec"), None);
    }
}
