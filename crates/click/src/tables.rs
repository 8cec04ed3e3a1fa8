//! Tables of elements that handlers read and write: the form of entries is defined here, once for the
//! elements that use them.
//!
//! Routes are a map of longest prefixes with gateway and output, answers one with Ethernet addresses. No
//! element writes them; if nothing else may, there is room for their initial entries only.

use std::fmt;
use std::net::Ipv4Addr;

use millstream_ir::{Map, MapDecl};
use millstream_isa::MapType;

use crate::compile::setup::ElementSetup;
use crate::handlers::{HandlerAccess, TableFormat, TableOperation};
use crate::program::{InitialEntry, RDONLY_PROG};

/// `BPF_F_NO_PREALLOC`, which tries must have.
const FLAGS: u32 = 1 | RDONLY_PROG;
/// Prefixes that may come to those of a configuration, at least.
const ROOM: u32 = 1 << 14;

/// A route.
#[derive(Clone, Copy, Debug)]
pub struct RouteEntry<A> {
    /// The prefix.
    pub address: A,
    /// Its length.
    pub bits: u32,
    /// 0 for none.
    pub gateway: A,
    /// The output.
    pub output: u32,
}

impl fmt::Display for RouteEntry<u32> {
    /// The route as the handler `table` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = match self.gateway {
            0 => "-".to_owned(),
            gateway => Ipv4Addr::from(gateway).to_string(),
        };
        write!(f, "{}/{}\t{gateway}\t{}", Ipv4Addr::from(self.address), self.bits, self.output)
    }
}

/// Handlers of a table of routes, as Click's `IPRouteTable` has them.
const ROUTE_HANDLERS: &[(&str, TableOperation)] = &[
    ("table", TableOperation::List),
    ("lookup", TableOperation::Find),
    ("add", TableOperation::Add),
    ("set", TableOperation::Set),
    ("remove", TableOperation::Remove),
    ("ctrl", TableOperation::Several),
    ("flush", TableOperation::Clear),
];

/// Those of prefixes that are answered for.
const ANSWER_HANDLERS: &[(&str, TableOperation)] = &[
    ("table", TableOperation::List),
    ("lookup", TableOperation::Find),
    ("add", TableOperation::Set),
    ("remove", TableOperation::Remove),
];

impl ElementSetup<'_> {
    /// Handlers about the entries of a table.
    pub fn table_handlers(&mut self, map: &str, form: TableFormat, verbs: &[(&'static str, TableOperation)]) {
        for (name, verb) in verbs {
            self.handler(*name, HandlerAccess::Table { map: map.to_owned(), form, verb: *verb });
        }
    }

    /// A table of routes, and its handlers.
    pub fn routes(&mut self, routes: &[RouteEntry<u32>]) -> Map {
        let entry = |route: &RouteEntry<u32>| {
            let key = [route.bits.to_le_bytes(), route.address.to_be_bytes()].concat();
            (key, [route.gateway.to_le_bytes(), route.output.to_le_bytes()].concat())
        };
        self.route_table(routes.iter().map(entry).collect(), 4)
    }

    /// A table of routes of IPv6, and its handlers.
    pub fn routes6(&mut self, routes: &[RouteEntry<u128>]) -> Map {
        let entry = |route: &RouteEntry<u128>| {
            let key = [&route.bits.to_le_bytes()[..], &route.address.to_be_bytes()].concat();
            let words = route.gateway.to_be_bytes();
            let gateway = words.chunks_exact(4).flat_map(|word| word.iter().rev().copied());
            (key, gateway.chain(route.output.to_le_bytes()).collect())
        };
        self.route_table(routes.iter().map(entry).collect(), 16)
    }

    fn route_table(&mut self, entries: Vec<(Vec<u8>, Vec<u8>)>, bytes: u32) -> Map {
        let may_grow = self.written(&["add", "set", "ctrl"]);
        let (name, map) = self.prefixes("routes", entries, (bytes, bytes + 4), may_grow);
        let last = self.outputs.max(1) - 1;
        self.table_handlers(&name, TableFormat::Routes { last, bytes }, ROUTE_HANDLERS);
        map
    }

    /// A table of prefixes, each with its length, that are answered for by Ethernet addresses; and its
    /// handlers.
    pub fn answers(&mut self, answers: &[(u32, u32, [u8; 6])]) -> Map {
        let entry = |&(address, bits, ether): &(u32, u32, [u8; 6])| {
            let key = [bits.to_le_bytes(), address.to_be_bytes()].concat();
            (key, [&ether[..], &[0; 2]].concat())
        };
        let (name, map) = self.prefixes("answers", answers.iter().map(entry).collect(), (4, 8), true);
        self.table_handlers(&name, TableFormat::Answers, ANSWER_HANDLERS);
        map
    }

    /// A table of prefixes with these keys and values, the first of which is the prefix length: its name, and
    /// the map.
    fn prefixes(
        &mut self,
        what: &str,
        entries: Vec<(Vec<u8>, Vec<u8>)>,
        (address, value_size): (u32, u32),
        may_grow: bool,
    ) -> (String, Map) {
        let name = format!("{}.{what}", self.element.name);
        let held = entries.len() as u32;
        let max_entries = if may_grow { held.saturating_add(held.max(ROOM)) } else { held.max(1) };
        let all = entries.into_iter().map(|(key, value)| InitialEntry { map: name.clone(), key, value });
        self.shared.entries.extend(all);
        let map = self.shared.module.maps.push(MapDecl {
            name: name.clone(),
            kind: MapType::LPM_TRIE.0,
            key_size: 4 + address,
            value_size,
            max_entries,
            flags: FLAGS,
            global: None,
            inner: None,
        });
        (name, map)
    }
}
