//! Origin of a configuration: a file, standard input, or the command line.

use std::io;
use std::path::{Path, PathBuf};

use miette::{Result, miette};

use crate::bounded_read;

/// A configuration's origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConfigInput {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// The text itself.
    Text(String),
}

impl ConfigInput {
    /// Name for diagnostics and reports, as Click has it.
    pub(crate) fn name(&self) -> String {
        match self {
            ConfigInput::File(path) => path.display().to_string(),
            ConfigInput::Stdin => "<stdin>".to_owned(),
            ConfigInput::Text(_) => "config".to_owned(),
        }
    }

    /// The file, if it is one: libraries are searched beside it.
    pub(super) fn path(&self) -> Option<&Path> {
        if let ConfigInput::File(path) = self { Some(path) } else { None }
    }

    /// Reads the bytes of the configuration.
    ///
    /// # Errors
    /// If the file or standard input cannot be read.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            ConfigInput::File(path) => bounded_read::bytes(path),
            ConfigInput::Stdin => bounded_read::bytes_of_input(),
            ConfigInput::Text(text) => Ok(text.clone().into_bytes()),
        }
    }
}

impl From<&Path> for ConfigInput {
    fn from(path: &Path) -> ConfigInput {
        if path == Path::new("-") { ConfigInput::Stdin } else { ConfigInput::File(path.to_owned()) }
    }
}

/// A configuration to compile.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    pub(crate) input: ConfigInput,
    /// Variables as `NAME=VALUE`, which win over `define`.
    pub(super) variables: Vec<String>,
    /// Folders of libraries, behind that of the configuration and the current one.
    pub(super) folders: Vec<PathBuf>,
    /// True if diagnostics are lines as Click prints them.
    pub(super) plain: bool,
    /// True if warnings are not printed.
    pub(super) quiet: bool,
}

impl ConfigSource {
    /// A configuration in a file.
    pub fn of_file(path: &Path, variables: &[String]) -> ConfigSource {
        let (input, variables) = (ConfigInput::from(path), variables.to_vec());
        ConfigSource { input, variables, folders: Vec::new(), plain: false, quiet: false }
    }

    /// A configuration that is this text.
    pub(super) fn of_text(text: &str) -> ConfigSource {
        ConfigSource {
            input: ConfigInput::Text(text.to_owned()),
            ..ConfigSource::of_file(Path::new(""), &[])
        }
    }
}

/// Options that name a configuration.
#[derive(Debug, clap::Args)]
pub struct ClickConfigArgs {
    /// The configuration, by default (and as `-`) standard input; and variables that win over its `define`
    #[arg(value_name = "CONF|NAME=VALUE")]
    words: Vec<String>,
    /// Read the configuration from this file
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Take this text as the configuration
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    expression: Option<String>,
    /// Search libraries in these folders, too, separated by `:`
    #[arg(short = 'C', long, value_name = "FOLDERS", env = "CLICKPATH")]
    clickpath: Option<String>,
    /// Print no warnings about the configuration
    #[arg(short = 'w', long)]
    no_warnings: bool,
}

impl ClickConfigArgs {
    /// The configuration; its diagnostics are those of Click if `plain`.
    ///
    /// # Errors
    /// If several are named.
    pub(crate) fn source(&self, plain: bool) -> Result<ConfigSource> {
        let folders = self.clickpath.as_deref().unwrap_or_default().split(':');
        Ok(ConfigSource {
            input: self.input()?,
            variables: self.words.iter().filter(|word| variable(word).is_some()).cloned().collect(),
            folders: folders.filter(|folder| !folder.is_empty()).map(PathBuf::from).collect(),
            plain,
            quiet: self.no_warnings,
        })
    }

    fn input(&self) -> Result<ConfigInput> {
        let mut files = self.words.iter().filter(|word| variable(word).is_none());
        let named = match (&self.expression, &self.file) {
            (Some(text), _) => Some(ConfigInput::Text(text.clone())),
            (None, Some(file)) => Some(ConfigInput::from(file.as_path())),
            (None, None) => None,
        };
        match (named.or_else(|| Some(ConfigInput::from(Path::new(files.next()?)))), files.next()) {
            (_, Some(extra)) => Err(miette!("{extra}: one configuration only, and variables as NAME=VALUE")),
            (named, None) => Ok(named.unwrap_or(ConfigInput::Stdin)),
        }
    }
}

/// The name of a variable if a word is `NAME=VALUE`.
fn variable(word: &str) -> Option<&str> {
    let (name, _) = word.split_once('=')?;
    let name = name.strip_prefix('$').unwrap_or(name);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{ClickConfigArgs, ConfigInput};

    #[derive(Parser)]
    struct ConfigCli {
        #[command(flatten)]
        configuration: ClickConfigArgs,
    }

    #[test]
    fn words_are_a_file_and_variables_in_any_order() {
        let read = |words: &[&str]| {
            let args = ConfigCli::try_parse_from([&["x"], words].concat()).ok()?.configuration;
            let source = args.source(false).ok()?;
            Some((source.input, source.variables))
        };
        let file = |name: &str| ConfigInput::File(name.into());
        let text = |text: &str| ConfigInput::Text(text.into());
        assert_eq!(read(&["a.click"]), Some((file("a.click"), vec![])));
        assert_eq!(
            read(&["A=1", "a.click", "B=x=y"]),
            Some((file("a.click"), vec!["A=1".into(), "B=x=y".into()]))
        );
        assert_eq!(read(&["-f", "a.click", "A=1"]), Some((file("a.click"), vec!["A=1".into()])));
        assert_eq!(read(&["-e", "-> Idle", "A=1"]), Some((text("-> Idle"), vec!["A=1".into()])));
        assert_eq!(read(&["./a=b/c.click"]), Some((file("./a=b/c.click"), vec![])));
        assert_eq!(
            [read(&[]), read(&["-"])],
            [Some((ConfigInput::Stdin, vec![])), Some((ConfigInput::Stdin, vec![]))]
        );
        assert_eq!([read(&["a", "b"]), read(&["-e", "x", "b"]), read(&["-f", "a", "b"])], [None, None, None]);
    }
}
