//! Generated entries for the tables of a program, and packets that hit them: for measurements.
//!
//! Nobody says which bytes of a packet a table looks at. They are found by the interpreter: it runs a packet, and
//! the same packet with each of its bits changed, and records the keys of the look-ups ([`template`]).

mod keys;
mod template;

use std::sync::Arc;

use millstream_interp::MapKind;
use millstream_ir::Map;
use millstream_native::{NativeEngine, PrefixStats};
use millstream_p4_lower::{ActionChoice, LoweredProgram, TableSpec, TableStorage};
use millstream_p4_switch::{EntryError, Switch, SwitchError, entry_value};
use millstream_rng::Rng;
use num_bigint::BigUint;

use crate::batch::{BatchError, BatchedExecutor};
use keys::TableKeys;
pub use keys::parse_prefix;
use template::PacketTemplate;

/// Ports that entries name: 0 to 3.
const PORTS: u64 = 4;
/// Seed of the packets.
const SEED: u64 = 45;

/// Failure to make entries or packets.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The program has no such table.
    #[error("there is no table {name:?}; there are: {known}")]
    NoTable {
        /// Name that was given.
        name: String,
        /// Names of the tables.
        known: String,
    },
    /// Entries are generated for exact and longest-prefix matches only.
    #[error("{table}: entries are made for exact and longest-prefix keys only")]
    Kind {
        /// Name of the table.
        table: String,
    },
    /// The table has no room, or the key has fewer values.
    #[error("{table}: {count} entries are more than {most}, its size or the number of its keys")]
    Count {
        /// Name of the table.
        table: String,
        /// Entries that were asked for.
        count: u64,
        /// Most entries.
        most: u64,
    },
    /// A prefix is not one of the table's key.
    #[error("{table}: the prefixes of the file are not of {bits} bits")]
    Prefix {
        /// Name of the table.
        table: String,
        /// Width of the key.
        bits: u32,
    },
    /// The packet does not reach a table.
    #[error("{table}: no packet that was tried is looked up in it: give one that is")]
    Unreached {
        /// Name of the table.
        table: String,
    },
    /// The map of a table refuses an entry.
    #[error("{table}: entry {at} is refused: error {errno}")]
    Refused {
        /// Name of the table.
        table: String,
        /// Number of the entry.
        at: u64,
        /// The kernel's error number.
        errno: i64,
    },
    /// An entry does not fit.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The program's own entries are not accepted, or the interpreter fails.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// There is no engine.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

/// Entries for a table.
#[derive(Clone, Debug)]
pub enum EntrySource {
    /// So many generated ones.
    Generated(u64),
    /// These prefixes: address and length.
    Prefixes(Vec<(Vec<u8>, u32)>),
}

/// A table with its entries.
struct TableWorkload {
    name: String,
    map: Map,
    keys: TableKeys,
    /// Values of entries, which take them in turn.
    values: Vec<Vec<u8>>,
}

/// Entries of tables, and packets that hit them.
pub struct P4Workload {
    program: Arc<LoweredProgram>,
    tables: Vec<TableWorkload>,
    template: PacketTemplate,
}

impl P4Workload {
    /// Entries for tables, by the ends of their names; packets are made of this one, or of a usual one of IPv4 or
    /// IPv6.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn new(
        program: &Arc<LoweredProgram>,
        sources: Vec<(String, EntrySource)>,
        packet: Option<Vec<u8>>,
    ) -> Result<P4Workload, WorkloadError> {
        let mut tables = Vec::new();
        for (name, source) in sources {
            let table = find_table(program, &name)?;
            tables.push(TableWorkload {
                name: table.name.clone(),
                map: table.map,
                keys: TableKeys::new(table, source)?,
                values: values(table)?,
            });
        }
        let maps: Vec<Map> = tables.iter().map(|table| table.map).collect();
        let (template, unreached) = PacketTemplate::find(program, &maps, packet)?;
        match unreached {
            Some(at) => Err(WorkloadError::Unreached { table: tables[at].name.clone() }),
            None => Ok(P4Workload { program: Arc::clone(program), tables, template }),
        }
    }

    /// Names of all tables that can be filled, with the number of entries that each has room for.
    pub fn fillable(program: &LoweredProgram) -> Vec<(String, u64)> {
        let tables = program.pipeline.tables.iter().filter(|table| {
            !table.is_constant && !table.keys.is_empty() && table.storage != TableStorage::Priority
        });
        tables.map(|table| (table.name.clone(), u64::from(table.size))).collect()
    }

    /// Properties of the prefixes of tries, by the names of their maps.
    pub fn prefixes(&self) -> Vec<(String, PrefixStats)> {
        let named = |table: &TableWorkload| {
            let map = &self.program.module.maps[table.map];
            let is_trie = MapKind::from_number(map.kind) == Some(MapKind::LpmTrie);
            let keys = table.keys.listed().filter(|_| is_trie)?;
            Some((map.name.clone(), PrefixStats::of(keys.iter().map(Vec::as_slice))))
        };
        self.tables.iter().filter_map(named).collect()
    }

    /// Writes the program's own entries and default actions, and then the entries of tables. The engine is that of
    /// the [`crate::BatchProgram`].
    ///
    /// # Errors
    /// [`WorkloadError`] if something is refused.
    pub fn fill(&self, engine: NativeEngine) -> Result<NativeEngine, WorkloadError> {
        let executor = BatchedExecutor::of_engine(engine, &self.program)?;
        let mut engine = Switch::new(Arc::clone(&self.program), executor)?.into_executor().into_engine();
        for table in &self.tables {
            let Some(map) = engine.map_at(table.map) else { continue };
            for at in 0..table.keys.len() {
                let value = &table.values[at as usize % table.values.len()];
                match map.update(&table.keys.get(at), value, 0, None) {
                    0 => {}
                    errno => return Err(WorkloadError::Refused { table: table.name.clone(), at, errno }),
                }
            }
        }
        Ok(engine)
    }

    /// Packets, each with keys of random entries of all tables.
    pub fn frames(&self, count: usize) -> Vec<Vec<u8>> {
        let mut rng = Rng::new(SEED);
        let frame = |_| {
            let mut frame = self.template.packet.clone();
            for table in &self.tables {
                let key = table.keys.draw(&mut rng);
                self.template.put(&mut frame, table.map, &key);
            }
            frame
        };
        (0..count).map(frame).collect()
    }

    /// Entries of each table, in words.
    pub fn description(&self) -> String {
        let tables: Vec<String> = self
            .tables
            .iter()
            .map(|table| format!("{} entries in {}", table.keys.len(), table.name))
            .collect();
        tables.join(", ")
    }
}

/// The table whose name ends so.
fn find_table<'p>(program: &'p LoweredProgram, name: &str) -> Result<&'p TableSpec, WorkloadError> {
    let tables = &program.pipeline.tables;
    let ends = |table: &&TableSpec| table.name == name || table.name.ends_with(&format!(".{name}"));
    tables.iter().find(ends).ok_or_else(|| {
        let known: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        WorkloadError::NoTable { name: name.to_owned(), known: known.join(", ") }
    })
}

/// Values of entries: the first action that entries may have and that takes arguments, with small ones.
fn values(table: &TableSpec) -> Result<Vec<Vec<u8>>, WorkloadError> {
    let usable = || table.actions.iter().enumerate().filter(|(_, action)| !action.is_default_only);
    let found = usable().find(|(_, action)| !action.parameters.is_empty()).or_else(|| usable().next());
    let Some((number, action)) = found else {
        return Err(EntryError::Action { table: table.name.clone(), action: 0 }.into());
    };
    let argument = |port: u64, bits: u32| BigUint::from(if bits < 2 { port & 1 } else { port });
    let value = |port: u64| {
        let arguments = action.parameters.iter().map(|p| argument(port, p.bits)).collect();
        entry_value(table, &ActionChoice { action: number, arguments }, false)
    };
    Ok((0..PORTS).map(value).collect::<Result<_, _>>()?)
}
