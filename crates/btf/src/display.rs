//! Types as C writes them.

use crate::{Btf, TypeId, TypeKind};

/// Types nested deeper, or beyond this number of types, are shown as `...`: names are for people, and hostile
/// types would have names of unlimited length.
const MAX_DEPTH: usize = 16;
const MAX_VISITS: usize = 256;

/// Remaining limits on a name.
struct NameLimits {
    depth: usize,
    visits: usize,
}

impl NameLimits {
    fn new() -> NameLimits {
        NameLimits { depth: MAX_DEPTH, visits: MAX_VISITS }
    }
}

impl Btf {
    /// The type's name as in C: `struct task_struct *`, `const char *`, `unsigned int[4]`, `int (*)(void *)`.
    /// Never fails: a type without a name in C is shown as `?` or `...`.
    pub fn c_name(&self, id: TypeId) -> String {
        self.declare(id, String::new(), &mut NameLimits::new())
    }

    /// The declaration of something called `name` of this type: `char buf[16]`.
    pub fn c_declaration(&self, id: TypeId, name: &str) -> String {
        self.declare(id, name.to_owned(), &mut NameLimits::new())
    }

    /// `inner` is the declarator built so far, which C wraps from the inside out.
    fn declare(&self, id: TypeId, inner: String, limit: &mut NameLimits) -> String {
        if limit.depth == 0 || limit.visits == 0 {
            return join("...", &inner);
        }
        limit.visits -= 1;
        limit.depth -= 1;
        let text = self.declare_one(id, inner, limit);
        limit.depth += 1;
        text
    }

    fn declare_one(&self, id: TypeId, inner: String, limit: &mut NameLimits) -> String {
        let Ok(ty) = self.ty(id) else { return join("?", &inner) };
        let name = self.str(ty.name);
        let tagged = |keyword: &str| {
            let name = if name.is_empty() { "(anonymous)" } else { name };
            join(&format!("{keyword} {name}"), &inner)
        };
        match ty.kind {
            TypeKind::Unknown(_) => join("?", &inner),
            TypeKind::Void => join("void", &inner),
            TypeKind::Int(_) | TypeKind::Float { .. } | TypeKind::Typedef(_) | TypeKind::Datasec(_) => {
                join(name, &inner)
            }
            TypeKind::Struct(_) | TypeKind::Fwd { union: false } => tagged("struct"),
            TypeKind::Union(_) | TypeKind::Fwd { union: true } => tagged("union"),
            TypeKind::Enum(_) => tagged("enum"),
            TypeKind::Ptr(to) => self.declare(to, format!("*{inner}"), limit),
            TypeKind::Array(a) => self.declare(a.element, format!("{}[{}]", wrap(inner), a.len), limit),
            TypeKind::Const(to) => self.qualify("const", to, inner, limit),
            TypeKind::Volatile(to) => self.qualify("volatile", to, inner, limit),
            TypeKind::Restrict(to) => self.qualify("restrict", to, inner, limit),
            TypeKind::TypeTag { ty, .. } | TypeKind::DeclTag { ty, .. } => self.declare(ty, inner, limit),
            TypeKind::Var { ty, .. } => self.declare(ty, name.to_owned(), limit),
            TypeKind::Func { proto, .. } => self.declare(proto, name.to_owned(), limit),
            TypeKind::FuncProto(p) => {
                let params: Vec<String> = p
                    .params
                    .iter()
                    .map(|p| match p.ty.is_void() {
                        true => "...".to_owned(),
                        false => self.declare(p.ty, self.str(p.name).to_owned(), limit),
                    })
                    .collect();
                let params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
                self.declare(p.ret, format!("{}({params})", wrap(inner)), limit)
            }
        }
    }

    /// A qualifier stands before a plain type, but after the star of a pointer.
    fn qualify(&self, word: &str, to: TypeId, inner: String, limit: &mut NameLimits) -> String {
        match self.ty(to).map(|t| t.kind) {
            Ok(TypeKind::Ptr(_)) => self.declare(to, join(word, &inner), limit),
            _ => format!("{word} {}", self.declare(to, inner, limit)),
        }
    }
}

/// Brackets and parentheses bind tighter than the star.
fn wrap(inner: String) -> String {
    if inner.starts_with('*') { format!("({inner})") } else { inner }
}

fn join(word: &str, rest: &str) -> String {
    match rest.chars().next() {
        None => word.to_owned(),
        Some('[' | '(') if !rest.starts_with("(*") => format!("{word}{rest}"),
        Some(_) => format!("{word} {rest}"),
    }
}
