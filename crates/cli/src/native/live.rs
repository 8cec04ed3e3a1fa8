//! `--io xdp:INTERFACE`, `raw:` and `tap:`: packets of interfaces, through AF_XDP, raw sockets or as TAP
//! interfaces, until told to stop.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, miette};
use millstream_kernel::interface_index;
use millstream_lab::os;
use millstream_native::Engine;
use millstream_native::io::floor::Floor;
use millstream_native::io::live::{Take, Wire, serve};
use millstream_native::io::queues::{Metadata, Plan};
use millstream_native::io::wires::serve_by;
use millstream_native::io::{Account, Crew, Ran};
use millstream_ports::{Error, Lost, Options, Plain, Port};

use super::control::Control;
use super::{bind, taken};
use crate::exit::Exit;
use crate::progress::Progress;

/// A port, as the loop uses it.
pub(crate) enum Wired {
    Xdp(Port),
    Plain(Plain),
}

impl Wire for Wired {
    fn index(&self) -> u32 {
        match self {
            Wired::Xdp(port) => port.interface().index(),
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
    pub(crate) fn description(&self) -> String {
        match self {
            Wired::Xdp(port) => taken::Port::of(port.interface()).text(),
            Wired::Plain(plain) => plain.name().to_owned(),
        }
    }

    /// Its properties, if it was opened by AF_XDP.
    pub(crate) fn taken(&self) -> Option<taken::Port> {
        match self {
            Wired::Xdp(port) => Some(taken::Port::of(port.interface())),
            Wired::Plain(_) => None,
        }
    }

    pub(crate) fn lost(&mut self) -> Result<Lost, Error> {
        match self {
            Wired::Xdp(port) => Ok(port.lost()),
            Wired::Plain(plain) => plain.lost(),
        }
    }
}

/// Transport of packets to and from interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// AF_XDP: all packets, which nobody else gets.
    Xdp,
    /// Raw sockets: copies of all packets.
    Raw,
    /// TAP interfaces, created for the run.
    Tap,
    /// The same with IP packets, for devices of a configuration without frames.
    Tun,
}

impl Way {
    /// The transport of this name.
    pub(crate) fn named(word: &str) -> Option<Way> {
        match word {
            "xdp" => Some(Way::Xdp),
            "raw" => Some(Way::Raw),
            "tap" => Some(Way::Tap),
            _ => None,
        }
    }

    /// Its name.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Way::Xdp => "xdp:...",
            Way::Raw => "raw:...",
            Way::Tap | Way::Tun => "tap:...",
        }
    }

    /// Parses `--io`: the transport, and the interfaces; `None` if it is something else.
    pub(super) fn of(io: &str) -> Option<(Way, &str)> {
        let (word, names) = io.split_once(':')?;
        Some((Way::named(word)?, names))
    }

    /// Opens an interface.
    pub(crate) fn open(self, name: &str) -> Result<Wired, Refused> {
        let wired = match self {
            Way::Xdp => Port::open(name, &Options::default()).map(Wired::Xdp),
            Way::Raw => Plain::raw(name).map(Wired::Plain),
            Way::Tap => Plain::tap(name).map(Wired::Plain),
            Way::Tun => Plain::tun(name).map(Wired::Plain),
        };
        wired.map_err(|error| Refused { way: self, error })
    }

    /// Opens an interface for so many workers, each of which gets the packets of its flows. Returns no wires
    /// for AF_XDP, whose queues are distributed otherwise.
    pub(crate) fn open_by(self, name: &str, workers: u32) -> Result<Vec<Wired>, Refused> {
        let plain = match self {
            Way::Xdp => Ok(Vec::new()),
            Way::Raw => Plain::raw_by(name, workers),
            Way::Tap => Plain::tap_by(name, workers),
            Way::Tun => Plain::tun_by(name, workers),
        };
        let plain = plain.map_err(|error| Refused { way: self, error })?;
        Ok(plain.into_iter().map(Wired::Plain).collect())
    }

    /// Privileges that it needs, as a message.
    fn rights(self) -> &'static str {
        match self {
            Way::Xdp => "--io xdp:... needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
            Way::Raw => "--io raw:... needs root, or CAP_NET_RAW",
            Way::Tap | Way::Tun => "--io tap:... needs root, or CAP_NET_ADMIN",
        }
    }
}

/// Open interfaces, by worker.
pub(super) struct Ports(Vec<Vec<Wired>>);

/// Opens interfaces for so many workers; returns the wires of each.
pub(crate) fn open_all<'n>(
    interfaces: impl IntoIterator<Item = (Way, &'n str)>,
    workers: u32,
) -> Result<Vec<Vec<Wired>>, Refused> {
    let mut all: Vec<Vec<Wired>> = (0..workers).map(|_| Vec::new()).collect();
    for (way, name) in interfaces {
        match workers {
            1 => all[0].push(way.open(name)?),
            _ => way.open_by(name, workers)?.into_iter().zip(&mut all).for_each(|(wire, of)| of.push(wire)),
        }
    }
    Ok(all)
}

/// Packets lost before they arrived at these wires.
pub(crate) fn lost<'w>(wires: impl IntoIterator<Item = &'w mut Wired>) -> Result<Lost, Error> {
    wires.into_iter().map(Wired::lost).sum()
}

/// Limits of a run: a number of packets, a time, and Ctrl-C.
pub(crate) struct Until {
    packets: Option<u64>,
    end: Option<Instant>,
    _bar: Progress,
}

impl Until {
    /// Starts the time, and catches Ctrl-C from now on.
    pub(crate) fn begin(packets: Option<u64>, seconds: Option<f64>) -> Until {
        os::catch_interrupts();
        let time = seconds.map(Duration::from_secs_f64);
        let bar = match time {
            Some(time) => Progress::timed("serving", time),
            None => Progress::open("serving, until Ctrl-C"),
        };
        Until { packets, end: time.map(|time| Instant::now() + time), _bar: bar }
    }

    /// Returns true if the run goes on after so many received packets.
    pub(crate) fn goes_on(&self, received: u64) -> bool {
        !os::interrupted()
            && self.packets.is_none_or(|n| received < n)
            && self.end.is_none_or(|end| Instant::now() < end)
    }

    /// Serves queues, by workers with processors of their own and batches of this size, until the limit.
    pub(crate) fn during<R>(
        &self,
        (batch, metadata): (usize, Metadata),
        run: impl FnOnce(&Plan<'_>, &Crew<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let goes_on = || self.goes_on(0);
        let most = self.packets.unwrap_or(u64::MAX);
        run(&Plan { batch, metadata, most, goes_on: &goes_on }, &Crew { enter: &bind })
    }
}

impl Ports {
    /// Opens interfaces, separated by commas, for so many workers.
    pub(super) fn open(way: Way, names: &str, workers: u32) -> Result<Ports, Refused> {
        open_all(names.split(',').map(|name| (way, name)), workers).map(Ports)
    }

    /// Indices by which tables refer to the first two of these interfaces, which must exist; a single one
    /// counts twice.
    pub(super) fn pair(names: &str) -> Result<[u32; 2]> {
        let mut indices = names.split(',').map(interface_index);
        let first = indices.next().ok_or_else(|| miette!("no interface is named"))?.into_diagnostic()?;
        Ok([first, indices.next().unwrap_or(Ok(first)).into_diagnostic()?])
    }

    /// Description of the interfaces.
    pub(super) fn description(&self) -> String {
        self.0.iter().take(1).flatten().map(Wired::description).collect::<Vec<_>>().join(", ")
    }

    /// Runs packets until the limit, or Ctrl-C.
    pub(super) fn serve(
        &mut self,
        engine: &mut Engine,
        batch: usize,
        until: &Until,
        control: Option<&Control>,
    ) -> Result<(Ran, Lost)> {
        let mut goes_on = |account: &Account, engine: &mut Engine| {
            control.iter().for_each(|control| control.serve(engine));
            until.goes_on(account.received)
        };
        let ran = match &mut self.0[..] {
            [only] => serve(engine, only, batch, &mut goes_on, &mut |_| {}),
            several => until.during((batch, Metadata::Copy), |plan, crew| {
                let mut attend = |floor: &Floor<'_>| control.iter().for_each(|control| control.attend(floor));
                serve_by(engine, several, plan, crew, Some(&mut attend))
            }),
        };
        let ran = ran.into_diagnostic()?;
        Ok((ran, lost(self.0.iter_mut().flatten()).into_diagnostic()?))
    }
}

/// Interfaces that cannot be opened.
pub(crate) struct Refused {
    way: Way,
    error: Error,
}

impl Refused {
    pub(super) fn new(way: Way, error: Error) -> Refused {
        Refused { way, error }
    }

    /// Reports the error, and returns the exit code: unsupported here, lacking rights, or a mistake.
    pub(crate) fn exit(self) -> Result<ExitCode> {
        let Refused { way, error: e } = self;
        match &e {
            _ if e.is_forbidden() => {
                errln!("{e}\n  {}", way.rights());
                Ok(Exit::NotPermitted.into())
            }
            _ if way == Way::Xdp && e.is_taken() => Err(miette!(
                help = "`ip link set dev NAME xdp off` takes an XDP program away, if nobody needs it",
                "{e}"
            )),
            Error::Queues { interface, workers, .. } => Err(miette!(
                help = format!(
                    "`ethtool -L {interface} combined {workers}` gives it as many, if its driver has \
                     them; or leave --workers out"
                ),
                "{e}"
            )),
            Error::NoZeroCopy { .. } => {
                errln!("{e}\n  leave --zero-copy out, and the kernel copies");
                Ok(Exit::NotPermitted.into())
            }
            Error::Memory { .. } => Err(miette!(
                help = "frames lie below 2 GiB; `ethtool -L NAME combined N` gives an interface fewer queues",
                "{e}"
            )),
            _ => Err(miette!("{e}")),
        }
    }
}
