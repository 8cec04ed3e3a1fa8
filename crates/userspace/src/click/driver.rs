//! Click's user-level driver: options of click(1), and what they print. docs/click.md.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_click::{ClickProgram, Element, Graph, Handler, HandlerAccess};

use crate::exit::Exit;

/// Options of Click's driver.
#[derive(Debug, clap::Args)]
pub(crate) struct DriverArgs {
    /// Behave as Click's own driver: no report; handlers alone on standard output; diagnostics as `FILE:LINE:
    /// TEXT`; devices are interfaces (`--io raw`); without --packets, no limit. The wrapper `click` says it
    #[arg(long)]
    pub(super) driver: bool,
    /// Run no packet: check the configuration, and print handlers
    #[arg(short, long)]
    pub(super) quit: bool,
    /// Print the time of the run: user, system, elapsed
    #[arg(short, long)]
    time: bool,
    /// Run in simulated time, which jumps to the next event, for scripts and packets alike
    #[arg(long, conflicts_with = "real_time")]
    pub(super) simtime: bool,
    /// Listen at this port of 127.0.0.1, too, as Click's ControlSocket does; `PORT+` is the first free one
    /// from PORT on. The handler `click_driver@@ControlSocket.port` has its number
    #[arg(short = 'p', long = "port", value_name = "PORT")]
    ports: Vec<String>,
    /// Let clients replace the configuration by writing a new one to the handler `hotconfig`
    #[arg(short = 'R', long)]
    pub(super) allow_reconfigure: bool,
    /// Read this handler after the run: its number is the exit code, or 0 for true and 1 for false
    #[arg(short = 'x', long, value_name = "ELEMENT.HANDLER")]
    exit_handler: Option<String>,
}

/// A TCP socket for clients, and the name of its element.
pub(super) struct ControlPort {
    pub(super) listener: TcpListener,
    pub(super) element: String,
    pub(super) port: u16,
}

impl ControlPort {
    /// Opens a port, or the first free one from it on: `PORT+`.
    fn open(element: String, text: &str) -> Result<ControlPort> {
        let (number, is_first) = text.strip_suffix('+').map_or((text, false), |number| (number, true));
        let wrong =
            || miette!("{text}: expected a port number, or `PORT+` for the first free one from PORT on");
        let first: u16 = number.parse().map_err(|_| wrong())?;
        let last = if is_first { u16::MAX } else { first };
        let mut refused = None;
        for port in first..=last {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Ok(listener) => {
                    let port = listener.local_addr().into_diagnostic()?.port();
                    return Ok(ControlPort { listener, element, port });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = Some(error),
                Err(error) => return Err(miette!("port {port}: {error}")),
            }
        }
        Err(miette!("port {text}: {}", refused.map_or_else(String::new, |error| error.to_string())))
    }

    /// The handler with its number.
    pub(super) fn handler(&self) -> Handler {
        let access = HandlerAccess::Text(self.port.to_string());
        Handler { element: self.element.clone(), name: "port".into(), access }
    }
}

/// TCP ports of the elements `ControlSocket` of a configuration: element and port.
pub(super) fn control_sockets(graph: &Graph) -> Vec<(String, String)> {
    let sockets = graph.elements.iter().filter(|element| element.class == "ControlSocket");
    let port = |element: &Element| match &element.arguments[..] {
        [kind, port, ..] if kind.text.eq_ignore_ascii_case("tcp") => {
            Some((element.name.clone(), port.text.clone()))
        }
        _ => None,
    };
    sockets.filter_map(port).collect()
}

/// Start of a run: processor and elapsed time.
pub(super) struct RunClock {
    start: Instant,
    used: (Duration, Duration),
}

impl RunClock {
    pub(super) fn start() -> RunClock {
        RunClock { start: Instant::now(), used: processor_time().unwrap_or_default() }
    }

    /// Time since the start, as Click prints it: `0.012u 0.004s 0:01.25`.
    fn text(&self) -> String {
        let elapsed = self.start.elapsed();
        let (user, system) = processor_time().unwrap_or_default();
        let used = [user.saturating_sub(self.used.0), system.saturating_sub(self.used.1)];
        let [user, system] = used.map(|time| time.as_secs_f64());
        let (seconds, hundredths) = (elapsed.as_secs(), elapsed.subsec_millis() / 10);
        format!("{user:.3}u {system:.3}s {}:{:02}.{hundredths:02}", seconds / 60, seconds % 60)
    }
}

/// User and system time of this process: proc_pid_stat(5), in ticks of 10 ms.
fn processor_time() -> Option<(Duration, Duration)> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process, in parentheses, may have blanks.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || Some(Duration::from_millis(10 * fields.next()?.parse::<u64>().ok()?));
    Some((ticks()?, ticks()?))
}

impl DriverArgs {
    /// Returns true if there are ports for clients.
    pub(super) fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Opens the ports of the command line, and with `--driver` those of elements.
    pub(super) fn open_ports(&self, elements: &[(String, String)]) -> Result<Vec<ControlPort>> {
        let elements = if self.driver { elements } else { &[] };
        let named = |(at, port): (usize, &String)| {
            let suffix = if at == 0 { String::new() } else { format!("@{at}") };
            ControlPort::open(format!("click_driver@@ControlSocket{suffix}"), port)
        };
        let of_elements = elements.iter().map(|(element, port)| ControlPort::open(element.clone(), port));
        self.ports.iter().enumerate().map(named).chain(of_elements).collect()
    }

    /// Prints handlers, which `read` reads, and the time if it is wanted; returns the exit code.
    pub(super) fn finish(
        &self,
        names: &[String],
        clock: &RunClock,
        mut read: impl FnMut(&str) -> Result<String>,
    ) -> Result<ExitCode> {
        if self.time {
            outln!("{}", clock.text());
        }
        for name in names {
            let value = read(name)?;
            let end = if value.ends_with('\n') || value.is_empty() { "" } else { "\n" };
            match names.len() {
                1 => out!("{value}{end}"),
                _ => outln!("{name}:\n{value}{end}"),
            }
        }
        self.exit_code(read)
    }

    /// Exit code of a run, by the handler for it if there is one.
    pub(super) fn exit_code(&self, mut read: impl FnMut(&str) -> Result<String>) -> Result<ExitCode> {
        let Some(name) = &self.exit_handler else { return Ok(Exit::Done.into()) };
        let value = read(name)?;
        match value.trim() {
            "true" => Ok(ExitCode::SUCCESS),
            "false" => Ok(ExitCode::FAILURE),
            number => {
                let number: i64 = number.parse().map_err(|_| miette!("{name}: {value:?} is no exit code"))?;
                // As exit(3) takes it: the low eight bits.
                Ok(ExitCode::from((number & 255) as u8))
            }
        }
    }
}

/// Handlers that names with classes and patterns mean.
pub(super) fn expand(names: &[String], program: &ClickProgram) -> Vec<String> {
    names.iter().flat_map(|name| matching(name, program)).collect()
}

/// Handlers that `ELEMENT.HANDLER` names: ELEMENT may be a pattern, or a class.
fn matching(name: &str, program: &ClickProgram) -> Vec<String> {
    let Some((element, handler)) = name.rsplit_once('.') else { return vec![name.to_owned()] };
    let is_pattern = element.contains(['*', '?', '[']);
    let has = |name: &str| program.handlers.iter().any(|h| h.element == name);
    if has(element) {
        return vec![name.to_owned()];
    }
    let is_class = |name: &str| {
        program.handlers.iter().any(|h| {
            h.element == name
                && h.name == "class"
                && h.access.fixed_text().is_some_and(|class| class == element)
        })
    };
    let own = program.handlers.iter().filter(|h| h.name == handler && !h.element.is_empty());
    let fits = |name: &str| if is_pattern { is_match(element, name) } else { is_class(name) };
    let found: Vec<String> =
        own.filter(|h| fits(&h.element)).map(|h| format!("{}.{handler}", h.element)).collect();
    if found.is_empty() { vec![name.to_owned()] } else { found }
}

/// Returns true if a text matches a pattern of the shell: `*`, `?` and `[...]`.
fn is_match(pattern: &str, text: &str) -> bool {
    let mut characters = pattern.chars();
    let Some(first) = characters.next() else { return text.is_empty() };
    let (rest, mut others) = (characters.as_str(), text.chars());
    match first {
        '*' => {
            let places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            places.into_iter().any(|at| is_match(rest, &text[at..]))
        }
        '?' => others.next().is_some() && is_match(rest, others.as_str()),
        '[' => match (rest.split_once(']'), others.next()) {
            (Some((set, rest)), Some(next)) => is_in_set(set, next) && is_match(rest, others.as_str()),
            _ => false,
        },
        first => others.next() == Some(first) && is_match(rest, others.as_str()),
    }
}

/// Returns true if a set such as `a-z_` or `!0-9` has a character.
fn is_in_set(set: &str, character: char) -> bool {
    let (negated, set) = set.strip_prefix(['!', '^']).map_or((false, set), |set| (true, set));
    let all: Vec<char> = set.chars().collect();
    let (mut at, mut found) = (0, false);
    while let Some(&first) = all.get(at) {
        match (all.get(at + 1), all.get(at + 2)) {
            (Some('-'), Some(&last)) => {
                found |= (first..=last).contains(&character);
                at += 3;
            }
            _ => {
                found |= first == character;
                at += 1;
            }
        }
    }
    found != negated
}

/// Writes a configuration without compound elements to a file, `-` being standard output.
pub(super) fn write_flat(path: &Path, graph: &Graph) -> Result<()> {
    if path == Path::new("-") {
        out!("{graph}");
        return Ok(());
    }
    let write = || -> io::Result<()> { File::create(path)?.write_all(graph.to_string().as_bytes()) };
    write().into_diagnostic().wrap_err_with(|| path.display().to_string())
}

/// Output for the configuration without compound elements, if it is wanted.
#[derive(Debug, clap::Args)]
pub(crate) struct FlatArgs {
    /// Print the configuration without compound elements, and stop
    #[arg(long, visible_alias = "flatten")]
    pub(super) flat: bool,
    /// With --flat: leave out elements that no packet passes, and those that do nothing
    #[arg(long, requires = "flat")]
    pub(super) undead: bool,
    /// With --flat: add `Align` elements where packets are to be aligned
    #[arg(long, requires = "flat")]
    pub(super) align: bool,
    /// Write the configuration without compound elements to this file, `-` being standard output
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::{RunClock, is_match};

    #[test]
    fn patterns_are_those_of_the_shell() {
        let matching =
            [("*", "a/b"), ("q?", "q1"), ("q[0-9]*", "q12x"), ("[!a]b", "cb"), ("a*c*", "abcd"), ("", "")];
        assert!(matching.iter().all(|(pattern, text)| is_match(pattern, text)));
        let others =
            [("q?", "q"), ("q[0-9]", "qa"), ("[!a]b", "ab"), ("a*c", "abcd"), ("[a", "a"), ("", "a")];
        assert!(!others.iter().any(|(pattern, text)| is_match(pattern, text)));
    }

    #[test]
    fn the_time_of_a_run_has_clicks_form() {
        let text = RunClock::start().text();
        let forms = [('u', 3), ('s', 3)];
        for (word, (unit, digits)) in text.split(' ').zip(forms) {
            let number = word.strip_suffix(unit).and_then(|number| number.split_once('.'));
            assert!(number.is_some_and(|(_, fraction)| fraction.len() == digits), "{text}");
        }
        assert!(text.contains(" 0:00."), "{text}");
    }
}
