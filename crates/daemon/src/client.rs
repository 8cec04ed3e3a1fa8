//! Commands that query a daemon or give it orders.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use millstream_specialize::report::GuardState;

use super::SOCKET;
use super::protocol::{
    DaemonCommand, DaemonReply, DaemonStatus, HistoryEvent, HistoryLine, HistoryRecord, ProgramState,
    ProgramStatus, Question, ReplyBody, SCHEMA,
};
use crate::exit::Exit;
use crate::run::{interfaces_text, text};
use crate::wrap::{columns, wrap};

/// Time limit for an answer: an order may have to wait for code that is being compiled.
const PATIENCE: Duration = Duration::from_secs(30);

/// Daemon to talk to.
#[derive(Debug, clap::Args)]
pub(crate) struct DaemonSocketArgs {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", env = "MILLSTREAM_SOCKET", default_value = SOCKET)]
    pub(crate) socket: PathBuf,
}

/// Flags of `millstream status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    at: DaemonSocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Flags of `millstream history`.
#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    /// The program; without it, all
    program: Option<String>,
    /// Number of records to show, the newest, at most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    last: usize,
    #[command(flatten)]
    at: DaemonSocketArgs,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// Flags of the commands that give orders.
#[derive(Debug, clap::Args)]
pub struct ProgramArgs {
    /// The program; without it, all
    program: Option<String>,
    #[command(flatten)]
    at: DaemonSocketArgs,
}

/// Flags of `millstream reload`.
#[derive(Debug, clap::Args)]
pub struct ReloadArgs {
    #[command(flatten)]
    at: DaemonSocketArgs,
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct DaemonConnection {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Reasons for a missing answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens, or access is denied.
    #[error("{path}: no daemon answers: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The daemon closed the connection, or its answer cannot be parsed.
    #[error("{path}: the daemon's answer: {source}")]
    Answer {
        /// The socket.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}

impl AskError {
    /// Prints the error and advice; returns the exit code.
    pub(super) fn print_error(&self) -> Exit {
        let (AskError::Connect { source, .. } | AskError::Answer { source, .. }) = self;
        errln!("{self}");
        match source.kind() {
            std::io::ErrorKind::PermissionDenied => {
                errln!("  the socket is its owner's: ask as the user that runs the daemon");
                Exit::NotPermitted
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                errln!("  start one with `millstream daemon`, or name its socket with --socket");
                Exit::Negative
            }
            _ => Exit::Negative,
        }
    }
}

impl DaemonConnection {
    /// Connects to the daemon that listens at a socket.
    ///
    /// # Errors
    /// If nobody listens there, or access is denied.
    pub fn open(socket: &Path) -> Result<DaemonConnection, AskError> {
        let connect = |source| AskError::Connect { path: socket.to_owned(), source };
        let stream = UnixStream::connect(socket).map_err(connect)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(connect)?;
        Ok(DaemonConnection { path: socket.to_owned(), stream: BufReader::new(stream) })
    }

    /// Sends a command, and returns the answer as a line and parsed.
    ///
    /// # Errors
    /// If the daemon closes the connection, or its answer is none of this version.
    pub fn ask(&mut self, command: DaemonCommand) -> Result<(String, ReplyBody), AskError> {
        let failed = |source: std::io::Error| AskError::Answer { path: self.path.clone(), source };
        let mut question =
            serde_json::to_vec(&Question { schema: SCHEMA, command }).map_err(|e| failed(e.into()))?;
        question.push(b'\n');
        self.stream.get_mut().write_all(&question).map_err(failed)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line).map_err(failed)? == 0 {
            return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let reply: DaemonReply = serde_json::from_str(&line).map_err(|e| failed(e.into()))?;
        Ok((line, reply.answer))
    }
}

fn ask(at: &DaemonSocketArgs, command: DaemonCommand) -> Result<(String, ReplyBody), Exit> {
    let answer =
        DaemonConnection::open(&at.socket).and_then(|mut c| c.ask(command)).map_err(|e| e.print_error())?;
    if let ReplyBody::Refused { message, help } = &answer.1 {
        errln!("{message}");
        help.iter().for_each(|line| errln!("  {line}"));
        return Err(Exit::Negative);
    }
    Ok(answer)
}

type CliResult = Result<ExitCode, miette::Report>;

fn ended(result: Result<Exit, Exit>) -> CliResult {
    Ok(result.unwrap_or_else(|exit| exit).into())
}

/// `millstream status`: ends with 1 if a program has failed.
pub fn status(args: &StatusArgs) -> CliResult {
    ended(ask(&args.at, DaemonCommand::Status).map(|(line, answer)| {
        let ReplyBody::Status(status) = answer else { return Exit::Negative };
        out!("{}", if args.json { line } else { table(&status, columns()) });
        let failed = status.programs.iter().any(|p| p.state == ProgramState::Failed);
        if failed { Exit::Negative } else { Exit::Done }
    }))
}

/// `millstream history`.
pub fn history(args: &HistoryArgs) -> CliResult {
    let command = DaemonCommand::History { program: args.program.clone(), last: Some(args.last) };
    ended(ask(&args.at, command).map(|(_, answer)| {
        let ReplyBody::History { records } = answer else { return Exit::Negative };
        for record in &records {
            if args.json {
                outln!("{}", HistoryLine::of(record).json());
            } else {
                outln!("{}", line_of(record));
            }
        }
        Exit::Done
    }))
}

/// `millstream pause`.
pub fn pause(args: &ProgramArgs) -> CliResult {
    order(args, "paused", |program| DaemonCommand::Pause { program })
}

/// `millstream rollback`.
pub fn roll_back(args: &ProgramArgs) -> CliResult {
    order(args, "the original runs", |program| DaemonCommand::Rollback { program })
}

/// `millstream resume`.
pub fn resume(args: &ProgramArgs) -> CliResult {
    order(args, "goes on", |program| DaemonCommand::Resume { program })
}

/// `millstream stop`.
pub fn stop(args: &ProgramArgs) -> CliResult {
    order(args, "stopped", |program| DaemonCommand::Stop { program })
}

/// `millstream reload`.
pub fn reload(args: &ReloadArgs) -> CliResult {
    ended(ask(&args.at, DaemonCommand::Reload).map(|(_, answer)| done(answer, "changed")))
}

fn order(args: &ProgramArgs, how: &str, command: impl FnOnce(Option<String>) -> DaemonCommand) -> CliResult {
    ended(ask(&args.at, command(args.program.clone())).map(|(_, answer)| done(answer, how)))
}

fn done(answer: ReplyBody, how: &str) -> Exit {
    let ReplyBody::Done { programs } = answer else { return Exit::Negative };
    programs.iter().for_each(|program| outln!("{program}: {how}"));
    Exit::Done
}

/// Status as text, for so many columns.
fn table(status: &DaemonStatus, columns: usize) -> String {
    let mut out = format!(
        "millstream {}, process {}, up {}; {:.2} % of a core, {:.1} MiB\n",
        status.version,
        status.pid,
        duration(status.uptime_s),
        100.0 * status.cpu_s / status.uptime_s.max(1e-3),
        status.rss_bytes as f64 / (1 << 20) as f64,
    );
    for program in &status.programs {
        out += &block(program);
    }
    out.lines().flat_map(|line| wrap(line, columns, 2)).map(|line| line + "\n").collect()
}

/// A program's status, in several lines.
fn block(p: &ProgramStatus) -> String {
    let on = if p.attachment.interfaces.is_empty() {
        String::new()
    } else {
        format!(" on {}", interfaces_text(&p.attachment.interfaces))
    };
    let what = p.program.as_deref().map_or(String::new(), |program| format!(": {program}"));
    let mut out = format!("\n{} ({}){what}{on}\n", p.name, p.state.name());
    if let Some(form) = &p.source.form {
        out += &format!("  bundle: {form}\n");
    }
    if let Some(reason) = &p.reason {
        out += &format!("  {reason}\n");
        p.advice.iter().for_each(|line| out += &format!("    {line}\n"));
    }
    if !p.attachment.missing.is_empty() && !p.attachment.interfaces.is_empty() {
        out += &format!("  missing interfaces: {}\n", p.attachment.missing.join(", "));
    }
    if p.guard.is_some() {
        out += &format!("  {}\n  {}\n", packet_rates(p), generation_counts(p));
        let lists = [("may specialise on maps", p.maps.watched.join(", "))];
        for (what, maps) in lists.iter().filter(|(_, maps)| !maps.is_empty()) {
            out += &format!("  {what}: {maps}\n");
        }
        p.chain.iter().for_each(|slot| out += &format!("  calls {slot}\n"));
        p.maps.refused.iter().for_each(|(map, why)| out += &format!("  not on map {map}: {why}\n"));
    }
    out
}

/// Packets, and the time of each.
pub(crate) fn packet_rates(p: &ProgramStatus) -> String {
    let ns = |n: Option<f64>| n.map_or("?".to_owned(), |n| format!("{n:.1}"));
    let share =
        |fast: u64| format!(" ({:.1} % specialised)", 100.0 * fast as f64 / p.traffic.packets.max(1) as f64);
    let gain = p.times.original_ns.zip(p.times.current_ns).filter(|(b, n)| *b > 0.0 && b != n);
    let gain = gain.map_or(String::new(), |(b, n)| format!(" ({:+.0} %)", 100.0 * (n / b - 1.0)));
    format!(
        "{:.3} Mpps, {} packets{}; {} -> {} ns per packet{gain}",
        p.traffic.pps / 1e6,
        p.traffic.packets,
        p.traffic.specialised.map_or(String::new(), share),
        ns(p.times.original_ns),
        ns(p.times.current_ns),
    )
}

/// Counts of generations, by their outcome.
pub(crate) fn generation_counts(p: &ProgramStatus) -> String {
    let c = &p.counts;
    format!(
        "generation {}, guard {}; generations: {} installed, {} withdrawn\n  \
         writes: {}, without new code: {}, with new shadow tables only: {}",
        p.generation,
        p.guard.unwrap_or(GuardState::Off),
        c.installs,
        c.withdrawals,
        p.writes,
        c.confirmations,
        c.refreshes,
    )
}

/// A record in a line.
fn line_of(record: &HistoryRecord) -> String {
    let what = match &record.what {
        HistoryEvent::Report(report) => text(report),
        HistoryEvent::State { state, reason } => {
            let why = reason.as_ref().map_or(String::new(), |r| format!(": {r}"));
            format!("{}{why}", state.name())
        }
    };
    format!("{}  {}: {what}", utc_text(record.time_ms), record.program)
}

/// A moment in UTC as text.
pub fn utc_text(ms: u64) -> String {
    let (days, of_day) = ((ms / 86_400_000) as i64, ms % 86_400_000);
    let (year, month, day) = date(days);
    let (s, ms) = (of_day / 1000, of_day % 1000);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Year, month and day of a day since 1970, by the era-based algorithm of H. Hinnant's `civil_from_days`.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A length of time in its two largest units.
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use millstream_specialize::live::details::{SlotDetails, SlotTarget};

    use super::*;
    use crate::protocol::{MapUseStatus, PacketTimes, TrafficStatus};

    #[test]
    fn moments_and_lengths_of_time() {
        assert_eq!(utc_text(0), "1970-01-01 00:00:00.000Z");
        // 2024-02-29 is a leap day; by `date -u -d @1709251199`.
        assert_eq!(utc_text(1_709_251_199_042), "2024-02-29 23:59:59.042Z");
        assert_eq!(utc_text(1_709_251_200_000), "2024-03-01 00:00:00.000Z");
        assert_eq!(duration(59.9), "59 s");
        assert_eq!(duration(3_661.0), "1 h 1 min");
        assert_eq!(duration(200_000.0), "2 d 7 h");
    }

    #[test]
    fn what_is_called_is_named() {
        let slot = SlotDetails {
            array: "stages".into(),
            slot: 1,
            program: "route".into(),
            runs: SlotTarget::Joined,
        };
        let mut program =
            ProgramStatus { name: "edge".into(), chain: vec![slot], ..ProgramStatus::default() };
        program.guard = Some(GuardState::Valid);
        assert!(block(&program).contains("\n  calls stages[1] route (inlined)\n"), "{}", block(&program));
    }

    #[test]
    fn a_failed_program_says_why_and_what_to_do() {
        let program = ProgramStatus {
            name: "edge".into(),
            state: ProgramState::Failed,
            reason: Some("another program is there".into()),
            advice: vec!["adopt it".into()],
            ..ProgramStatus::default()
        };
        let text = table(&DaemonStatus { programs: vec![program], ..DaemonStatus::default() }, 80);
        for words in ["edge (failed)", "another program is there", "    adopt it"] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn the_status_keeps_to_the_columns_that_there_are() {
        let program = ProgramStatus {
            name: "edge".into(),
            state: ProgramState::Running,
            guard: Some(GuardState::Valid),
            traffic: TrafficStatus {
                packets: 12_345_678_901,
                specialised: Some(12_000_000_000),
                ..TrafficStatus::default()
            },
            times: PacketTimes { original_ns: Some(1234.5), current_ns: Some(321.0) },
            maps: MapUseStatus {
                watched: (0..20).map(|n| format!("a_map_with_a_name_{n}")).collect(),
                refused: vec![(
                    "a_map".into(),
                    "a reason that takes many words to tell, as reasons do ".repeat(3),
                )],
            },
            ..ProgramStatus::default()
        };
        let status = DaemonStatus { programs: vec![program], ..DaemonStatus::default() };
        for columns in [40, 80, 200] {
            let text = table(&status, columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}\n{text}");
        }
        assert!(table(&status, 200).lines().count() < table(&status, 80).lines().count());
    }
}
