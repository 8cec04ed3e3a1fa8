//! Samples of a running program, over its socket: that of `millstream native --control`, or a control socket of a
//! configuration.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_lab::os;
use millstream_traces::SampledWindow;

use super::answer::{REQUEST, SampleAnswer};
use crate::progress::Progress;

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer, at most.
const LONGEST: u64 = 64 << 20;
/// First word of a configuration's socket.
const GREETING: &str = "Click::ControlSocket/";
/// Time for the first byte of a greeting.
const FIRST_WORD: Duration = Duration::from_millis(200);

/// Connection to a running program.
struct SampleSource {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    is_configuration: bool,
}

impl SampleSource {
    fn open(path: &Path) -> Result<SampleSource> {
        let at = || format!("{}: no process answers", path.display());
        let stream = UnixStream::connect(path).into_diagnostic().wrap_err_with(at)?;
        // A configuration speaks first, a program waits.
        stream.set_read_timeout(Some(FIRST_WORD)).into_diagnostic()?;
        let mut stream = BufReader::new(stream);
        let greeting = read_line(&mut stream);
        stream.get_ref().set_read_timeout(Some(PATIENCE)).into_diagnostic()?;
        let is_configuration = match greeting {
            Ok(line) if line.starts_with(GREETING) => true,
            Ok(line) => {
                return Err(miette!("{}: it answers {line:?}, and is no such program", path.display()));
            }
            Err(error) if is_timeout(&error) => false,
            Err(error) => return Err(error).into_diagnostic().wrap_err_with(at),
        };
        Ok(SampleSource { path: path.to_owned(), stream, is_configuration })
    }

    /// The last window.
    fn next(&mut self) -> Result<SampledWindow> {
        let at = || format!("{}: the program has ended, or gives no samples", self.path.display());
        let text = match self.is_configuration {
            true => read_handler(&mut self.stream),
            false => {
                let asked = writeln!(self.stream.get_mut(), "{REQUEST}");
                asked.and_then(|()| read_line(&mut self.stream))
            }
        };
        let text = text.into_diagnostic().wrap_err_with(at)?;
        let answer: SampleAnswer = serde_json::from_str(&text).into_diagnostic().wrap_err_with(at)?;
        let frames =
            answer.frames().ok_or_else(|| miette!("{}: the samples are damaged", self.path.display()))?;
        Ok(SampledWindow { frames })
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn read_line(stream: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    match stream.by_ref().take(LONGEST).read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

/// Reads the handler of a configuration by Click's protocol.
fn read_handler(stream: &mut BufReader<UnixStream>) -> io::Result<String> {
    writeln!(stream.get_mut(), "READ {REQUEST}")?;
    let status = read_line(stream)?;
    if !status.starts_with("200") {
        return Err(io::Error::other(status.trim_end().to_owned()));
    }
    let length = read_line(stream)?;
    let length = length.trim_end().strip_prefix("DATA ").and_then(|count| count.parse::<u64>().ok());
    let length = length.filter(|length| *length <= LONGEST).ok_or_else(|| io::Error::other("no data"))?;
    let mut text = String::new();
    stream.by_ref().take(length).read_to_string(&mut text)?;
    Ok(text)
}

/// Asks a program for so many windows with packets, at this interval. Gives up when none has come for `patience`.
///
/// # Errors
/// If no program answers, or it ends before the first window.
pub(super) fn collect(
    path: &Path,
    windows: usize,
    interval: Duration,
    patience: Duration,
) -> Result<Vec<SampledWindow>> {
    let mut source = SampleSource::open(path)?;
    let mut bar = Progress::counted("sampling", windows);
    let (mut found, mut last) = (Vec::new(), Instant::now());
    while found.len() < windows && !os::interrupted() && last.elapsed() < patience {
        match source.next() {
            Ok(window) if window.frames.is_empty() => {}
            Ok(window) => {
                found.push(window);
                last = Instant::now();
                bar.step();
            }
            // What was sampled until the program ended is still good.
            Err(error) if found.is_empty() => return Err(error),
            Err(_) => break,
        }
        std::thread::sleep(interval);
    }
    Ok(found)
}
