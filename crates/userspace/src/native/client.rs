//! `millstream map` and `millstream stats`: queries to `millstream native --control SOCKET`.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use serde_json::Value;

use super::maps::GRAMMAR;
use crate::exit::Exit;

/// Program to query.
#[derive(Debug, clap::Args)]
struct ControlSocketArgs {
    /// Its socket: the path given to `millstream native --control`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Print JSON, as `bpftool -j` has it
    #[arg(long)]
    json: bool,
}

/// Flags of `millstream map`.
#[derive(Debug, clap::Args)]
pub struct MapArgs {
    /// Command and its arguments, as for `bpftool map`: list, show MAP, dump MAP, lookup|delete MAP key DATA,
    /// getnext MAP [key DATA], update MAP key DATA value DATA [any|exist|noexist]
    #[arg(value_name = "WORD", required = true, num_args = 1..)]
    words: Vec<String>,
    #[command(flatten)]
    at: ControlSocketArgs,
}

/// Flags of `millstream stats`.
#[derive(Debug, clap::Args)]
pub struct StatsArgs {
    #[command(flatten)]
    at: ControlSocketArgs,
}

/// Queries or changes maps.
pub fn map(args: &MapArgs) -> Result<ExitCode> {
    let answer = ask(&args.at.socket, &format!("map {}", args.words.join(" ")))?;
    if let Some(error) = answer["error"].as_str() {
        if answer["errno"].is_null() {
            return Err(miette!(help = GRAMMAR, "{error}"));
        }
        errln!("{error}");
        return Ok(Exit::Negative.into());
    }
    match args.at.json {
        true => outln!("{answer}"),
        false => out!("{}", text(&answer)),
    }
    let nothing = answer.is_null() && args.words[0] == "lookup";
    if nothing {
        errln!("the key is not there");
    }
    Ok(if nothing { Exit::Negative } else { Exit::Done }.into())
}

/// Shows the statistics of a program.
pub fn stats(args: &StatsArgs) -> Result<ExitCode> {
    let answer = ask(&args.at.socket, "stats")?;
    match args.at.json {
        true => outln!("{answer}"),
        false => out!("{}", stats_text(&answer)),
    }
    Ok(Exit::Done.into())
}

fn ask(socket: &Path, request: &str) -> Result<Value> {
    let at = || format!("{}: no process answers", socket.display());
    let mut stream = UnixStream::connect(socket).into_diagnostic().wrap_err_with(at)?;
    writeln!(stream, "{request}").into_diagnostic().wrap_err_with(at)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).into_diagnostic().wrap_err_with(at)?;
    if line.is_empty() {
        return Err(miette!("{}: the program has ended", socket.display()));
    }
    serde_json::from_str(&line).into_diagnostic().wrap_err_with(at)
}

/// Bytes, two digits each.
fn hex(bytes: &Value) -> String {
    let bytes = bytes.as_array().into_iter().flatten().filter_map(Value::as_str);
    bytes.map(|byte| byte.trim_start_matches("0x")).collect::<Vec<_>>().join(" ")
}

fn text(answer: &Value) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = match answer {
        Value::Null => Ok(()),
        Value::Array(all) => {
            out = all.iter().map(text).collect();
            match all.iter().all(|one| one["id"].is_null()) {
                true => writeln!(out, "Found {} elements", all.len()),
                false => Ok(()),
            }
        }
        map if map["id"].is_number() => writeln!(
            out,
            "{}: {}  name {}  flags {:#x}\n\tkey {}B  value {}B  max_entries {}",
            map["id"],
            map["type"].as_str().unwrap_or_default(),
            map["name"].as_str().unwrap_or_default(),
            map["flags"].as_u64().unwrap_or_default(),
            map["bytes_key"],
            map["bytes_value"],
            map["max_entries"]
        ),
        next if !next["next_key"].is_null() => writeln!(out, "next key: {}", hex(&next["next_key"])),
        entry => match entry["values"].as_array() {
            None => writeln!(out, "key: {}  value: {}", hex(&entry["key"]), hex(&entry["value"])),
            Some(values) => {
                let _ = writeln!(out, "key: {}", hex(&entry["key"]));
                values.iter().try_for_each(|v| {
                    let cpu = v["cpu"].as_u64().unwrap_or_default();
                    writeln!(out, "value (CPU {cpu:02}): {}", hex(&v["value"]))
                })
            }
        },
    };
    out
}

fn stats_text(stats: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ =
        writeln!(out, "received {:>12}\nsent     {:>12}", number(&stats["received"]), number(&stats["sent"]));
    for row in stats["dropped"].as_array().into_iter().flatten().filter(|row| number(&row["packets"]) > 0) {
        let reason = row["reason"].as_str().unwrap_or_default();
        let _ = writeln!(out, "dropped  {:>12}   {reason}", number(&row["packets"]));
    }
    let _ = writeln!(
        out,
        "{:.2} ns per packet in the program",
        stats["ns_per_packet"].as_f64().unwrap_or_default()
    );
    let latency = &stats["latency_ns"];
    if latency.is_object() {
        let [p50, p99, p999] = ["p50", "p99", "p999"].map(|share| number(&latency[share]));
        let _ = writeln!(out, "latency {p50} ns, {p99} at the 99th percentile, {p999} at the 99.9th");
    }
    for w in stats["workers"].as_array().into_iter().flatten() {
        let [received, sent, dropped] = ["received", "sent", "dropped"].map(|what| number(&w[what]));
        let _ = writeln!(out, "worker {}: received {received}, sent {sent}, dropped {dropped}", w["worker"]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_written_as_bpftool_does() {
        let map = json!({
            "id": 1, "type": "hash", "name": "x", "flags": 1,
            "bytes_key": 4, "bytes_value": 8, "max_entries": 10
        });
        assert_eq!(text(&json!([map])), "1: hash  name x  flags 0x1\n\tkey 4B  value 8B  max_entries 10\n");
        let entry = json!({ "key": ["0x01", "0x0a"], "value": ["0xff"] });
        assert_eq!(text(&json!([entry])), "key: 01 0a  value: ff\nFound 1 elements\n");
        let each = json!({
            "key": ["0x01"], "values": [{ "cpu": 0, "value": ["0x02"] }, { "cpu": 1, "value": ["0x03"] }]
        });
        assert_eq!(text(&each), "key: 01\nvalue (CPU 00): 02\nvalue (CPU 01): 03\n");
        assert_eq!(text(&json!({ "key": null, "next_key": ["0x05"] })), "next key: 05\n");
        assert_eq!(text(&Value::Null), "");
    }
}
