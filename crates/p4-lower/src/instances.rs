//! Instantiation of parsers, controls and externs, once each, and their names for the control plane.

use std::rc::Rc;

use millstream_p4::ast::{
    AnnotationBody, AnnotationTree, DeclarationKind, DeclarationTree, ParameterSyntax, TableProperty,
    TablePropertyValue,
};
use millstream_p4::expression::{CallArgument, ExpressionKind, ExpressionTree, TypeSyntax, TypeSyntaxKind};
use millstream_p4::{SourceName, SourceSpan, Symbol, TokenKind};

use crate::arguments::{matched, ordered};
use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::scope::{Binding, BlockInstance, Instance, Scope};
use crate::types::RuntimeType;

/// Text of an annotation of one string.
pub(crate) fn annotation_text(annotations: &[AnnotationTree], name: &str) -> Option<Symbol> {
    let annotation = annotations.iter().find(|annotation| &*annotation.name.text == name)?;
    match &annotation.body {
        AnnotationBody::Unstructured(tokens) => match tokens.first().map(|token| &token.kind) {
            Some(TokenKind::Text(text)) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// Name for the control plane of something declared in an instance.
pub(crate) fn plane_name(path: &str, annotations: &[AnnotationTree], name: &SourceName) -> String {
    let text = annotation_text(annotations, "name").unwrap_or_else(|| name.text.clone());
    match text.strip_prefix('.') {
        Some(absolute) => absolute.to_owned(),
        None if path.is_empty() => text.to_string(),
        None => format!("{path}.{text}"),
    }
}

/// Name for the control plane of something declared in the current instance.
pub(crate) fn local_name(l: &Lowerer<'_>, annotations: &[AnnotationTree], name: &SourceName) -> String {
    let path = l.scope.owner.as_ref().map_or("", |owner| owner.path.as_str());
    plane_name(path, annotations, name)
}

/// The object of a declaration in the current instance, made at first use.
pub(crate) fn local_object<'p>(
    l: &mut Lowerer<'p>,
    declaration: &'p DeclarationTree,
) -> Lowered<Rc<Instance<'p>>> {
    let path = local_name(l, &declaration.annotations, &declaration.name);
    let key = (declaration.name.text.clone(), declaration.name.span.start);
    let made = l.scope.owner.as_ref().and_then(|owner| owner.objects.borrow().get(&key).cloned());
    if let Some(made) = made {
        return Ok(made);
    }
    let instance = match &declaration.kind {
        DeclarationKind::Instance(syntax) => {
            if syntax.initializer.is_some() {
                return refuse(declaration.span, "instances with abstract methods are not supported");
            }
            instantiate(l, &syntax.object_type, &syntax.arguments, path, declaration.span)?
        }
        DeclarationKind::ValueSet(syntax, size) => l.value_set(syntax, size, path)?,
        _ => return refuse(declaration.span, "this is no instance"),
    };
    if let Some(owner) = &l.scope.owner {
        owner.objects.borrow_mut().insert(key, instance.clone());
    }
    Ok(instance)
}

/// The instance without a name of a statement `TYPE.apply(...)`.
pub(crate) fn direct_object<'p>(
    l: &mut Lowerer<'p>,
    syntax: &'p TypeSyntax,
    span: SourceSpan,
) -> Lowered<Rc<Instance<'p>>> {
    let name = match &syntax.kind {
        TypeSyntaxKind::Named(name) | TypeSyntaxKind::Specialized(name, _) => name.name.clone(),
        _ => return refuse(span, "this cannot be applied"),
    };
    let key = (name.text.clone(), span.start);
    let made = l.scope.owner.as_ref().and_then(|owner| owner.objects.borrow().get(&key).cloned());
    if let Some(made) = made {
        return Ok(made);
    }
    let path = local_name(l, &[], &name);
    let instance = instantiate(l, syntax, &[], path, span)?;
    if let Some(owner) = &l.scope.owner {
        owner.objects.borrow_mut().insert(key, instance.clone());
    }
    Ok(instance)
}

/// Makes an object of a type with arguments.
pub(crate) fn instantiate<'p>(
    l: &mut Lowerer<'p>,
    syntax: &'p TypeSyntax,
    arguments: &'p [CallArgument],
    path: String,
    span: SourceSpan,
) -> Lowered<Rc<Instance<'p>>> {
    let (name, types): (_, &'p [TypeSyntax]) = match &syntax.kind {
        TypeSyntaxKind::Named(name) => (name, &[]),
        TypeSyntaxKind::Specialized(name, types) => (name, types),
        _ => return refuse(span, "this type has no instances"),
    };
    let types = types.iter().map(|syntax| l.type_of_syntax(syntax)).collect::<Lowered<Vec<_>>>()?;
    for declaration in l.source.globals.get(&name.name.text).cloned().unwrap_or_default() {
        let (parameters, names): (&'p [ParameterSyntax], &'p [SourceName]) = match &declaration.kind {
            DeclarationKind::Control(control) => match &control.body {
                Some(body) => (&body.constructor, &control.type_parameters),
                None => continue,
            },
            DeclarationKind::Parser(parser) => match &parser.body {
                Some(body) => (&body.constructor, &parser.type_parameters),
                None => continue,
            },
            DeclarationKind::Extern(declared) => {
                let name = &name.name.text;
                let makers = declared.methods.iter().filter(|method| method.name.text == *name);
                let found = makers.filter_map(|maker| ordered(&maker.signature.parameters, arguments)).next();
                let Some(values) = found else {
                    return refuse(span, format!("the arguments do not match those of `{name}`"));
                };
                return l.extern_instance(name, types, &values, path, span);
            }
            DeclarationKind::TypeAlias(syntax) => {
                return l.deeper(span, |l| instantiate(l, syntax, arguments, path, span));
            }
            _ => continue,
        };
        if matched(parameters, arguments).is_none() {
            continue;
        }
        let scope = Scope::new(Some(l.root.clone()));
        for (name, value) in names.iter().zip(types) {
            scope.bind_type(name.text.clone(), value);
        }
        l.infer_types(names, parameters, arguments, &scope)?;
        bind_constructor(l, parameters, arguments, &scope, &path)?;
        let block = BlockInstance {
            declaration,
            arguments: scope,
            path,
            objects: Default::default(),
            tables: Default::default(),
        };
        return Ok(Rc::new(Instance::Block(Rc::new(block))));
    }
    refuse(span, format!("`{}` cannot be instantiated with these arguments", name.name.text))
}

fn bind_constructor<'p>(
    l: &mut Lowerer<'p>,
    parameters: &'p [ParameterSyntax],
    arguments: &'p [CallArgument],
    scope: &Rc<Scope<'p>>,
    path: &str,
) -> Lowered<()> {
    let places = matched(parameters, arguments).unwrap_or_default();
    for (parameter, argument) in parameters.iter().zip(places) {
        let value = argument.map_or(parameter.default.as_ref(), |argument| argument.value.as_ref());
        let Some(value) = value else { continue };
        let declared = l.in_scope(scope.clone(), |l| l.type_of_syntax(&parameter.declared_type))?;
        let binding = match declared {
            RuntimeType::Object(..) => {
                let instance = match &value.kind {
                    ExpressionKind::Construct(syntax, arguments) => {
                        let path = format!("{path}.{}", parameter.name.text);
                        instantiate(l, syntax, arguments, path, value.span)?
                    }
                    _ => instance_of(l, value)?,
                };
                Binding::Instance(instance)
            }
            other => Binding::Constant(value, other, Some(l.scope.clone())),
        };
        scope.bind(parameter.name.text.clone(), binding);
    }
    Ok(())
}

/// The object that an expression names.
pub(crate) fn instance_of<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
) -> Lowered<Rc<Instance<'p>>> {
    match find_instance(l, expression) {
        Some(instance) => Ok(instance),
        None => refuse(expression.span, "this is no instance"),
    }
}

/// Object that a property of a table names or makes: a direct counter, a direct meter, or an implementation.
pub(crate) fn attached<'p>(
    l: &mut Lowerer<'p>,
    properties: &'p [TableProperty],
    names: &[&str],
    table: &str,
) -> Lowered<Option<usize>> {
    let found = properties.iter().find(|property| names.contains(&&*property.name.text));
    let Some((found, TablePropertyValue::Value(value))) = found.map(|found| (found, &found.value)) else {
        return Ok(None);
    };
    if let Some(Instance::Extern(_, number)) = find_instance(l, value).as_deref() {
        return Ok(Some(*number));
    }
    let ExpressionKind::Construct(syntax, arguments) = &value.kind else {
        return refuse(value.span, "this object of a table is not supported here");
    };
    // The eBPF model names the kind of its map in this way, which follows from the key here.
    if let TypeSyntaxKind::Named(name) = &syntax.kind
        && ["hash_table", "array_table"].contains(&&*name.name.text)
    {
        return Ok(None);
    }
    // An object that is made in place has the name of its annotation, without that of its control.
    let name = match annotation_text(&found.annotations, "name") {
        Some(_) => plane_name("", &found.annotations, &found.name),
        None => plane_name(table, &[], &found.name),
    };
    match &*instantiate(l, syntax, arguments, name, value.span)? {
        Instance::Extern(_, number) => Ok(Some(*number)),
        _ => refuse(value.span, "this object of a table is not supported here"),
    }
}

pub(crate) fn find_instance<'p>(
    l: &mut Lowerer<'p>,
    expression: &'p ExpressionTree,
) -> Option<Rc<Instance<'p>>> {
    let ExpressionKind::Name(name) = &expression.kind else { return None };
    if !name.is_global
        && let Some((binding, _)) = l.scope.find(&name.name.text)
    {
        return match binding {
            Binding::Instance(instance) => Some(instance),
            _ => None,
        };
    }
    let text = &name.name.text;
    if let Some(made) = l.objects.global_objects.get(text) {
        return Some(made.clone());
    }
    let declaration = l.global(text)?;
    let DeclarationKind::Instance(syntax) = &declaration.kind else { return None };
    let path = plane_name("", &declaration.annotations, &declaration.name);
    let root = l.root.clone();
    let instance =
        l.in_scope(root, |l| instantiate(l, &syntax.object_type, &syntax.arguments, path, declaration.span));
    let instance = instance.ok()?;
    l.objects.global_objects.insert(text.clone(), instance.clone());
    Some(instance)
}
