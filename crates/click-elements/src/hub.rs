//! `Hub`: sends each packet out of all ports but its own.

use millstream_click::ElementSetup;
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::packet::PacketValues;

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    ports: "-/-",
    processing: "h/h",
    ..ElementClass::filter("Hub", "Sends each packet out of all ports but its own.", &[], hub)
}];

struct HubPorts {
    outputs: u32,
}

fn hub(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(HubPorts { outputs: setup.outputs }))
}

impl ElementCodegen for HubPorts {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        let others: Vec<u32> = (0..self.outputs).filter(|output| *output != port).collect();
        let Some((first, rest)) = others.split_first() else { return code.drop(packet, "no_other_port") };
        for output in rest.iter().rev() {
            code.fork(*output, packet);
        }
        code.out(*first, packet);
    }
}
