//! `millstream native --io xdp:INTERFACE`: packets of interfaces, through AF_XDP, until told to stop.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, miette};
use millstream_kernel::interface_index;
use millstream_lab::os;
use millstream_native::Engine;
use millstream_native::io::Ran;
use millstream_native::io::live::{Take, Wire, serve};
use millstream_ports::{Error, Lost, Port};

use crate::exit::Exit;
use crate::progress::Progress;

/// A port as the loop has it.
struct Wired(Port);

impl Wire for Wired {
    fn index(&self) -> u32 {
        self.0.index()
    }

    fn receive(&mut self, most: usize, take: Take<'_>) -> io::Result<usize> {
        self.0.receive(most, take).map_err(io::Error::other)
    }

    fn send(&mut self, packet: &[u8]) -> bool {
        self.0.send(packet)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.0.flush().map_err(io::Error::other)?;
        Ok(self.0.unsent() == 0)
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        self.0.wait(at_most).map_err(io::Error::other)
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
    pub(super) fn open(names: &str) -> Result<Ports, Refused> {
        names
            .split(',')
            .map(|name| Port::open(name).map(Wired))
            .collect::<Result<_, _>>()
            .map(Ports)
            .map_err(Refused)
    }

    /// The numbers by which tables name the first two; with one interface, both are its.
    pub(super) fn pair(names: &str) -> Result<[u32; 2]> {
        let mut indices = names.split(',').map(interface_index);
        let first = indices.next().ok_or_else(|| miette!("no interface is named"))?.into_diagnostic()?;
        Ok([first, indices.next().unwrap_or(Ok(first)).into_diagnostic()?])
    }

    /// In words.
    pub(super) fn description(&self) -> String {
        let one = |w: &Wired| format!("{} ({} queues)", w.0.name(), w.0.queues());
        self.0.iter().map(one).collect::<Vec<_>>().join(", ")
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
        Ok((ran, self.0.iter().map(|w| w.0.lost()).sum()))
    }
}

/// Interfaces that cannot be taken.
pub(super) struct Refused(Error);

impl Refused {
    /// What to say and how to end: not here, for want of rights, or a mistake.
    pub(super) fn exit(self) -> Result<ExitCode> {
        let Refused(e) = self;
        match &e {
            Error::Kernel(k) if matches!(k.errno(), Some(libc::EPERM | libc::EACCES)) => {
                eprintln!("{e}\n  --io xdp:... needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF");
                Ok(Exit::NotPermitted.into())
            }
            _ if e.is_taken() => Err(miette!(
                help = "`ip link set dev NAME xdp off` takes an XDP program away, if nobody needs it",
                "{e}"
            )),
            _ => Err(miette!("{e}")),
        }
    }
}
