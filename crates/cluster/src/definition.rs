//! The definition of the custom resource, generated from the types of [`crate::resource`].
//!
//! Kubernetes takes structural schemas only: no references, no `oneOf`, no title.

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::resource::{GROUP, KIND, NodeSpec, NodeStatus, PLURAL, VERSION};

/// The definition as an object of `apiextensions.k8s.io/v1`.
pub fn node_definition() -> Value {
    let columns = [
        ("Mode", "string", ".status.mode"),
        ("Health", "string", ".status.health"),
        ("Message", "string", ".status.message"),
        ("Rollout", "string", ".spec.rollout.name"),
        ("Reported", "date", ".status.reportedAt"),
    ];
    let columns: Vec<_> = columns
        .iter()
        .map(|(name, kind, path)| json!({"name": name, "type": kind, "jsonPath": path}))
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"kind": KIND, "listKind": format!("{KIND}List"), "plural": PLURAL,
                      "singular": KIND.to_lowercase(), "shortNames": ["msn"]},
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "A node on which Millstream runs; it has the name of the node.",
                    "required": ["spec"],
                    "properties": {"spec": schema_of::<NodeSpec>(), "status": schema_of::<NodeStatus>()},
                }},
            }],
        },
    })
}

/// The definition as YAML.
///
/// # Panics
/// Never: the value has keys of text only.
pub fn node_definition_yaml() -> String {
    serde_yaml_ng::to_string(&node_definition()).expect("a value of JSON is one of YAML")
}

fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    Structural.transform(&mut schema);
    schema.to_value()
}

/// Makes a schema structural.
#[derive(Clone, Copy, Debug)]
struct Structural;

impl Transform for Structural {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        for key in ["$schema", "title", "components", "nullable"] {
            schema.remove(key);
        }
        // Formats that Kubernetes does not know.
        if schema.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
            schema.remove("format");
        }
        merge_alternatives(schema);
        join_lines(schema);
    }
}

/// Makes one enumeration of alternatives that each have a name and a description.
fn merge_alternatives(schema: &mut Schema) {
    let Some(Value::Array(alternatives)) = schema.remove("oneOf") else { return };
    let mut names = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    texts.extend(schema.get("description").and_then(Value::as_str).map(str::to_owned));
    for alternative in &alternatives {
        let Some(name) = alternative["enum"].get(0).or(alternative.get("const")) else { continue };
        names.push(name.clone());
        let text = alternative["description"].as_str().unwrap_or_default();
        texts.push(format!("{}: {text}", name.as_str().unwrap_or_default()));
    }
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), Value::Array(names));
    schema.insert("description".into(), texts.join(" ").into());
}

/// Makes one line of a description.
fn join_lines(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generated file.
    const PATH: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/kubernetes/millstream/crds/millstreamnodes.yaml");

    #[test]
    fn the_chart_has_the_definition_of_these_types() {
        let current = node_definition_yaml();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(PATH, &current).unwrap();
        }
        let file = std::fs::read_to_string(PATH).unwrap_or_default();
        assert!(file == current, "{PATH} differs: `millstream cluster crd` prints the current one");
    }

    #[test]
    fn schemas_are_structural() {
        fn visit(value: &Value) {
            match value {
                Value::Object(members) => {
                    for key in ["$ref", "$schema", "oneOf", "anyOf", "const", "definitions"] {
                        assert!(!members.contains_key(key), "{key}: {value}");
                    }
                    members.values().for_each(visit);
                }
                Value::Array(members) => members.iter().for_each(visit),
                _ => {}
            }
        }
        let definition = node_definition();
        visit(&definition["spec"]["versions"][0]["schema"]);
        let mode = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            ["mode"];
        assert_eq!(mode["enum"], json!(["Specialised", "Originals", "OffTest"]));
    }
}
