//! Where in the receive path a program is put, as the commands take it.

use millstream_kernel::XdpMode;

/// Where in the receive path an XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// In the driver if it can, else in the stack
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
