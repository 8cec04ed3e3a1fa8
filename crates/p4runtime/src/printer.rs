//! The text format of protocol buffers as the C++ library prints it, so that files can be compared as text:
//! fields in the order of their numbers, one a line, and maps in the order of their keys.

use std::fmt::Write as _;

use prost_reflect::{DynamicMessage, FieldDescriptor, MapKey, Value};

/// Blanks that one level adds.
const INDENT: usize = 2;

/// Prints a message.
pub(crate) fn print_message(message: &DynamicMessage) -> String {
    let mut printer = TextPrinter::default();
    printer.message(message);
    printer.text
}

#[derive(Default)]
struct TextPrinter {
    text: String,
    level: usize,
}

impl TextPrinter {
    fn message(&mut self, message: &DynamicMessage) {
        let mut fields: Vec<(FieldDescriptor, &Value)> = message.fields().collect();
        fields.sort_by_key(|(field, _)| field.number());
        for (field, value) in fields {
            match value {
                Value::List(values) => values.iter().for_each(|value| self.field(&field, value)),
                Value::Map(entries) => {
                    let mut entries: Vec<(&MapKey, &Value)> = entries.iter().collect();
                    entries.sort_by_key(|(key, _)| key_text(key));
                    entries.into_iter().for_each(|(key, value)| self.entry(&field, key, value));
                }
                value => self.field(&field, value),
            }
        }
    }

    fn line(&mut self, text: &str) {
        let blanks = self.level * INDENT;
        _ = writeln!(self.text, "{:blanks$}{text}", "");
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value) {
        self.named(field.name(), field, value);
    }

    fn named(&mut self, name: &str, field: &FieldDescriptor, value: &Value) {
        if let Value::Message(message) = value {
            self.nested(name, |printer| printer.message(message));
        } else {
            self.line(&format!("{name}: {}", scalar_text(field, value)));
        }
    }

    fn nested(&mut self, name: &str, inner: impl FnOnce(&mut Self)) {
        self.line(&format!("{name} {{"));
        self.level += 1;
        inner(self);
        self.level -= 1;
        self.line("}");
    }

    fn entry(&mut self, field: &FieldDescriptor, key: &MapKey, value: &Value) {
        self.nested(field.name(), |printer| {
            printer.line(&format!("key: {}", key_text(key)));
            printer.named("value", field, value);
        });
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(value) => value.to_string(),
        MapKey::I32(value) => value.to_string(),
        MapKey::I64(value) => value.to_string(),
        MapKey::U32(value) => value.to_string(),
        MapKey::U64(value) => value.to_string(),
        MapKey::String(value) => quoted(value.as_bytes()),
    }
}

fn scalar_text(field: &FieldDescriptor, value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        Value::String(value) => quoted(value.as_bytes()),
        Value::Bytes(value) => quoted(value),
        Value::EnumNumber(number) => {
            let kind = field.kind();
            let named = kind.as_enum().and_then(|kind| kind.get_value(*number));
            named.map_or_else(|| number.to_string(), |value| value.name().to_owned())
        }
        Value::Message(_) | Value::List(_) | Value::Map(_) => String::new(),
    }
}

/// Bytes as a string literal: escapes as in C, octal numbers for what is not printable ASCII.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'"' | b'\'' | b'\\' => {
                text.push('\\');
                text.push(char::from(*byte));
            }
            0x20..0x7f => text.push(char::from(*byte)),
            _ => _ = write!(text, "\\{byte:03o}"),
        }
    }
    text.push('"');
    text
}
