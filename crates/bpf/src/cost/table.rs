//! Durations of machine instructions and calls: a table that is measured, and read from text.
//!
//! `width` is the number of operations issued in a cycle, `latency_share` the part of the time that counts
//! where results are waited for. Any other line has a name, the latency and the time from one to the next
//! independent one, in cycles, and how much they scattered; `-` stands for a time that was not or cannot be
//! measured, and leaves the assumed one. Calls have one time. The table of the machine that this was made on
//! is built in; `millstream lab calibrate` writes that of another.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use millstream_isa::MapType;
use millstream_isa::helpers::Helper;

/// Parts of the machine that instructions wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutionUnit {
    /// Adders and the like.
    Alu,
    /// Shifters, which are branch units, too.
    Shift,
    /// The multiplier.
    Mul,
    /// The divider.
    Div,
    /// Ports for loads.
    Load,
    /// Ports for stores.
    Store,
    /// Fetch of instructions from the target of a jump.
    Fetch,
    /// All of memory: loads and stores wait for it, and it for them.
    Memory,
    /// None: it is a call, which takes its place in the order of instructions.
    All,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $unit:ident $uops:literal $latency:literal $each:literal;)*) => {
        /// Kinds of instructions, as the machine sees them.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// The name in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }

            /// As it is where nothing was measured.
            const fn assumed(self) -> InsnTiming {
                match self {
                    $(Kind::$kind => InsnTiming {
                        unit: ExecutionUnit::$unit,
                        uops: $uops,
                        latency: $latency,
                        each: $each,
                    },)*
                }
            }
        }
    };
}

kinds! {
    /// Addition, logic, sign extension.
    Alu "alu" Alu 1 1000 200;
    /// Shift by a constant.
    Shift "shift" Shift 1 1000 500;
    /// Shift by a register.
    ShiftBy "shift-by" Shift 1 1000 500;
    /// Multiplication.
    Mul "mul" Mul 1 3000 1000;
    /// Division or remainder, 32 bits, with what saves the registers that it needs.
    Div32 "div32" Div 10 16000 7000;
    /// Division or remainder, 64 bits.
    Div64 "div64" Div 10 16000 7000;
    /// A copy of a register.
    Move "move" Alu 1 0 167;
    /// A constant.
    Constant "constant" Alu 1 1000 200;
    /// Swap of 16 bits: a rotation and an extension.
    Swap16 "swap16" Shift 2 2000 500;
    /// Swap of 32 bits.
    Swap32 "swap32" Shift 1 1000 500;
    /// Swap of 64 bits.
    Swap64 "swap64" Shift 2 2000 500;
    /// A load.
    Load "load" Load 1 5000 333;
    /// A store; its latency is that until the value can be loaded, less that of the load.
    Store "store" Store 1 0 500;
    /// A load of a value just stored, all of it by one store.
    Forward "forward" Load 1 5000 333;
    /// A load of a value just stored in pieces, or wider than it was stored.
    Stall "stall" Load 1 14000 333;
    /// An atomic operation without a result.
    Atomic "atomic" Memory 4 18000 18000;
    /// An atomic addition or exchange with a result.
    Fetch "fetch" Memory 4 18000 18000;
    /// An atomic and, or, exclusive or with a result: a loop.
    FetchLoop "fetch-loop" Memory 10 25000 25000;
    /// A comparison and a branch that is not taken.
    Branch "branch" Shift 1 1000 500;
    /// A jump, or the price of a taken branch beside the comparison: the next one comes so much later at the
    /// soonest.
    Jump "jump" Fetch 0 0 1000;
    /// A call of an empty function of the program: the frame and the return. Each function has this once.
    Frame "frame" All 8 8000 8000;
    /// A callee-saved register that a function uses: one push and one pop.
    Saved "saved" All 2 1000 1000;
    /// A tail call.
    Tail "tail" All 20 20000 20000;
    /// A helper or kernel function without a measured time.
    Call "call" All 20 20000 20000;
    /// A lookup in a map of unknown type.
    Lookup "lookup" All 20 20000 20000;
}

/// Timing of one kind of operation. Times are in thousandths of a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InsnTiming {
    /// Unit that the operation waits for.
    pub unit: ExecutionUnit,
    /// Operations of the machine.
    pub uops: u32,
    /// From operands to result.
    pub latency: u32,
    /// From one to the next, independent one.
    pub each: u32,
}

/// Timing of each kind on a machine, and of each helper and lookup that was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    timings: Vec<InsnTiming>,
    /// Operations that are issued in a cycle, in thousandths.
    width: u32,
    /// The part of the time that counts where results are waited for, in thousandths; the rest counts where
    /// work is issued.
    waited: u32,
    helpers: BTreeMap<i32, u32>,
    lookups: BTreeMap<u32, u32>,
}

/// Why a text is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TableError {
    /// The line, from 1.
    pub line: usize,
    /// Description of the error.
    pub what: String,
}

/// Calls that take longer are no measurement.
const LONGEST: f64 = 1e6;

static INSTALLED: OnceLock<CostModel> = OnceLock::new();

impl CostModel {
    /// Reads a table; entries that it lacks are those of the built-in one.
    ///
    /// # Errors
    /// [`TableError`] at the first line that is neither a comment nor a known name with its times.
    pub fn parse(text: &str) -> Result<CostModel, TableError> {
        let mut table = CostModel::built_in().clone();
        table.read(text)?;
        Ok(table)
    }

    /// The table of the machine that this was made on.
    pub fn built_in() -> &'static CostModel {
        static TABLE: LazyLock<CostModel> = LazyLock::new(|| {
            let mut table = CostModel {
                timings: Kind::ALL.iter().map(|k| k.assumed()).collect(),
                width: 6000,
                waited: 250,
                helpers: BTreeMap::new(),
                lookups: BTreeMap::new(),
            };
            // A test reads it; a wrong line would leave the assumed times.
            let _ = table.read(include_str!("built-in.costs"));
            table
        });
        &TABLE
    }

    /// Built-in table of a machine whose kernel works around speculation in calls, returns and indirect
    /// jumps: AMD Zen 3 with retpolines and safe returns.
    pub fn with_thunks() -> &'static CostModel {
        static TABLE: LazyLock<CostModel> = LazyLock::new(|| {
            let mut table = CostModel::built_in().clone();
            // As for the table that it extends, a test reads it.
            let _ = table.read(include_str!("thunks.costs"));
            table
        });
        &TABLE
    }

    /// The built-in table that is closest to a machine with these mitigations, as the kernel names them in
    /// `/sys/devices/system/cpu/vulnerabilities`.
    pub fn of_mitigations(mitigations: &str) -> &'static CostModel {
        let has = |name: &str| mitigations.contains(name);
        if has("Retpoline") || has("Safe RET") || has("untrained return thunk") {
            CostModel::with_thunks()
        } else {
            CostModel::built_in()
        }
    }

    /// The table by which this process predicts: the built-in one, unless another was installed.
    pub fn current() -> &'static CostModel {
        INSTALLED.get().unwrap_or_else(|| CostModel::built_in())
    }

    /// Installs another table for predictions. Only the first one is taken; call this before the first
    /// prediction, so that it holds for all of them. Returns true if the table was taken.
    pub fn install(table: CostModel) -> bool {
        INSTALLED.set(table).is_ok()
    }

    /// Operations that are issued in a cycle, in thousandths: never none.
    pub fn width(&self) -> u32 {
        self.width.max(1)
    }

    /// The part of the time, in thousandths, that counts where results are waited for: code is between as
    /// fast as its results come and as fast as it can be issued, since what comes behind it overlaps with it.
    pub fn latency_share(&self) -> u32 {
        self.waited.min(1000)
    }

    /// The same machine, on which calls take no time but those that the kernel puts in line: what an analyser
    /// sees that knows machine code and not the kernel.
    pub fn without_calls(&self) -> CostModel {
        const INLINED: u32 = 5000;
        let mut table = self.clone();
        for time in table.helpers.values_mut().chain(table.lookups.values_mut()).filter(|t| **t > INLINED) {
            *time = 0;
        }
        for kind in [Kind::Call, Kind::Lookup, Kind::Tail] {
            table.timings[kind as usize].latency = 0;
        }
        table
    }

    /// Timing of a kind.
    pub fn timing(&self, kind: Kind) -> InsnTiming {
        self.timings[kind as usize]
    }

    /// Thousandths of a cycle for a call of a helper, lookups apart.
    pub fn helper(&self, id: i32) -> u32 {
        self.helpers.get(&id).copied().unwrap_or(self.timing(Kind::Call).latency)
    }

    /// Thousandths of a cycle for a lookup that finds, in a map of this type.
    pub fn lookup(&self, map_type: Option<MapType>) -> u32 {
        let known = map_type.and_then(|t| self.lookups.get(&t.0).copied());
        known.unwrap_or(self.timing(Kind::Lookup).latency)
    }

    fn read(&mut self, text: &str) -> Result<(), TableError> {
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(name) = words.next() else { continue };
            let mut time = || match words.next() {
                None | Some("-") => Ok(None),
                Some(word) => match word.parse::<f64>() {
                    Ok(cycles) if (0.0..=LONGEST).contains(&cycles) => {
                        Ok(Some((cycles * 1000.0).round() as u32))
                    }
                    _ => Err(format!("`{word}` is no number of cycles")),
                },
            };
            let times = time().and_then(|latency| Ok((latency, time()?)));
            let set = times.and_then(|(latency, each)| self.set(name, latency, each));
            set.map_err(|what| TableError { line: n + 1, what })?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, latency: Option<u32>, each: Option<u32>) -> Result<(), String> {
        if name == "width" {
            self.width = latency.unwrap_or(self.width);
        } else if name == "waited" {
            self.waited = latency.unwrap_or(self.waited);
        } else if let Some(helper) = name.strip_prefix("helper/") {
            let (id, _) = Helper::by_name(helper).ok_or_else(|| format!("no helper `{helper}`"))?;
            self.helpers.extend(latency.map(|t| (id, t)));
        } else if let Some(map_type) = name.strip_prefix("lookup/") {
            let id = map_type_by_name(map_type).ok_or_else(|| format!("no map type `{map_type}`"))?;
            self.lookups.extend(latency.map(|t| (id, t)));
        } else {
            let kind =
                Kind::ALL.iter().find(|k| k.name() == name).ok_or_else(|| format!("no kind `{name}`"))?;
            let timing = &mut self.timings[*kind as usize];
            timing.latency = latency.unwrap_or(timing.latency);
            timing.each = each.unwrap_or(timing.each);
        }
        Ok(())
    }
}

fn map_type_by_name(name: &str) -> Option<u32> {
    (0..64).find(|n| MapType(*n).name().is_some_and(|known| known.eq_ignore_ascii_case(name)))
}
