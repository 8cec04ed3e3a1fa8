//! Places in the receive path for programs, as command-line values.

use millstream_kernel::XdpMode;

/// Place in the receive path for an XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// In the driver if it supports that, else in the stack
    Any,
    /// In the driver
    Native,
    /// In the stack
    Generic,
}

impl From<AttachMode> for XdpMode {
    fn from(mode: AttachMode) -> XdpMode {
        match mode {
            AttachMode::Any => XdpMode::Any,
            AttachMode::Native => XdpMode::Native,
            AttachMode::Generic => XdpMode::Generic,
        }
    }
}
