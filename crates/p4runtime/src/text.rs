//! P4Info as text, JSON and bytes.

use std::sync::OnceLock;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use thiserror::Error;

use crate::printer::print_message;
use crate::proto::config::v1::P4Info;

/// Descriptors of all messages, made when the crate is built.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Comment that says what a text is.
const TEXT_HEADER: &str = "# proto-file: p4/config/v1/p4info.proto\n# proto-message: p4.config.v1.P4Info\n\n";

/// Name of the message.
const P4_INFO: &str = "p4.config.v1.P4Info";

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
    /// Chooses the format by the end of a file's name: `.txtpb` and `.txt`, `.json`, and all others for bytes.
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
    #[error("the message `{P4_INFO}` has no descriptor")]
    NoDescriptor,
    /// The text is not UTF-8.
    #[error("the file is not UTF-8 text")]
    NoText,
    /// The text format is broken.
    #[error("no P4Info in text format: {0}")]
    Text(#[source] prost_reflect::text_format::ParseError),
    /// The JSON is broken.
    #[error("no P4Info in JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The bytes are broken.
    #[error("no P4Info in bytes: {0}")]
    Binary(#[source] prost::DecodeError),
}

fn descriptor() -> Result<MessageDescriptor, FormatError> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| DescriptorPool::decode(DESCRIPTORS).ok());
    let pool = pool.as_ref().ok_or(FormatError::NoDescriptor)?;
    pool.get_message_by_name(P4_INFO).ok_or(FormatError::NoDescriptor)
}

/// Writes P4Info.
///
/// # Errors
/// If the JSON format has no form for a value.
pub fn encode_p4_info(info: &P4Info, format: MessageFormat) -> Result<Vec<u8>, FormatError> {
    let bytes = info.encode_to_vec();
    if format == MessageFormat::Binary {
        return Ok(bytes);
    }
    let message = DynamicMessage::decode(descriptor()?, &bytes[..]).map_err(FormatError::Binary)?;
    if format == MessageFormat::Json {
        // Objects that are values have their members in order.
        let value = serde_json::to_value(&message).map_err(FormatError::Json)?;
        return serde_json::to_vec_pretty(&value).map_err(FormatError::Json);
    }
    Ok((TEXT_HEADER.to_owned() + &print_message(&message)).into_bytes())
}

/// Reads P4Info.
///
/// # Errors
/// If the bytes are not P4Info in this format.
pub fn decode_p4_info(bytes: &[u8], format: MessageFormat) -> Result<P4Info, FormatError> {
    let message = match format {
        MessageFormat::Binary => return P4Info::decode(bytes).map_err(FormatError::Binary),
        MessageFormat::Text => {
            let text = std::str::from_utf8(bytes).map_err(|_| FormatError::NoText)?;
            DynamicMessage::parse_text_format(descriptor()?, text).map_err(FormatError::Text)?
        }
        MessageFormat::Json => {
            let mut deserializer = serde_json::Deserializer::from_slice(bytes);
            let message = DynamicMessage::deserialize(descriptor()?, &mut deserializer);
            let message = message.map_err(FormatError::Json)?;
            deserializer.end().map_err(FormatError::Json)?;
            message
        }
    };
    P4Info::decode(&message.encode_to_vec()[..]).map_err(FormatError::Binary)
}
