//! Command lines of the reference switch. The command under the names `simple_switch`, `simple_switch_grpc`
//! and `simple_switch_CLI` takes their flags, and runs as `millstream p4 run` and `millstream p4 cli`.
//!
//! Source: `options_parse.cpp` and the targets' `main.cpp` of behavioral-model, for names and meanings.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Port of commands, as the reference switch has it.
const COMMAND_PORT: &str = "9090";
/// Address of P4Runtime, as the reference switch has it.
const GRPC_ADDRESS: &str = "0.0.0.0:9559";

/// A command line in the terms of this command, and warnings about flags without effect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WrappedCommand {
    /// Command line, with the command's name.
    pub words: Vec<OsString>,
    /// Flags that change nothing, with the reason.
    pub warnings: Vec<String>,
}

/// Translates a command line whose first word is one of the reference switch's names; `None` if it is another.
pub fn translate(arguments: &[OsString]) -> Option<Result<WrappedCommand, String>> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?.to_owned();
    let words: Vec<String> =
        arguments.get(1..)?.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match name.as_str() {
        "simple_switch" => Some(switch(&words, false)),
        "simple_switch_grpc" => Some(switch(&words, true)),
        "simple_switch_CLI" => Some(commands(&words)),
        _ => None,
    }
}

/// Words of a command line that are read one after the other.
struct FlagReader<'w> {
    words: std::slice::Iter<'w, String>,
    flag: String,
    /// Value behind `=`.
    attached: Option<String>,
}

impl FlagReader<'_> {
    /// Value of the current flag.
    fn value(&mut self) -> Result<String, String> {
        let next = || format!("{} needs a value", self.flag);
        match self.attached.take() {
            Some(value) => Ok(value),
            None => self.words.next().cloned().ok_or_else(next),
        }
    }

    /// Reads the next word; one that is a flag is split at `=`.
    fn next(&mut self) -> Option<String> {
        let word = self.words.next()?;
        let (flag, attached) = match word.split_once('=').filter(|_| word.starts_with("--")) {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        (self.flag, self.attached) = (flag.clone(), attached);
        Some(flag)
    }
}

/// Parts of a switch's command line.
#[derive(Default)]
struct SwitchFlags {
    words: Vec<String>,
    warnings: Vec<String>,
    log: bool,
    no_program: bool,
    program: Option<String>,
    command_port: Option<String>,
    grpc: Option<String>,
    /// Flags that ask for TLS, or for certificates of controllers.
    tls: Vec<String>,
}

fn switch(words: &[String], has_grpc: bool) -> Result<WrappedCommand, String> {
    let (own, target) = match words.iter().position(|word| word == "--") {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (words, &words[..0]),
    };
    let mut flags = SwitchFlags::default();
    let mut reader = FlagReader { words: own.iter(), flag: String::new(), attached: None };
    while let Some(word) = reader.next() {
        switch_flag(&mut flags, &mut reader, &word)?;
    }
    let mut reader = FlagReader { words: target.iter(), flag: String::new(), attached: None };
    while let Some(word) = reader.next() {
        target_flag(&mut flags, &mut reader, &word, has_grpc)?;
    }
    check_tls(&flags)?;
    let mut all = vec!["millstream".to_owned()];
    all.extend(flags.log.then(|| "-v".to_owned()));
    all.extend(["p4".to_owned(), "run".to_owned()]);
    match (&flags.program, flags.no_program) {
        (Some(program), false) => all.push(source_of(program)?),
        (None, true) if has_grpc => {}
        (None, true) => return Err("--no-p4 needs simple_switch_grpc: a controller sends the program".into()),
        (None, false) => return Err("the program is missing".into()),
        (Some(_), true) => return Err("--no-p4 and a program exclude each other".into()),
    }
    all.append(&mut flags.words);
    let port = flags.command_port.unwrap_or_else(|| COMMAND_PORT.to_owned());
    all.extend(["--cli".to_owned(), format!("127.0.0.1:{port}")]);
    if has_grpc {
        all.extend(["--grpc".to_owned(), flags.grpc.unwrap_or_else(|| GRPC_ADDRESS.to_owned())]);
    }
    Ok(WrappedCommand { words: all.into_iter().map(Into::into).collect(), warnings: flags.warnings })
}

/// Refuses flags that ask for TLS without the files that it needs: controllers would be served in the clear.
fn check_tls(flags: &SwitchFlags) -> Result<(), String> {
    let has = |file: &str| flags.words.iter().any(|word| word == file);
    for flag in &flags.tls {
        let (own, file) = match flag.as_str() {
            "--grpc-server-ssl" => ("--tls-cert", "--grpc-server-cert and --grpc-server-key"),
            _ => ("--tls-client-ca", "--grpc-server-cacert"),
        };
        if !has(own) {
            return Err(format!("{flag}: it needs {file}"));
        }
    }
    Ok(())
}

/// Reads a flag that both switches have.
fn switch_flag(flags: &mut SwitchFlags, reader: &mut FlagReader<'_>, word: &str) -> Result<(), String> {
    let warn = |flags: &mut SwitchFlags, reason: &str| flags.warnings.push(format!("{word}: {reason}"));
    match word {
        "-i" | "--interface" => {
            let value = reader.value()?;
            flags.words.extend(["-i".to_owned(), value]);
        }
        "--device-id" => {
            let value = reader.value()?;
            flags.words.extend(["--device-id".to_owned(), value]);
        }
        "--thrift-port" => flags.command_port = Some(reader.value()?),
        "--pcap" => {
            let value = reader.value().unwrap_or_else(|_| ".".to_owned());
            flags.words.extend(["--capture-dir".to_owned(), value]);
        }
        "--log-console" => flags.log = true,
        "-L" | "--log-level" => {
            flags.log |= ["trace", "debug", "info"].contains(&reader.value()?.as_str());
        }
        "--log-file" => {
            let path = reader.value()?;
            warn(flags, &format!("the log goes to standard error; `2>{path}.txt` writes it there"));
            flags.log = true;
        }
        "--log-flush" => {}
        "--no-p4" => flags.no_program = true,
        "--nanolog" | "--notifications-addr" => {
            reader.value()?;
            warn(flags, "there are no messages over nanomsg; `millstream p4 test` and -v show what happens");
        }
        "--max-port-count" => {
            reader.value()?;
            warn(flags, "the number of ports has no limit");
        }
        "--dump-packet-data" => {
            reader.value()?;
            warn(flags, "packets are not printed; --pcap writes them to files");
        }
        "--use-files" => return Err(format!("{word}: name the files: -i PORT@IN.pcap:OUT.pcap")),
        "--packet-in" => return Err(format!("{word}: packets come by interfaces, files and P4Runtime")),
        "--debugger" | "--debugger-addr" => return Err(format!("{word}: there is no debugger over nanomsg")),
        "--restore-state" => return Err(format!("{word}: state is not kept between runs")),
        _ if word.starts_with('-') => return Err(format!("{word}: this flag is not known")),
        _ if flags.program.is_some() => return Err(format!("{word}: there is a program already")),
        _ => flags.program = Some(word.to_owned()),
    }
    Ok(())
}

/// Reads a flag behind `--`.
fn target_flag(
    flags: &mut SwitchFlags,
    reader: &mut FlagReader<'_>,
    word: &str,
    has_grpc: bool,
) -> Result<(), String> {
    let own = |flag: &str, value: String| [flag.to_owned(), value];
    match word {
        // A program can always be replaced, by P4Runtime.
        "--enable-swap" => {}
        "--drop-port" => match reader.value()?.as_str() {
            "511" => {}
            other => return Err(format!("{word}: packets to 511 are dropped, and {other} is a port")),
        },
        "--priority-queues" => match reader.value()?.as_str() {
            "1" => {}
            _ => return Err(format!("{word}: each port has one queue")),
        },
        "--cpu-port" => flags.words.extend(own("--cpu-port", reader.value()?)),
        "--grpc-server-addr" if has_grpc => flags.grpc = Some(reader.value()?),
        "--grpc-server-cert" if has_grpc => flags.words.extend(own("--tls-cert", reader.value()?)),
        "--grpc-server-key" if has_grpc => flags.words.extend(own("--tls-key", reader.value()?)),
        "--grpc-server-cacert" if has_grpc => flags.words.extend(own("--tls-client-ca", reader.value()?)),
        "--grpc-server-ssl" | "--grpc-server-with-client-auth" if has_grpc => flags.tls.push(word.to_owned()),
        "--dp-grpc-server-addr" => return Err(format!("{word}: packets come by interfaces and files")),
        _ => return Err(format!("{word}: this flag is not known")),
    }
    Ok(())
}

/// Source of a program that was compiled for the reference switch: the file that its JSON names, or one of
/// the same name beside it or in the folder above.
fn source_of(program: &str) -> Result<String, String> {
    let path = Path::new(program);
    if path.extension().is_none_or(|ending| ending != "json") {
        return Ok(program.to_owned());
    }
    let named = crate::bounded_read::bytes(path).ok().and_then(|bytes| {
        let json: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
        Some(PathBuf::from(json.get("program")?.as_str()?))
    });
    let source = Path::new(path.file_name().unwrap_or_default()).with_extension("p4");
    let folder = path.parent().unwrap_or(Path::new(""));
    let candidates = [named, Some(folder.join(&source)), Some(folder.join("..").join(&source))];
    let found = candidates
        .into_iter()
        .flatten()
        .find(|path| path.extension().is_some_and(|ending| ending == "p4") && path.is_file());
    found.map(|path| path.to_string_lossy().into_owned()).ok_or_else(|| {
        format!("{program} is compiled for the reference switch; give its P4 source, which is not beside it")
    })
}

/// Flags of the reference switch's command line.
fn commands(words: &[String]) -> Result<WrappedCommand, String> {
    let (mut ip, mut port) = ("127.0.0.1".to_owned(), COMMAND_PORT.to_owned());
    let mut warnings = Vec::new();
    let mut reader = FlagReader { words: words.iter(), flag: String::new(), attached: None };
    while let Some(word) = reader.next() {
        match word.as_str() {
            "--thrift-ip" => ip = reader.value()?,
            "--thrift-port" => port = reader.value()?,
            "--json" | "--pre" => {
                reader.value()?;
                warnings.push(format!("{word}: the switch knows its program"));
            }
            other => return Err(format!("{other}: this flag is not known")),
        }
    }
    let words = ["millstream", "p4", "cli", "--address", &format!("{ip}:{port}")];
    Ok(WrappedCommand { words: words.iter().map(Into::into).collect(), warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String, String> {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let command = translate(&words).expect("a wrapper's name")?;
        Ok(command.words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn flags_of_the_tutorials_run_a_switch() {
        let line = "/usr/bin/simple_switch_grpc -i 1@s1-eth1 -i 2@s1-eth2 --pcap pcaps --nanolog \
                    ipc:///tmp/bm-0-log.ipc --device-id 0 basic.p4 --log-console --thrift-port 9091 -- \
                    --grpc-server-addr 0.0.0.0:50051 --cpu-port 255";
        assert_eq!(
            translated(line).unwrap(),
            "millstream -v p4 run basic.p4 -i 1@s1-eth1 -i 2@s1-eth2 --capture-dir pcaps --device-id 0 \
             --cpu-port 255 --cli 127.0.0.1:9091 --grpc 0.0.0.0:50051"
        );
        let plain = translated("simple_switch -i 0@veth0 router.p4").unwrap();
        assert_eq!(plain, "millstream p4 run router.p4 -i 0@veth0 --cli 127.0.0.1:9090");
        let cli = translated("simple_switch_CLI --thrift-port=9092").unwrap();
        assert_eq!(cli, "millstream p4 cli --address 127.0.0.1:9092");
    }

    #[test]
    fn flags_without_an_equivalent_are_refused_with_the_reason() {
        for line in [
            "simple_switch --debugger x.p4",
            "simple_switch --use-files 1 x.p4",
            "simple_switch --no-p4",
            "simple_switch missing.json",
            "simple_switch x.p4 -- --priority-queues 8",
            "simple_switch x.p4 -- --grpc-server-addr 0.0.0.0:1",
            "simple_switch_grpc x.p4 -- --grpc-server-ssl",
            "simple_switch_grpc x.p4 -- --grpc-server-with-client-auth",
            "simple_switch",
        ] {
            let reason = translated(line).expect_err(line);
            assert!(reason.len() > 15, "{line}: {reason}");
        }
        assert!(translate(&["millstream".into()]).is_none());
    }
}
