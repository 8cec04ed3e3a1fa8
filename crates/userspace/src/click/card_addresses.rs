//! Ethernet addresses that network interfaces have for the time of a run (MAC of `FromDPDKDevice`).

use miette::{Result, miette};
use millstream_click::{ClickProgram, GraphSource};
use millstream_kernel::{interface, interface_index, set_address};

/// Interfaces with other addresses than before. Dropping it gives each its former address back.
#[derive(Debug, Default)]
pub(super) struct CardAddresses {
    /// Index and former address.
    former: Vec<(u32, Vec<u8>)>,
}

impl CardAddresses {
    /// Gives interfaces the addresses that a configuration asks for; `interface_of` has the interface of a source,
    /// by its place, if it is one.
    pub(super) fn set<'n>(
        program: &ClickProgram,
        interface_of: impl Fn(usize) -> Option<&'n str>,
    ) -> Result<CardAddresses> {
        let mut all = CardAddresses::default();
        for (at, source) in program.sources.iter().enumerate() {
            let GraphSource::Device(device) = source else { continue };
            let address = program.devices.addresses.iter().find(|(name, _)| name == device);
            let (Some((_, address)), Some(name)) = (address, interface_of(at)) else { continue };
            all.change(name, *address).map_err(|error| {
                let help = "leave out MAC of this device; some drivers change addresses only while an interface \
                            is down (`ip link set`)";
                miette!(help = help, "device {device:?}: {error}")
            })?;
        }
        Ok(all)
    }

    fn change(&mut self, name: &str, address: [u8; 6]) -> millstream_kernel::Result<()> {
        let index = interface_index(name)?;
        let former = interface(index)?.address;
        if former != address {
            set_address(index, &address)?;
            self.former.push((index, former));
        }
        Ok(())
    }
}

impl Drop for CardAddresses {
    fn drop(&mut self) {
        for (index, address) in &self.former {
            if let Err(error) = set_address(*index, address) {
                tracing::warn!("{error}");
            }
        }
    }
}
