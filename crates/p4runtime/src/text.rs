//! Messages as text, JSON and bytes.

use std::sync::OnceLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use thiserror::Error;

use crate::printer::print_message;

/// Descriptors of all messages, made when the crate is built.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Format of a message in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageFormat {
    /// The text format of protocol buffers.
    Text,
    /// The JSON format of protocol buffers.
    Json,
    /// Bytes.
    Binary,
}

impl MessageFormat {
    /// Chooses the format by the end of a file's name: `.txtpb` and `.txt`, `.json`, and all others for
    /// bytes.
    pub fn of_path(path: &str) -> MessageFormat {
        match path.rsplit_once('.').map(|(_, extension)| extension) {
            Some("txtpb" | "txt") => MessageFormat::Text,
            Some("json") => MessageFormat::Json,
            _ => MessageFormat::Binary,
        }
    }
}

/// Reason why a message cannot be read or written.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The descriptors of this crate lack the message.
    #[error("the message `{0}` has no descriptor")]
    NoDescriptor(String),
    /// The text is not UTF-8.
    #[error("the file is not UTF-8 text")]
    NoText,
    /// The text format is broken.
    #[error("no message in text format: {0}")]
    Text(#[source] prost_reflect::text_format::ParseError),
    /// The JSON is broken.
    #[error("no message in JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The bytes are broken.
    #[error("no message in bytes: {0}")]
    Binary(#[source] prost::DecodeError),
}

fn descriptor<M: Name>() -> Result<MessageDescriptor, FormatError> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| DescriptorPool::decode(DESCRIPTORS).ok());
    let name = M::full_name();
    let found = pool.as_ref().and_then(|pool| pool.get_message_by_name(&name));
    found.ok_or(FormatError::NoDescriptor(name))
}

/// Writes a message of this crate.
///
/// # Errors
/// If the JSON format has no form for a value.
pub fn encode_message<M: Message + Name>(message: &M, format: MessageFormat) -> Result<Vec<u8>, FormatError> {
    let bytes = message.encode_to_vec();
    if format == MessageFormat::Binary {
        return Ok(bytes);
    }
    let descriptor = descriptor::<M>()?;
    let file = descriptor.parent_file().name().to_owned();
    let message = DynamicMessage::decode(descriptor, &bytes[..]).map_err(FormatError::Binary)?;
    if format == MessageFormat::Json {
        // Objects that are values have their members in order.
        let value = serde_json::to_value(&message).map_err(FormatError::Json)?;
        return serde_json::to_vec_pretty(&value).map_err(FormatError::Json);
    }
    let header = format!("# proto-file: {file}\n# proto-message: {}\n\n", M::full_name());
    Ok((header + &print_message(&message)).into_bytes())
}

/// Reads a message of this crate.
///
/// # Errors
/// If the bytes are not such a message in this format.
pub fn decode_message<M: Message + Name + Default>(
    bytes: &[u8],
    format: MessageFormat,
) -> Result<M, FormatError> {
    let message = match format {
        MessageFormat::Binary => return M::decode(bytes).map_err(FormatError::Binary),
        MessageFormat::Text => {
            let text = std::str::from_utf8(bytes).map_err(|_| FormatError::NoText)?;
            DynamicMessage::parse_text_format(descriptor::<M>()?, text).map_err(FormatError::Text)?
        }
        MessageFormat::Json => {
            let mut deserializer = serde_json::Deserializer::from_slice(bytes);
            let message = DynamicMessage::deserialize(descriptor::<M>()?, &mut deserializer);
            let message = message.map_err(FormatError::Json)?;
            deserializer.end().map_err(FormatError::Json)?;
            message
        }
    };
    M::decode(&message.encode_to_vec()[..]).map_err(FormatError::Binary)
}
