//! `millstream opt --set`, `--set-file`, `--prune`: an object for the settings of one node.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_object::Object;
use millstream_opt::{LoadSetting, PruneReport, SettledVariable, apply_settings};

use crate::wrap::wrap;

/// Columns of lines on standard error.
const COLUMNS: usize = 80;

/// Flags for load-time settings.
#[derive(clap::Args, Debug)]
pub(super) struct SettingArgs {
    /// Give a constant (`.rodata*`, `const volatile`) its final value, as a loader would: an integer, `true`
    /// or `false`, the name of an enumerator; for arrays and structures, bytes in hexadecimal; repeatable
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<LoadSetting>,
    /// Read settings from a file, one a line; empty lines and lines that begin with `#` do not count
    #[arg(long, value_name = "FILE")]
    set_file: Vec<PathBuf>,
    /// Remove programs behind tail calls, functions, maps and constant data that cannot be reached any more;
    /// the list of what loaders no longer find is on standard error
    #[arg(long)]
    prune: bool,
}

impl SettingArgs {
    /// Sets the constants of an object; those of files first.
    pub(super) fn apply(&self, object: &mut Object) -> Result<Vec<SettledVariable>> {
        let mut settings = Vec::new();
        for path in &self.set_file {
            settings.extend(read_settings(path)?);
        }
        settings.extend(self.settings.iter().cloned());
        apply_settings(object, &settings).into_diagnostic()
    }

    /// Removes from an optimized object what cannot be reached any more, if that is wanted.
    pub(super) fn prune(
        &self,
        original: &Object,
        optimized: Object,
    ) -> Result<(Object, Option<PruneReport>)> {
        if !self.prune {
            return Ok((optimized, None));
        }
        let (object, report) = millstream_opt::prune(original, &optimized).into_diagnostic()?;
        let parts = [
            ("programs", &report.programs),
            ("functions", &report.functions),
            ("maps", &report.maps),
            ("variables", &report.variables),
        ];
        for (kind, names) in parts.into_iter().filter(|(_, names)| !names.is_empty()) {
            let text = format!("removed {kind} ({}): {}", names.len(), names.join(", "));
            wrap(&text, COLUMNS, 2).iter().for_each(|line| errln!("{line}"));
        }
        Ok((object, Some(report)))
    }
}

fn read_settings(path: &Path) -> Result<Vec<LoadSetting>> {
    let named = || path.display().to_string();
    let text = crate::bounded_read::text(path).into_diagnostic().wrap_err_with(named)?;
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    let settings = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parsed = settings.map(|(n, line)| {
        line.parse().into_diagnostic().wrap_err_with(|| format!("{}, line {n}", path.display()))
    });
    parsed.collect()
}
