//! Settings of a session.

use std::time::Duration;

use millstream_tune::MachineCurves;

/// Degree to which a session acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdaptMode {
    /// Installs code that pays.
    #[default]
    Install,
    /// Compiles and judges code, and only reports what it would install.
    Suggest,
}

/// Form in which a program takes and gives packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketModel {
    /// A verdict for each packet (XDP).
    Verdicts,
    /// The same, for packets of any length (P4).
    OpenVerdicts,
    /// A graph, which sends packets itself.
    Graph,
}

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct AdaptSettings {
    /// Treatment of code that pays.
    pub mode: AdaptMode,
    /// Form of the packets.
    pub packets: PacketModel,
    /// Interval between two looks at tables and traffic.
    pub interval: Duration,
    /// Time for which nobody has written a table before it is in code.
    pub quiet: Duration,
    /// Number of installations in a minute, at most.
    pub swaps_per_minute: u32,
    /// Share of a processor that compiling and judging take, at most, from 0 to 1.
    pub processor_share: f64,
    /// Time on sampled packets beside the program's that code must not exceed to be installed.
    pub most_time: f64,
    /// Time on live batches beside the program's from which on code is withdrawn.
    pub most_live_time: f64,
    /// True if the thread has a low priority.
    pub is_background: bool,
    /// True if other schedules are tried on live packets.
    pub tries_schedules: bool,
    /// Time after which a schedule that too few packets have passed is not tried any longer, nor any other one.
    pub trial_time: Duration,
    /// Curves of this machine, from which follows which schedules are tried.
    pub curves: Option<MachineCurves>,
    /// LLVM's passes for specialised code, if they differ from the program's.
    pub llvm_passes: Option<String>,
}

impl AdaptSettings {
    /// The usual settings for a program that takes packets in this form.
    pub fn new(packets: PacketModel) -> AdaptSettings {
        AdaptSettings {
            mode: AdaptMode::default(),
            packets,
            interval: Duration::from_millis(50),
            quiet: Duration::from_millis(500),
            swaps_per_minute: 12,
            processor_share: 0.2,
            most_time: 0.97,
            most_live_time: 1.0,
            is_background: true,
            tries_schedules: true,
            trial_time: Duration::from_secs(5),
            curves: None,
            llvm_passes: None,
        }
    }

    /// Settings by which all that is compiled is installed, as often as possible, and stays whatever it takes: for
    /// tests of what is installed, in place of tests of its time.
    pub fn without_limits(packets: PacketModel) -> AdaptSettings {
        AdaptSettings {
            interval: Duration::from_millis(2),
            quiet: Duration::ZERO,
            swaps_per_minute: u32::MAX,
            processor_share: 1.0,
            most_time: f64::INFINITY,
            most_live_time: f64::INFINITY,
            is_background: false,
            tries_schedules: false,
            ..AdaptSettings::new(packets)
        }
    }
}
