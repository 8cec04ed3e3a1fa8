//! Mapping from a configuration's devices to ports, from `--io`.

use miette::{Result, miette};
use millstream_click::{ClickProgram, GraphSink, GraphSource};

/// `--io` for one device of a configuration, or for all in order.
pub(crate) struct DevicePortSpec<'s, P> {
    pub(crate) device: Option<&'s str>,
    /// Its port, or one port for each device.
    pub(crate) ports: Vec<P>,
}

/// Ports, and the indices of those of sources and outputs; `None` for one that is not a device.
pub(crate) struct DevicePorts<P> {
    pub(crate) ports: Vec<P>,
    pub(crate) sources: Vec<Option<usize>>,
    pub(crate) outputs: Vec<Option<usize>>,
}

fn of_source(source: &GraphSource) -> Option<&str> {
    match source {
        GraphSource::Device(name) => Some(name),
        _ => None,
    }
}

fn of_target(target: &GraphSink) -> Option<&str> {
    match target {
        GraphSink::Device(name) => Some(name),
        GraphSink::File(..) => None,
    }
}

/// The devices of a configuration, in its order; sources first.
pub(crate) fn devices(program: &ClickProgram) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let all =
        program.sources.iter().filter_map(of_source).chain(program.targets.iter().filter_map(of_target));
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Finds the port of each device. `kind` names the ports in errors.
pub(crate) fn assign_ports<P>(
    said: Vec<DevicePortSpec<'_, P>>,
    program: &ClickProgram,
    kind: &str,
) -> Result<DevicePorts<P>> {
    let names = devices(program);
    let (mut of, mut ports) = (Vec::new(), Vec::new());
    for DevicePortSpec { device, ports: given } in said {
        let wanted = device.map_or_else(|| names.clone(), |name| vec![name]);
        if let Some(name) = wanted.iter().find(|name| !names.contains(name)) {
            return Err(miette!("--io: the configuration has no device {name:?}; there are {names:?}"));
        }
        if wanted.len() != given.len() {
            return Err(miette!("--io: {} {kind} for {wanted:?}", given.len()));
        }
        of.extend(wanted);
        ports.extend(given);
    }
    let place = |name: Option<&str>| {
        let at = name.map(|name| {
            let at = of.iter().position(|known| *known == name);
            at.ok_or_else(|| miette!("--io: nothing is said of device {name:?}"))
        });
        at.transpose()
    };
    let sources = program.sources.iter().map(|source| place(of_source(source))).collect::<Result<_>>()?;
    let outputs = program.targets.iter().map(|target| place(of_target(target))).collect::<Result<_>>()?;
    Ok(DevicePorts { ports, sources, outputs })
}

/// Parses `[DEVICE=]WHAT`, where WHAT begins with one of these words. (Names of devices may have any other
/// `=` in them.)
pub(crate) fn device_of<'t>(text: &'t str, is: impl Fn(&str) -> bool) -> Option<(Option<&'t str>, &'t str)> {
    let word = |what: &'t str| what.split(':').next().unwrap_or(what);
    if is(word(text)) {
        return Some((None, text));
    }
    let (device, what) = text.split_once('=')?;
    is(word(what)).then_some((Some(device), what))
}
