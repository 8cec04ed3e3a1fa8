//! Routes: the longest prefix of the destination annotation.

use std::hash::Hash;

use millstream_ir::Map;
use millstream_isa::Cond;
use rustc_hash::FxHashSet;

use millstream_click::arguments::{ip, prefix, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::tables::RouteEntry;
use millstream_click::{ElementSetup, Error, HandlerAccess, SpannedText, words};

const fn class(name: &'static str) -> ElementClass {
    let about = "Sends packets to the output of the longest prefix.";
    ElementClass { ports: "1/-", processing: "h/h", ..ElementClass::filter(name, about, &[], lookup) }
        .and(at("PREFIX [GATEWAY] OUTPUT"))
}

pub(super) const CLASSES: &[ElementClass] = &[
    class("StaticIPLookup"),
    class("LinearIPLookup"),
    class("SortedIPLookup"),
    class("RadixIPLookup"),
    class("DirectIPLookup"),
    class("RangeIPLookup"),
    class("LookupIPRoute"),
    class("LookupIPRouteMP"),
];

struct LookupIpRoute {
    routes: Map,
    outputs: u32,
}

fn lookup(setup: &mut ElementSetup<'_>) -> ElementResult {
    let routes = routes(setup, route, |route| (route.address, route.bits))?;
    // Click lists routes that are looked up one after the other in the order in which they are given.
    if setup.element.class == "LinearIPLookup" && !setup.written(&["add", "set", "remove", "ctrl"]) {
        let table = routes.iter().map(|route| format!("{route}\n")).collect();
        setup.handler("table", HandlerAccess::Text(table));
    }
    Ok(Box::new(LookupIpRoute { routes: setup.routes(&routes), outputs: setup.outputs }))
}

/// All arguments as routes, each with a different prefix.
pub(super) fn routes<R, P: Eq + Hash>(
    setup: &mut ElementSetup<'_>,
    route: fn(&ElementSetup<'_>, &SpannedText) -> Result<R, Error>,
    prefix: fn(&R) -> P,
) -> Result<Vec<R>, Error> {
    let mut seen = FxHashSet::default();
    let arguments = setup.arguments.rest();
    let one = |argument: SpannedText| {
        let route = route(setup, &argument)?;
        match seen.insert(prefix(&route)) {
            true => Ok(route),
            false => Err(Error::new(argument.span, "there is a route for this prefix already")),
        }
    };
    arguments.into_iter().map(one).collect()
}

/// The words of a route, `PREFIX [GATEWAY] OUTPUT`, the output as a number; `-` means no gateway.
pub(super) fn parts(
    setup: &ElementSetup<'_>,
    argument: &SpannedText,
    prefix: &str,
) -> Result<(SpannedText, Option<SpannedText>, u32), Error> {
    let (to, gateway, output) = match <[SpannedText; 2]>::try_from(words(argument)) {
        Ok([to, output]) => (to, None, output),
        Err(all) => match <[SpannedText; 3]>::try_from(all) {
            Ok([to, gateway, output]) => (to, Some(gateway), output),
            Err(_) => {
                let expected = format!("expected a route: {prefix} [GATEWAY] OUTPUT");
                return Err(Error::new(argument.span, expected));
            }
        },
    };
    let most = u64::from(setup.outputs.max(1) - 1);
    let output = unsigned(&output, most)
        .map_err(|e| e.help(format!("the last output that is connected is [{most}]")))?;
    Ok((to, gateway.filter(|text| text.text != "-"), output as u32))
}

fn route(setup: &ElementSetup<'_>, argument: &SpannedText) -> Result<RouteEntry<u32>, Error> {
    let names = setup.arguments.names;
    let (to, gateway, output) = parts(setup, argument, "ADDRESS/MASK")?;
    let (address, mask) = prefix(&to, names)?;
    if mask.leading_ones() + mask.trailing_zeros() != 32 && mask != 0 {
        return Err(Error::new(to.span, "the mask is no prefix"));
    }
    let gateway = gateway.map_or(Ok(0), |text| ip(&text, names))?;
    Ok(RouteEntry { address: address & mask, bits: mask.leading_ones(), gateway, output })
}

impl ElementCodegen for LookupIpRoute {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let route = code.longest(self.routes, packet.note(Annotation::Destination));
        code.check_int(Cond::Ne, route, 0, |code| code.drop(packet, "no_route"));
        let gateway = code.field(route, 0);
        let output = code.field(route, 4);
        let zero = code.int(0);
        let has = code.compare(Cond::Ne, gateway, zero);
        let destination = code.select(has, gateway, packet.note(Annotation::Destination));
        let packet = packet.with(Annotation::Destination, destination);
        for port in 1..self.outputs {
            code.check_int(Cond::Ne, output, i64::from(port), |code| code.out(port, packet));
        }
        code.out(0, packet);
    }
}
