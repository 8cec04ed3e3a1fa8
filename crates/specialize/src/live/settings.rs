//! What a session is told.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use millstream_kernel::XdpMode;

use super::step::Steps;
use crate::adopt::Adopt;

/// How a session is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where links and maps are pinned.
    pub pins: PathBuf,
    /// Native, generic, or what the driver has.
    pub mode: XdpMode,
    /// Of a TC program: attach it to the way out instead of the way in.
    pub egress: bool,
    /// Take the place of the programs on these interfaces, with their maps, and give it back at the end.
    pub adopt: Vec<u32>,
    /// Which programs may be adopted.
    pub which: Adopt,
    /// How long the original runs before the first look at the traffic.
    pub first: Duration,
    /// How long the instrumented variant runs, if enough packets come.
    pub burst: Duration,
    /// How long it waits for enough packets at most.
    pub patience: Duration,
    /// From one look at the traffic to the next, where something changes.
    pub interval: Duration,
    /// While nothing changes, the interval is doubled, so often at most: a shift of the traffic is seen by other means.
    pub calm: u32,
    /// Maps whose lookups are not to be profiled, by name: nothing that depends on traffic is done about them.
    pub unprofiled: BTreeSet<String>,
    /// From one status report to the next.
    pub status: Duration,
    /// Measure what is installed, and take it back if it is not faster.
    pub measure: bool,
    /// Where a variant that differs from the original is written down, with the packets that show it.
    pub differences: PathBuf,
    /// Give longest-prefix maps and hash maps twins. Otherwise only their hot entries are put into code.
    pub twins: bool,
    /// Maps that nothing is to be specialised on, by name.
    pub exclude: Vec<String>,
    /// Maps of least recent use that no program writes and whose lookups may be code, by name. The kernel does not see such lookups, so
    /// that another entry may go first when the control plane inserts more than there is room for.
    pub approximate: BTreeSet<String>,
    /// Count the packets that take the original code, where a variant is on the hook (an atomic addition for each).
    pub count: bool,
    /// Called where the session can be held: for tests alone.
    pub steps: Steps,
}

impl Settings {
    /// The defaults, with this directory for pins.
    pub fn new(pins: impl Into<PathBuf>) -> Self {
        Settings {
            pins: pins.into(),
            mode: XdpMode::Any,
            egress: false,
            adopt: Vec::new(),
            which: Adopt::Same,
            first: Duration::ZERO,
            burst: Duration::from_millis(4),
            patience: Duration::from_secs(1),
            interval: Duration::from_secs(2),
            calm: 5,
            unprofiled: BTreeSet::new(),
            status: Duration::from_secs(1),
            measure: true,
            differences: PathBuf::from("/var/lib/millstream/differences"),
            twins: true,
            exclude: Vec::new(),
            approximate: BTreeSet::new(),
            count: false,
            steps: Steps::default(),
        }
    }
}
