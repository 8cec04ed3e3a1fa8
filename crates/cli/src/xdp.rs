//! Places in the receive path for programs, as command-line values.

use millstream_kernel::XdpMode;

/// Place in the receive path for an XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// In the driver if it supports that, else in the stack
    Any,
    /// In the driver
    Native,
    /// In the stack
    Generic,
}

impl From<Mode> for XdpMode {
    fn from(mode: Mode) -> XdpMode {
        match mode {
            Mode::Any => XdpMode::Any,
            Mode::Native => XdpMode::Native,
            Mode::Generic => XdpMode::Generic,
        }
    }
}
