//! Report of a session.

use serde::Serialize;

/// Current activity of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdaptState {
    /// Replicas of the program are compiled.
    #[default]
    Starting,
    /// Too few packets have come to judge by.
    WaitingForPackets,
    /// The program runs unspecialised; nothing that was tried pays.
    Watching,
    /// Specialised code runs.
    Specialized,
    /// The session has ended, or cannot go on.
    Ended,
}

/// Reason why specialised code was withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithdrawalReason {
    /// A table that it assumes was written.
    TableWritten,
    /// It takes as long as the program, or longer.
    NoGain,
    /// The traffic has other hot keys.
    TrafficShifted,
}

/// Part of a plan: treatment of a table's look-ups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TableAdvice {
    /// Name of the table.
    pub table: String,
    /// Treatment: `code`, `hot keys`, `empty`, `constant fields` or `constants`.
    pub treatment: &'static str,
    /// Entries or fields in code.
    pub entries: usize,
}

/// Measured time of specialised code beside the program's own, on live batches.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LiveGain {
    /// Median nanoseconds per packet of the program's own code.
    pub program_ns: f64,
    /// The same of the specialised code.
    pub specialized_ns: f64,
}

/// Withdrawals of specialised code, by reason.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct WithdrawalCounts {
    /// Withdrawals because a table was written.
    pub withdrawn_written: u64,
    /// Withdrawals because there was no gain.
    pub withdrawn_no_gain: u64,
    /// Withdrawals because the traffic has shifted.
    pub withdrawn_shifted: u64,
}

impl WithdrawalCounts {
    /// Counts a withdrawal.
    pub(crate) fn count(&mut self, reason: WithdrawalReason) {
        *match reason {
            WithdrawalReason::TableWritten => &mut self.withdrawn_written,
            WithdrawalReason::NoGain => &mut self.withdrawn_no_gain,
            WithdrawalReason::TrafficShifted => &mut self.withdrawn_shifted,
        } += 1;
    }
}

/// Compilations of specialised code, and their time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct CompilationCounts {
    /// Forms that were compiled.
    pub compiled: u64,
    /// Forms that could not be compiled.
    pub compile_failures: u64,
    /// Milliseconds of the session's thread in compiling and judging.
    pub compile_ms: f64,
}

/// Report of a session.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct AdaptStatus {
    /// Number of the format.
    pub schema: u32,
    /// Current activity.
    pub state: AdaptState,
    /// True if code is not installed but only reported.
    pub suggests: bool,
    /// Treatment of tables in the code that is installed or, as advice, would be.
    pub tables: Vec<TableAdvice>,
    /// Time of that code on sampled packets, as a share of the program's.
    pub judged: Option<f64>,
    /// Shortest such time of the forms of the last attempt, whether it was installed or not.
    pub attempted: Option<f64>,
    /// Its time on live batches.
    pub live: Option<LiveGain>,
    /// Installations.
    pub swaps: u64,
    /// Schedules that ran on live packets for a while.
    pub schedules_tried: u64,
    /// The schedule that was chosen, if it is not the program's.
    pub schedule: Option<String>,
    /// Withdrawals, by reason.
    #[serde(flatten)]
    pub withdrawals: WithdrawalCounts,
    /// Compilations.
    #[serde(flatten)]
    pub compilation: CompilationCounts,
    /// Packets on which specialised code was compared with the program.
    pub compared: u64,
    /// Packets of these on which it differed. Nothing is installed after the first one.
    pub differences: u64,
    /// The last failure.
    pub failure: Option<String>,
}

impl AdaptStatus {
    /// The report in lines.
    pub fn text(&self) -> String {
        let state = match self.state {
            AdaptState::Starting => "starting",
            AdaptState::WaitingForPackets => "waiting for packets",
            AdaptState::Watching => "watching; nothing that was tried pays",
            AdaptState::Specialized if self.suggests => "advice only",
            AdaptState::Specialized => "specialised code runs",
            AdaptState::Ended => "ended",
        };
        let mut out = format!("adaptation: {state}\n");
        for TableAdvice { table, treatment, entries } in &self.tables {
            out += &format!("  table {table}: {treatment}, {entries}\n");
        }
        if let Some(judged) = self.judged {
            out += &format!("  {judged:.2} of the program's time on sampled packets\n");
        }
        if let Some(attempted) = self.attempted.filter(|_| self.judged.is_none()) {
            out += &format!("  the fastest form takes {attempted:.2} of the program's time\n");
        }
        if let Some(live) = &self.live {
            out += &format!(
                "  {:.2} ns per packet on live batches, {:.2} without\n",
                live.specialized_ns, live.program_ns
            );
        }
        out += &format!(
            "  {} swaps; withdrawn: {} for writes, {} without gain, {} for traffic\n",
            self.swaps,
            self.withdrawals.withdrawn_written,
            self.withdrawals.withdrawn_no_gain,
            self.withdrawals.withdrawn_shifted
        );
        out += &format!(
            "  {} forms compiled in {:.0} ms, {} failed; {} packets compared, {} differences\n",
            self.compilation.compiled,
            self.compilation.compile_ms,
            self.compilation.compile_failures,
            self.compared,
            self.differences
        );
        if self.schedules_tried > 0 {
            let chosen = self.schedule.as_deref().unwrap_or("the program's own");
            out += &format!("  {} schedules tried; {chosen} is used\n", self.schedules_tried);
        }
        if let Some(failure) = &self.failure {
            out += &format!("  last failure: {failure}\n");
        }
        out
    }
}
