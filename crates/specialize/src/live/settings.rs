//! Settings of a session.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use millstream_kernel::XdpMode;
use millstream_specializer::saved_profile::SavedProfile;

use super::step::StepCallback;
use crate::adopt::AdoptionScope;
use crate::chain::FusedChain;

/// Times and intervals of a session.
#[derive(Clone, Debug)]
pub struct SessionPace {
    /// Time for which the original runs before the first look at the traffic.
    pub first: Duration,
    /// Time for which the instrumented variant runs, if enough packets come.
    pub burst: Duration,
    /// Longest time for which it waits for enough packets.
    pub patience: Duration,
    /// Interval between looks at the traffic while something changes.
    pub interval: Duration,
    /// Number of times that the interval is doubled, at most, while nothing changes: a shift of the traffic
    /// is seen by other means.
    pub calm: u32,
    /// Interval between status reports.
    pub status: Duration,
}

impl Default for SessionPace {
    fn default() -> Self {
        SessionPace {
            first: Duration::ZERO,
            burst: Duration::from_millis(4),
            patience: Duration::from_secs(1),
            interval: Duration::from_secs(2),
            calm: 5,
            status: Duration::from_secs(1),
        }
    }
}

/// Profiles that a session begins with, and leaves.
#[derive(Clone, Debug, Default)]
pub struct ProfileSettings {
    /// Profile for which the first variant is made, before there are packets.
    pub start: Option<SavedProfile>,
    /// File in which the session keeps its own profile: from the first look at the traffic on, and at most once a
    /// minute, and at its end.
    pub file: Option<PathBuf>,
}

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// Directory in which links and maps are pinned.
    pub pins: PathBuf,
    /// Native, generic, or the best that the driver offers.
    pub mode: XdpMode,
    /// Attach a TC program to egress instead of ingress.
    pub egress: bool,
    /// Take the place of the programs on these interfaces, with their maps, and give it back at the end.
    pub adopt: Vec<u32>,
    /// Programs that may be adopted.
    pub which: AdoptionScope,
    /// The chain that the program was made of: it takes the place of the chain's dispatcher, which stays attached.
    pub chain: Option<FusedChain>,
    /// Times and intervals.
    pub pace: SessionPace,
    /// Maps whose lookups are not to be profiled, by name: nothing that depends on traffic is done for them.
    pub unprofiled: BTreeSet<String>,
    /// Measure the installed variant, and take it back if it is not faster.
    pub measure: bool,
    /// Directory for reports on variants that differ from the original, with the packets that show it.
    pub differences: PathBuf,
    /// Give longest-prefix maps and hash maps twins. Otherwise only their hot entries are put into code.
    pub twins: bool,
    /// Maps that are not to be specialised on, by name.
    pub exclude: Vec<String>,
    /// LRU maps that no program writes and whose lookups may be code, by name. The kernel does not see such
    /// lookups, so that another entry may be evicted first when the control plane inserts more than there is
    /// room for.
    pub approximate: BTreeSet<String>,
    /// Count the packets that take the original code while a variant is on the hook (an atomic addition for
    /// each).
    pub count: bool,
    /// Profiles of other sessions, and for them.
    pub profile: ProfileSettings,
    /// Callback at the points where the session can be held: for tests alone.
    pub steps: StepCallback,
}

impl SessionSettings {
    /// The defaults, with this directory for pins.
    pub fn new(pins: impl Into<PathBuf>) -> Self {
        SessionSettings {
            pins: pins.into(),
            mode: XdpMode::Any,
            egress: false,
            adopt: Vec::new(),
            which: AdoptionScope::Same,
            chain: None,
            pace: SessionPace::default(),
            unprofiled: BTreeSet::new(),
            measure: true,
            differences: PathBuf::from("/var/lib/millstream/differences"),
            twins: true,
            exclude: Vec::new(),
            approximate: BTreeSet::new(),
            count: false,
            profile: ProfileSettings::default(),
            steps: StepCallback::default(),
        }
    }
}
