//! Facts of a module's syntax: types, imports, paths, `impl` blocks and functions, without test code.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Meta, Token, TraitItem, Type, UseTree, Visibility};

use crate::tokens;

/// Definition of a struct, enum, union, trait or type alias.
pub(crate) struct TypeDefinition {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Number of fields of a struct; 0 for other types.
    pub(crate) fields: usize,
}

/// A name that a `use` declaration binds.
pub(crate) struct ImportedName {
    /// Bound name; `*` for all names of the path.
    pub(crate) name: String,
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// A path in code.
pub(crate) struct PathReference {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// A function with a body.
pub(crate) struct FunctionSize {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace.
    pub(crate) lines: usize,
}

/// Facts of one module, without its child modules.
#[derive(Default)]
pub(crate) struct ModuleFacts {
    pub(crate) types: Vec<TypeDefinition>,
    /// Names of all items that are defined here.
    pub(crate) items: BTreeSet<String>,
    pub(crate) imports: Vec<ImportedName>,
    pub(crate) references: Vec<PathReference>,
    /// Self types of inherent `impl` blocks.
    pub(crate) impls: Vec<PathReference>,
    pub(crate) functions: Vec<FunctionSize>,
}

impl ModuleFacts {
    /// Collects the facts of a module's items.
    pub(crate) fn of_items<'i>(items: impl IntoIterator<Item = &'i Item>) -> ModuleFacts {
        let mut facts = ModuleFacts::default();
        for item in items {
            if is_test_only(attributes(item)) || matches!(item, Item::Mod(_)) {
                continue;
            }
            facts.items.extend(item_name(item));
            if let Item::Use(item) = item {
                facts.import(&item.tree, &mut Vec::new());
            } else {
                facts.visit_item(item);
            }
        }
        facts
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        let line = line(tree.span());
        let mut bind = |name: String, last: Option<String>| {
            let path = prefix.iter().cloned().chain(last).collect();
            self.imports.push(ImportedName { name, path, line });
        };
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Name(name) if name.ident == "self" => {
                bind(prefix.last().cloned().unwrap_or_default(), None);
            }
            UseTree::Name(name) => bind(name.ident.to_string(), Some(name.ident.to_string())),
            UseTree::Rename(rename) if rename.ident == "self" => bind(rename.rename.to_string(), None),
            UseTree::Rename(rename) => bind(rename.rename.to_string(), Some(rename.ident.to_string())),
            UseTree::Glob(_) => bind("*".to_owned(), None),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix);
                }
            }
        }
    }

    fn define(&mut self, name: &syn::Ident, fields: usize) {
        self.types.push(TypeDefinition { name: name.to_string(), line: line(name.span()), fields });
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (start, end) = (line(signature.span()), block.brace_token.span.close().end().line);
        let name = signature.ident.to_string();
        self.functions.push(FunctionSize { name, line: start, lines: end + 1 - start });
    }

    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let paths = tokens::paths(tokens).into_iter();
        self.references.extend(paths.map(|(path, line)| PathReference { path, line }));
    }
}

impl<'ast> Visit<'ast> for ModuleFacts {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_only(attributes(item)) {
            return;
        }
        match item {
            Item::Struct(item) => self.define(&item.ident, item.fields.len()),
            Item::Enum(item) => self.define(&item.ident, 0),
            Item::Union(item) => self.define(&item.ident, 0),
            Item::Trait(item) => self.define(&item.ident, 0),
            Item::Type(item) => self.define(&item.ident, 0),
            Item::Fn(item) => self.function(&item.sig, &item.block),
            Item::Impl(item) if item.trait_.is_none() => {
                if let Type::Path(path) = &*item.self_ty {
                    let line = line(item.impl_token.span);
                    self.impls.push(PathReference { path: segments(&path.path), line });
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if let ImplItem::Fn(function) = item {
            if is_test_only(&function.attrs) {
                return;
            }
            self.function(&function.sig, &function.block);
        }
        visit::visit_impl_item(self, item);
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if let TraitItem::Fn(function) = item
            && let Some(block) = &function.default
        {
            self.function(&function.sig, block);
        }
        visit::visit_trait_item(self, item);
    }

    /// A `use` inside a function: it binds nothing for the module.
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut inner = ModuleFacts::default();
        inner.import(&item.tree, &mut Vec::new());
        let paths =
            inner.imports.into_iter().map(|import| PathReference { path: import.path, line: import.line });
        self.references.extend(paths);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.references.push(PathReference { path: segments(path), line: line(path.span()) });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let types = tokens::type_definitions(invocation.tokens.clone()).into_iter();
        for (name, line) in types {
            self.items.insert(name.clone());
            self.types.push(TypeDefinition { name, line, fields: 0 });
        }
        self.tokens(invocation.tokens.clone());
        visit::visit_macro(self, invocation);
    }

    /// Arguments of attributes may be paths: `#[arg(value_parser = parse)]`.
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    /// `pub(in path)` makes no use of the path.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn line(span: Span) -> usize {
    span.start().line
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// Attributes of an item; none for syntax that is newer than the parser.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn item_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Reports whether attributes make an item part of tests alone: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test,
/// ...))]`.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|condition| needs_test(&condition))
        }
        _ => false,
    })
}

/// Reports whether a condition of `cfg` can only hold in tests.
fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            let parts: Vec<bool> = parts.iter().flatten().map(needs_test).collect();
            list.path.is_ident("all") && parts.contains(&true)
                || list.path.is_ident("any") && !parts.is_empty() && !parts.contains(&false)
        }
        Meta::NameValue(_) => false,
    }
}

/// Finds the lines of items that are test code.
pub(crate) fn test_lines(file: &syn::File) -> Vec<RangeInclusive<usize>> {
    let mut ranges = TestRanges(Vec::new());
    if is_test_only(&file.attrs) {
        return vec![1..=usize::MAX];
    }
    ranges.visit_file(file);
    ranges.0
}

struct TestRanges(Vec<RangeInclusive<usize>>);

impl TestRanges {
    /// Notes an item that is test code, and reports whether it is.
    fn note(&mut self, attributes: &[Attribute], span: Span) -> bool {
        let is_test = is_test_only(attributes);
        if is_test {
            self.0.push(span.start().line..=span.end().line);
        }
        is_test
    }
}

impl<'ast> Visit<'ast> for TestRanges {
    fn visit_item(&mut self, item: &'ast Item) {
        if !self.note(attributes(item), item.span()) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !self.note(&item.attrs, item.span()) {
            visit::visit_impl_item_fn(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(text: &str) -> ModuleFacts {
        ModuleFacts::of_items(&syn::parse_file(text).unwrap().items)
    }

    fn paths<'f>(references: impl IntoIterator<Item = &'f PathReference>) -> Vec<String> {
        references.into_iter().map(|reference| reference.path.join("::")).collect()
    }

    #[test]
    fn types_are_collected_with_fields() {
        let facts = facts(
            "struct A { x: u8, y: u8 }\nenum B {}\ntrait C { type Inner; }\ntype D = u8;\nunion E { a: u8 }\n\
             fn f() { struct Local(u8); }\n#[cfg(test)]\nstruct Hidden;\n",
        );
        let types: Vec<(&str, usize, usize)> =
            facts.types.iter().map(|t| (t.name.as_str(), t.line, t.fields)).collect();
        assert_eq!(types, [("A", 1, 2), ("B", 2, 0), ("C", 3, 0), ("D", 4, 0), ("E", 5, 0), ("Local", 6, 1)]);
    }

    #[test]
    fn imports_are_collected_with_their_paths() {
        let facts = facts("pub(crate) use a::{self, b::*, c as d};\nuse super::e;\n");
        let imports: Vec<String> = facts
            .imports
            .iter()
            .map(|import| format!("{} {}", import.name, import.path.join("::")))
            .collect();
        assert_eq!(imports, ["a a", "* a::b", "d a::c", "e super::e"]);
    }

    #[test]
    fn paths_are_collected_from_code_macros_and_attributes() {
        let facts = facts(
            "pub(in crate::hidden) fn f() { use self::a::b; m!(crate::c::D); }\n\
             struct S { #[arg(value_parser = super::parse)] x: Vec<crate::e::F> }\n",
        );
        let found = paths(&facts.references);
        assert_eq!(
            found,
            ["self::a::b", "crate::c::D", "m", "value_parser", "super::parse", "Vec", "crate::e::F"]
        );
    }

    #[test]
    fn functions_are_measured_from_their_signature() {
        let facts = facts(
            "/// Doc.\n#[inline]\nfn f(\n) {\n}\nimpl A {\n    fn g() {}\n    #[cfg(test)]\n    fn h() {}\n}\n",
        );
        let functions: Vec<(&str, usize, usize)> =
            facts.functions.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(functions, [("f", 3, 3), ("g", 7, 1)]);
    }

    #[test]
    fn inherent_blocks_are_collected() {
        assert_eq!(paths(&facts("impl a::B<u8> {}\nimpl Clone for C {}\n").impls), ["a::B"]);
    }

    #[test]
    fn conditions_that_only_tests_meet_are_found() {
        let is_test = |text: &str| is_test_only(attributes(&syn::parse_str::<Item>(text).unwrap()));
        assert!(is_test("#[cfg(test)] mod a;"));
        assert!(is_test("#[cfg(all(unix, test))] mod a;"));
        assert!(is_test("#[cfg(any(test, all(test, unix)))] mod a;"));
        assert!(is_test("#[test] fn a() {}"));
        assert!(!is_test("#[cfg(any(test, unix))] mod a;"));
        assert!(!is_test("#[cfg(not(test))] mod a;"));
        assert!(!is_test("#[cfg(feature = \"test\")] mod a;"));
    }
}
