//! `millstream top`: a live view of the daemon's programs: their rates and gains, lookups by heat and their
//! implementations, the hottest keys, the variant's cost.
//!
//! The drawing depends only on a `TopView`, so that tests draw it onto a screen in memory.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::miette;
use millstream_specialize::live::details::{KeyDetails, LookupDetails, SessionDetails, SlotDetails};
use millstream_specialize::report::AttachedInterface;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell as BufferCell;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame, Terminal};

use super::client::{AskError, DaemonConnection, DaemonSocketArgs, duration};
use super::protocol::{DaemonCommand, DaemonStatus, ProgramState, ProgramStatus, ReplyBody};
use crate::exit::Exit;
use crate::output;
use crate::wrap::{columns, cut, wrap};

/// Flags of `millstream top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Interval between two updates, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = crate::duration_args::milliseconds())]
    interval: u64,
    /// Print the view once, as text
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    at: DaemonSocketArgs,
}

/// State of the display.
#[derive(Clone, Debug, Default)]
struct TopView {
    status: DaemonStatus,
    details: Option<SessionDetails>,
    /// Index of the selected program.
    program: usize,
    /// Index of the lookup whose keys are shown, by heat.
    lookup: usize,
    /// Outcome of the last order.
    message: String,
}

/// Action of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyAction {
    Quit,
    Program(isize),
    Lookup(isize),
    Pause,
    Rollback,
    Resume,
}

/// Runs the command.
pub fn run(args: &TopArgs) -> Result<ExitCode, miette::Report> {
    if !args.once && !output::is_terminal() {
        return Err(miette!(help = "--once prints the view as text", "standard output is no terminal"));
    }
    let mut connection = match DaemonConnection::open(&args.at.socket) {
        Ok(connection) => connection,
        Err(error) => return Ok(error.print_error().into()),
    };
    if args.once {
        let mut view = TopView::default();
        return Ok(match view.look(&mut connection) {
            Ok(()) => {
                let columns = columns() as u16;
                out!("{}", view.text(columns, view.rows(columns)));
                Exit::Done
            }
            Err(error) => error.print_error(),
        }
        .into());
    }
    let mut terminal = ratatui::try_init().map_err(|error| miette!("the terminal: {error}"))?;
    let ended = follow(&mut terminal, &mut connection, Duration::from_millis(args.interval.max(100)));
    // An unusable terminal needs no restoring.
    let _ = ratatui::try_restore();
    match ended {
        Ok(()) => Ok(Exit::Done.into()),
        Err(TopError::Ask(error)) => Ok(error.print_error().into()),
        Err(TopError::Terminal(error)) => Err(miette!("the terminal: {error}")),
    }
}

/// Reasons why the view ended unasked.
enum TopError {
    Ask(AskError),
    Terminal(std::io::Error),
}

fn follow(
    terminal: &mut DefaultTerminal,
    daemon: &mut DaemonConnection,
    interval: Duration,
) -> Result<(), TopError> {
    let mut view = TopView::default();
    loop {
        view.look(daemon).map_err(TopError::Ask)?;
        let next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| view.draw(frame)).map_err(TopError::Terminal)?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left).map_err(TopError::Terminal)? {
                break;
            }
            let Event::Key(key) = event::read().map_err(TopError::Terminal)? else { continue };
            let wish = (key.kind == KeyEventKind::Press).then(|| wish(key.code)).flatten();
            match wish {
                Some(KeyAction::Quit) => return Ok(()),
                Some(wish) => {
                    view.grant(wish, daemon).map_err(TopError::Ask)?;
                    break;
                }
                None => {}
            }
        }
    }
}

fn wish(key: KeyCode) -> Option<KeyAction> {
    Some(match key {
        KeyCode::Char('q') | KeyCode::Esc => KeyAction::Quit,
        KeyCode::Up | KeyCode::Char('k') => KeyAction::Program(-1),
        KeyCode::Down | KeyCode::Char('j') => KeyAction::Program(1),
        KeyCode::Left | KeyCode::Char('h') => KeyAction::Lookup(-1),
        KeyCode::Right | KeyCode::Char('l') | KeyCode::Tab => KeyAction::Lookup(1),
        KeyCode::Char('p') => KeyAction::Pause,
        KeyCode::Char('b') => KeyAction::Rollback,
        KeyCode::Char('r') => KeyAction::Resume,
        _ => return None,
    })
}

/// Minimum number of rows for the keys of a lookup, even if it has none.
const LEAST_KEYS: u16 = 3;

impl TopView {
    /// Queries the current status.
    fn look(&mut self, daemon: &mut DaemonConnection) -> Result<(), AskError> {
        if let (_, ReplyBody::Status(status)) = daemon.ask(DaemonCommand::Status)? {
            self.status = status;
        }
        self.program = self.program.min(self.status.programs.len().saturating_sub(1));
        self.details = None;
        if let Some(program) = self.selected() {
            let command = DaemonCommand::Details { program: program.name.clone() };
            // A program that is not running has no details.
            if let (_, ReplyBody::Details { details }) = daemon.ask(command)? {
                self.details = Some(details);
            }
        }
        Ok(())
    }

    fn grant(&mut self, wish: KeyAction, daemon: &mut DaemonConnection) -> Result<(), AskError> {
        let moved =
            |at: usize, by: isize, count: usize| at.saturating_add_signed(by).min(count.saturating_sub(1));
        let program = self.selected().map(|p| p.name.clone());
        let command = match wish {
            KeyAction::Quit => return Ok(()),
            KeyAction::Program(by) => {
                self.program = moved(self.program, by, self.status.programs.len());
                self.lookup = 0;
                return Ok(());
            }
            KeyAction::Lookup(by) => {
                self.lookup = moved(self.lookup, by, self.details.as_ref().map_or(0, |d| d.lookups.len()));
                return Ok(());
            }
            KeyAction::Pause => DaemonCommand::Pause { program },
            KeyAction::Rollback => DaemonCommand::Rollback { program },
            KeyAction::Resume => DaemonCommand::Resume { program },
        };
        self.message = match daemon.ask(command)?.1 {
            ReplyBody::Refused { message, .. } => message,
            _ => String::new(),
        };
        Ok(())
    }

    fn selected(&self) -> Option<&ProgramStatus> {
        self.status.programs.get(self.program)
    }

    /// The lookups of the selected program, hottest first.
    fn by_heat(&self) -> Vec<&LookupDetails> {
        let mut all: Vec<&LookupDetails> = self.details.iter().flat_map(|d| &d.lookups).collect();
        all.sort_by_key(|l| std::cmp::Reverse(l.seen));
        all
    }

    /// The view as text, on a screen of this size.
    fn text(&self, columns: u16, rows: u16) -> String {
        // Drawing into memory does not fail.
        let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
        let Ok(_) = terminal.draw(|frame| self.draw(frame));
        let screen = terminal.backend().buffer().content();
        let line = |cells: &[BufferCell]| cells.iter().map(BufferCell::symbol).collect::<String>();
        let lines = screen.chunks(usize::from(columns)).map(|cells| line(cells).trim_end().to_owned() + "\n");
        lines.collect()
    }

    /// Rows of the view where nothing is left out.
    fn rows(&self, columns: u16) -> u16 {
        let [programs, pace, maps, keys] = self.heights(columns);
        2 + programs + pace + maps + keys
    }

    /// Rows of its parts: programs, the selected one's rates, lookups, keys.
    fn heights(&self, columns: u16) -> [u16; 4] {
        let lookups = self.by_heat();
        let keys = lookups.get(self.lookup).map_or(0, |lookup| {
            key_rows(lookup, columns).iter().map(|(key, _)| key.len()).sum::<usize>() + 2
        });
        let keys = keys.max(usize::from(LEAST_KEYS));
        let rows = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let pace = self.pace(columns).len();
        [rows(self.status.programs.len() + 3), rows(pace), rows(lookups.len() + 3), rows(keys)]
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let lookups = self.by_heat();
        let Rect { width, height, .. } = frame.area();
        let [programs, pace, maps, _] = self.heights(width);
        // If there is not room for all, no part takes all of it.
        let most = if self.rows(width) <= height { height } else { height / 3 };
        let rows = [
            Constraint::Length(1),
            Constraint::Length(programs.min(most)),
            Constraint::Length(pace),
            Constraint::Length(maps.min(most)),
            Constraint::Min(LEAST_KEYS),
            Constraint::Length(1),
        ];
        let [head, programs, pace, maps, keys, foot] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(self.head(), head);
        self.programs(frame, programs);
        frame.render_widget(Paragraph::new(self.pace(width)), pace);
        self.lookups(frame, maps, &lookups);
        if let Some(lookup) = lookups.get(self.lookup) {
            hot_keys(frame, keys, lookup);
        }
        let help = "q quit  up/down program  left/right lookup  p pause  b rollback  r resume  ";
        frame.render_widget(
            Line::from(vec![dim(help.to_owned()), Span::raw(self.message.clone()).red()]),
            foot,
        );
    }

    fn head(&self) -> Line<'static> {
        let s = &self.status;
        Line::from(format!(
            "millstream {}   up {}   {:.2} % of a core   {:.1} MiB",
            s.version,
            duration(s.uptime_s),
            100.0 * s.cpu_s / s.uptime_s.max(1e-3),
            s.rss_bytes as f64 / (1 << 20) as f64,
        ))
    }

    fn programs(&self, frame: &mut Frame<'_>, area: Rect) {
        const STATE: u16 = 11;
        const OTHERS: [u16; 5] = [7, 14, 6, 4, 7];
        let places =
            |p: &ProgramStatus| p.attachment.interfaces.iter().map(place).collect::<Vec<_>>().join(", ");
        // Borders, and a space between columns.
        let room = area.width.saturating_sub(STATE + OTHERS.iter().sum::<u16>() + 2 + 7);
        let longest =
            |of: &dyn Fn(&ProgramStatus) -> usize| self.status.programs.iter().map(of).max().unwrap_or(0);
        let (names, interfaces) =
            (longest(&|p| p.name.chars().count()), longest(&|p| places(p).chars().count()));
        let name =
            names.clamp(7, usize::from(room).saturating_sub(interfaces).max(usize::from(room / 2)).max(7));
        let interfaces = usize::from(room).saturating_sub(name);
        let row = |p: &ProgramStatus| {
            let ns = |n: Option<f64>| n.map_or("?".to_owned(), |n| format!("{n:.1}"));
            let gain = p.times.original_ns.zip(p.times.current_ns).filter(|(before, _)| *before > 0.0);
            let gain =
                gain.map_or(String::new(), |(before, now)| format!("{:+.0} %", 100.0 * (now / before - 1.0)));
            let cells = [
                cut(&p.name, name),
                p.state.name().to_owned(),
                cut(&places(p), interfaces),
                format!("{:.3}", p.traffic.pps / 1e6),
                format!("{}->{}", ns(p.times.original_ns), ns(p.times.current_ns)),
                gain,
                p.generation.to_string(),
                p.guard.map_or("off".to_owned(), |g| g.to_string()),
            ];
            let style = Style::new().fg(colour(p.state));
            Row::new(cells).style(style)
        };
        let of = |n: usize| Constraint::Length(n as u16);
        let others = OTHERS.map(Constraint::Length);
        let widths = [of(name), Constraint::Length(STATE), of(interfaces)].into_iter().chain(others);
        let header = ["program", "state", "interfaces", "Mpps", "ns per packet", "change", "gen", "guard"];
        let table = Table::new(self.status.programs.iter().map(row), widths)
            .header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered());
        let mut state = TableState::new().with_selected(Some(self.program));
        frame.render_stateful_widget(table, area, &mut state);
    }

    /// Rates of the selected program, and its variant's cost.
    fn pace(&self, columns: u16) -> Vec<Line<'static>> {
        let Some(p) = self.selected() else { return vec![Line::from("no program")] };
        let share = p.traffic.specialised.map_or(String::new(), |fast| {
            format!(
                "; {:.1} % of {} packets specialised",
                100.0 * fast as f64 / p.traffic.packets.max(1) as f64,
                p.traffic.packets
            )
        });
        let c = &p.counts;
        let counts = format!(
            "{} installed, {} withdrawn; writes: {}, no new code: {}, shadow tables: {}{share}",
            c.installs, c.withdrawals, p.writes, c.confirmations, c.refreshes
        );
        let cost = self.details.as_ref().map_or(String::new(), |d| {
            let variant = d.variant_slots.map_or("none".to_owned(), |slots| slots.to_string());
            let kib = d.twin_bytes as f64 / 1024.0;
            format!("slots: original {}, variant {variant}; shadow tables {kib:.0} KiB", d.original_slots)
        });
        let plain =
            [counts, cost].into_iter().chain(self.details.iter().filter(|d| !d.chain.is_empty()).map(chain));
        let lines = |text: String| wrap(&text, columns.into(), 2).into_iter().map(Line::from);
        let reason = p.reason.iter().flat_map(|reason| lines(reason.clone())).map(|line| line.red());
        plain.flat_map(lines).chain(reason).collect()
    }

    fn lookups(&self, frame: &mut Frame<'_>, area: Rect, lookups: &[&LookupDetails]) {
        const OTHERS: [u16; 3] = [15, 13, 9];
        const HOW: u16 = 17;
        let all = lookups.iter().map(|l| l.seen).sum::<u64>().max(1) as f64;
        let is_chain = self.details.as_ref().is_some_and(|d| !d.chain.is_empty());
        let room = area.width.saturating_sub(OTHERS.iter().sum::<u16>() + HOW + 2 + 4);
        let row = |l: &&LookupDetails| {
            let heat = l.seen as f64 / all;
            Row::new([
                Cell::from(cut(&label(l, lookups, is_chain), room.into())),
                Cell::from(cut(&l.map_type, OTHERS[0].into())),
                Cell::from(format!("{:5.1} % {}", 100.0 * heat, bar(heat, 5))),
                Cell::from(l.how.to_string()),
                Cell::from(format!("{:.1} %", 100.0 * l.answered)),
            ])
        };
        let [kind, heat, share] = OTHERS.map(Constraint::Length);
        let widths = [Constraint::Length(room), kind, heat, Constraint::Length(HOW), share];
        let header = ["map", "type", "lookups", "answered by", "answered"];
        let table = Table::new(lookups.iter().map(row), widths)
            .header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title("lookups by frequency"));
        let mut state = TableState::new().with_selected(Some(self.lookup));
        frame.render_stateful_widget(table, area, &mut state);
    }
}

/// An interface and the program's place in the receive path.
fn place(at: &AttachedInterface) -> String {
    let mode = at.mode.as_ref().map_or(String::new(), |mode| format!(" ({mode})"));
    format!("{}{mode}", at.interface)
}

/// Label of a lookup: its map, with the source line if several lookups are in maps of one name, and its
/// program if there are several.
fn label(lookup: &LookupDetails, all: &[&LookupDetails], is_chain: bool) -> String {
    let map = &lookup.map;
    let is_alike =
        |other: &&&LookupDetails| other.map == *map && (!is_chain || other.program == lookup.program);
    let line = lookup.source.as_deref().filter(|_| all.iter().filter(is_alike).count() > 1);
    let line =
        line.and_then(|source| source.rsplit_once(':')).map_or(String::new(), |(_, line)| format!(":{line}"));
    if is_chain { format!("{}: {map}{line}", lookup.program) } else { format!("{map}{line}") }
}

/// Contents of the slots of program arrays, with the form that is called.
fn chain(details: &SessionDetails) -> String {
    format!("calls: {}", details.chain.iter().map(SlotDetails::to_string).collect::<Vec<_>>().join(", "))
}

/// Widths of the columns for a key's share and for `in code`.
const SHARE: u16 = 18;
const IN_CODE: u16 = 7;

/// The hottest keys of a lookup, each wrapped to as many lines as it takes.
fn key_rows(lookup: &LookupDetails, columns: u16) -> Vec<(Vec<String>, &KeyDetails)> {
    let room = usize::from(columns.saturating_sub(SHARE + IN_CODE + 2 + 2)).max(1);
    lookup.keys.iter().map(|key| (wrap(&key.text, room, 2), key)).collect()
}

/// Draws the hottest keys of a lookup.
fn hot_keys(frame: &mut Frame<'_>, area: Rect, lookup: &LookupDetails) {
    let row = |(text, key): (Vec<String>, &KeyDetails)| {
        let how = if key.in_code { "in code" } else { "" };
        let height = u16::try_from(text.len()).unwrap_or(u16::MAX);
        let share = format!("{:5.1} % {}", 100.0 * key.share, bar(key.share, 10));
        Row::new([text.join("\n"), share, how.to_owned()]).height(height)
    };
    let widths = [Constraint::Fill(1), Constraint::Length(SHARE), Constraint::Length(IN_CODE)];
    let source = lookup.source.as_ref().map_or(String::new(), |source| format!(", {source}"));
    let title = format!("hottest keys of {}{source}", lookup.map);
    let rows = key_rows(lookup, area.width).into_iter().map(row);
    frame.render_widget(Table::new(rows, widths).block(Block::bordered().title(title)), area);
}

/// A fraction as a bar of at most so many columns.
fn bar(part: f64, full: u8) -> String {
    "#".repeat((f64::from(full) * part.clamp(0.0, 1.0)).round() as usize)
}

fn dim(text: String) -> Span<'static> {
    Span::styled(text, Style::new().add_modifier(Modifier::DIM))
}

fn colour(state: ProgramState) -> Color {
    match state {
        ProgramState::Running => Color::Green,
        ProgramState::Failed => Color::Red,
        ProgramState::Starting | ProgramState::Waiting | ProgramState::Paused | ProgramState::RolledBack => {
            Color::Yellow
        }
        ProgramState::Stopped => Color::Gray,
    }
}

#[cfg(test)]
mod tests {
    use millstream_specialize::live::details::{LookupMethod, SlotTarget};
    use millstream_specialize::report::{AttachedInterface, GuardState};

    use super::*;
    use crate::protocol::{AttachmentStatus, PacketTimes, TrafficStatus};

    fn view() -> TopView {
        let program = ProgramStatus {
            name: "edge".into(),
            state: ProgramState::Running,
            attachment: AttachmentStatus {
                interfaces: vec![AttachedInterface {
                    ifindex: 2,
                    interface: "eth0".into(),
                    mode: Some("native".into()),
                }],
                ..AttachmentStatus::default()
            },
            traffic: TrafficStatus {
                pps: 1_500_000.0,
                packets: 1_000,
                specialised: Some(900),
                ..TrafficStatus::default()
            },
            times: PacketTimes { original_ns: Some(100.0), current_ns: Some(25.0) },
            generation: 3,
            guard: Some(GuardState::Valid),
            ..ProgramStatus::default()
        };
        let failed = ProgramStatus {
            name: "core".into(),
            state: ProgramState::Failed,
            reason: Some("another program is there".into()),
            ..ProgramStatus::default()
        };
        let lookup = |map: &str, seen, how| LookupDetails {
            program: "edge".into(),
            map: map.into(),
            map_type: "hash".into(),
            source: Some(format!("edge.bpf.c:{seen}")),
            how,
            seen,
            answered: 0.75,
            keys: vec![KeyDetails { text: format!("key of {map}"), share: 0.5, in_code: true }],
        };
        let lookups = vec![lookup("cold", 10, LookupMethod::Map), lookup("hot", 90, LookupMethod::Hot(7))];
        let chain = Vec::new();
        let details = SessionDetails {
            lookups,
            chain,
            original_slots: 120,
            variant_slots: Some(340),
            twin_bytes: 2048,
        };
        let status = DaemonStatus { programs: vec![program, failed], ..DaemonStatus::default() };
        TopView { status, details: Some(details), ..TopView::default() }
    }

    #[test]
    fn everything_is_shown_and_the_hottest_lookup_first() {
        let text = view().text(120, 40);
        for words in [
            "edge",
            "eth0 (native)",
            "1.500",
            "100.0->25.0",
            "-75 %",
            "valid",
            "90.0 % of 1000 packets",
            "original 120, variant 340",
            "shadow tables 2 KiB",
            "7 hot keys",
            "90.0 % #####",
            "hottest keys of hot",
            "key of hot",
            "50.0 % #####",
            "failed",
        ] {
            assert!(text.contains(words), "{words:?} is not in\n{text}");
        }
        assert!(text.find("hot ") < text.find("cold "), "{text}");
        // Small screens lose lines, and nothing else.
        for (columns, rows) in [(1, 1), (20, 5), (80, 12)] {
            assert_eq!(view().text(columns, rows).lines().count(), usize::from(rows));
        }
    }

    #[test]
    fn programs_of_a_chain_are_named() {
        let mut view = view();
        let (array, program) = ("stages".to_owned(), "route".to_owned());
        let details = view.details.as_mut().expect("details");
        details.chain = vec![SlotDetails { array, slot: 1, program, runs: SlotTarget::Variant }];
        let text = view.text(120, 40);
        assert!(
            text.contains("calls: stages[1] route (specialised)") && text.contains("edge: hot"),
            "{text}"
        );
    }

    #[test]
    fn what_is_selected_is_looked_at() {
        let mut view = view();
        view.lookup = 1;
        assert!(view.text(120, 40).contains("key of cold"));
        view.program = 1;
        view.details = None;
        let text = view.text(120, 40);
        assert!(text.contains("another program is there") && !text.contains("hottest keys"), "{text}");
        assert!(TopView::default().text(80, 20).contains("no program"));
    }

    #[test]
    fn keys_ask_for_what_the_last_line_says() {
        assert_eq!(wish(KeyCode::Char('b')), Some(KeyAction::Rollback));
        assert_eq!(wish(KeyCode::Tab), Some(KeyAction::Lookup(1)));
        assert_eq!(wish(KeyCode::Char('x')), None);
    }

    #[test]
    fn everything_fits_into_80_columns_and_uses_more_where_there_are_more() {
        let mut view = view();
        let long = "{source 2001:db8::1, destination 2001:db8:ffff::2, port 65535, protocol 6, zone 12345}";
        view.details.as_mut().expect("details").lookups[1].keys[0].text = long.into();
        let text = view.text(80, view.rows(80));
        for words in ["eth0 (native)", "100.0->25.0", "-75 %", "valid", "7 hot keys", "75.0 %", "in code"] {
            assert!(text.contains(words), "{words:?} is not in\n{text}");
        }
        // In two lines of the table.
        for words in ["2001:db8::1", "2001:db8:ffff::2", "port 65535", "zone 12345}"] {
            assert!(text.contains(words), "{words:?} is not in\n{text}");
        }
        assert!(!text.contains(long) && view.text(160, view.rows(160)).contains(long));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn lookups_in_maps_of_one_name_have_their_source_lines() {
        let mut view = view();
        assert!(!view.text(80, 40).contains("hot:90"));
        view.details.as_mut().expect("details").lookups[0].map = "hot".into();
        let text = view.text(80, 40);
        assert!(text.contains("hot:90 ") && text.contains("hot:10 "), "{text}");
        assert!(text.contains("hottest keys of hot, edge.bpf.c:90"), "{text}");
    }
}
