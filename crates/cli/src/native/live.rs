//! `millstream native --io xdp:INTERFACE`: packets of interfaces, through AF_XDP, raw sockets or as TAP interfaces, until told to stop.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, miette};
use millstream_kernel::interface_index;
use millstream_lab::os;
use millstream_native::Engine;
use millstream_native::io::Ran;
use millstream_native::io::live::{Take, Wire, serve};
use millstream_ports::{Error, Lost, Plain, Port};

use crate::exit::Exit;
use crate::progress::Progress;

/// A port as the loop has it.
enum Wired {
    Xdp(Port),
    Plain(Plain),
}

impl Wire for Wired {
    fn index(&self) -> u32 {
        match self {
            Wired::Xdp(port) => port.index(),
            Wired::Plain(plain) => plain.index(),
        }
    }

    fn receive(&mut self, most: usize, take: Take<'_>) -> io::Result<usize> {
        match self {
            Wired::Xdp(port) => port.receive(most, take),
            Wired::Plain(plain) => plain.receive(most, take),
        }
        .map_err(io::Error::other)
    }

    fn send(&mut self, packet: &[u8]) -> bool {
        match self {
            Wired::Xdp(port) => port.send(packet),
            Wired::Plain(plain) => plain.send(packet),
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        let Wired::Xdp(port) = self else { return Ok(true) };
        port.flush().map_err(io::Error::other)?;
        Ok(port.unsent() == 0)
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        match self {
            Wired::Xdp(port) => port.wait(at_most),
            Wired::Plain(plain) => plain.wait(at_most),
        }
        .map_err(io::Error::other)
    }
}

impl Wired {
    fn description(&self) -> String {
        match self {
            Wired::Xdp(port) => format!("{} ({} queues)", port.name(), port.queues()),
            Wired::Plain(plain) => plain.name().to_owned(),
        }
    }

    fn lost(&mut self) -> Result<Lost, Error> {
        match self {
            Wired::Xdp(port) => Ok(port.lost()),
            Wired::Plain(plain) => plain.lost(),
        }
    }
}

/// How packets of interfaces come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// AF_XDP: all packets, which nobody else gets.
    Xdp,
    /// Raw sockets: copies of all packets.
    Raw,
    /// Interfaces that are made for the purpose.
    Tap,
}

impl Way {
    /// What `--io` says: how, and of which interfaces; none if it is something else.
    pub(super) fn of(io: &str) -> Option<(Way, &str)> {
        let (word, names) = io.split_once(':')?;
        let way = match word {
            "xdp" => Way::Xdp,
            "raw" => Way::Raw,
            "tap" => Way::Tap,
            _ => return None,
        };
        Some((way, names))
    }

    fn open(self, name: &str) -> Result<Wired, Error> {
        match self {
            Way::Xdp => Port::open(name).map(Wired::Xdp),
            Way::Raw => Plain::raw(name).map(Wired::Plain),
            Way::Tap => Plain::tap(name).map(Wired::Plain),
        }
    }

    /// What it needs of this process.
    fn rights(self) -> &'static str {
        match self {
            Way::Xdp => "--io xdp:... needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
            Way::Raw => "--io raw:... needs root, or CAP_NET_RAW",
            Way::Tap => "--io tap:... needs root, or CAP_NET_ADMIN",
        }
    }
}

/// Interfaces that were taken.
pub(super) struct Ports(Vec<Wired>);

/// How long to go on.
pub(super) struct Until {
    pub(super) packets: Option<u64>,
    pub(super) seconds: Option<f64>,
}

impl Ports {
    /// Takes interfaces, named with commas between.
    pub(super) fn open(way: Way, names: &str) -> Result<Ports, Refused> {
        let all = names.split(',').map(|name| way.open(name)).collect::<Result<_, _>>();
        all.map(Ports).map_err(|error| Refused { way, error })
    }

    /// The numbers by which tables name the first two of interfaces that are there; with one, both are its.
    pub(super) fn pair(names: &str) -> Result<[u32; 2]> {
        let mut indices = names.split(',').map(interface_index);
        let first = indices.next().ok_or_else(|| miette!("no interface is named"))?.into_diagnostic()?;
        Ok([first, indices.next().unwrap_or(Ok(first)).into_diagnostic()?])
    }

    /// In words.
    pub(super) fn description(&self) -> String {
        self.0.iter().map(Wired::description).collect::<Vec<_>>().join(", ")
    }

    /// Runs packets until it is enough, or Ctrl-C.
    pub(super) fn serve(&mut self, engine: &mut Engine, batch: usize, until: &Until) -> Result<(Ran, Lost)> {
        os::catch_interrupts();
        let _bar = match until.seconds {
            Some(s) => Progress::timed("serving", Duration::from_secs_f64(s)),
            None => Progress::open("serving, until Ctrl-C"),
        };
        let end = until.seconds.map(|s| Instant::now() + Duration::from_secs_f64(s));
        let ran = serve(
            engine,
            &mut self.0,
            batch,
            &mut |account| {
                !os::interrupted()
                    && until.packets.is_none_or(|n| account.received < n)
                    && end.is_none_or(|end| Instant::now() < end)
            },
            &mut |_| {},
        )
        .into_diagnostic()?;
        let lost = self.0.iter_mut().map(Wired::lost).collect::<Result<Vec<_>, _>>().into_diagnostic()?;
        Ok((ran, lost.into_iter().sum()))
    }
}

/// Interfaces that cannot be taken.
pub(super) struct Refused {
    way: Way,
    error: Error,
}

impl Refused {
    /// What to say and how to end: not here, for want of rights, or a mistake.
    pub(super) fn exit(self) -> Result<ExitCode> {
        let Refused { way, error: e } = self;
        match &e {
            Error::Kernel(k) if matches!(k.errno(), Some(libc::EPERM | libc::EACCES)) => {
                eprintln!("{e}\n  {}", way.rights());
                Ok(Exit::NotPermitted.into())
            }
            _ if way == Way::Xdp && e.is_taken() => Err(miette!(
                help = "`ip link set dev NAME xdp off` takes an XDP program away, if nobody needs it",
                "{e}"
            )),
            _ => Err(miette!("{e}")),
        }
    }
}
