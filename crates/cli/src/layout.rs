//! `millstream layout`: what a Click configuration, compiled, keeps of a packet beside its bytes. docs/click.md.

use std::fmt::Write as _;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};
use millstream_click::{Annotation, General, Layout, Writers};
use millstream_native::{Engine, Fields, Options};
use serde::Serialize;

use crate::click;
use crate::exit::Exit;

/// Flags of `millstream layout`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    configuration: click::Configuration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FieldRow {
    field: &'static str,
    offset: u32,
    bytes: u32,
    reads: usize,
    /// The ways of packets on which it is written for each.
    written: &'static [&'static str],
}

/// Bytes of an annotation that is not packed, and of a cache line.
const WORD: u32 = 4;
const LINE: u32 = 64;

/// Ways on which packets are copied in: where each came from is said of it, since they may come by several.
const COPIED: [&str; 4] = ["mem", "pcap", "raw", "tap"];
/// All ways. By the last two packets are worked on in place.
const ALL: [&str; 6] = ["mem", "pcap", "raw", "tap", "xdp", "dpdk"];

/// The ways on which a field is written if the program looks at these.
fn written(offset: u32, fields: Fields) -> &'static [&'static str] {
    let looked_at = match offset {
        8 => fields.has(Fields::ROOM),
        12 => fields.has(Fields::INGRESS),
        16 => fields.has(Fields::QUEUE),
        _ => true,
    };
    match looked_at {
        true => &ALL,
        false if offset == 12 => &COPIED,
        false => &[],
    }
}

#[derive(Serialize)]
struct AnnotationRow {
    annotation: &'static str,
    bytes: u32,
    uses: usize,
    live: usize,
    constant: usize,
    /// Bytes from the beginning of what is kept while a packet waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_at: Option<u32>,
    /// Bytes of it there, and in front of how many of the inputs at which packets go on that have waited it is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_for: Option<usize>,
}

/// What a packet that waits would keep, and what it keeps, by annotations of a word each and by this configuration's.
#[derive(Serialize)]
struct Waiting {
    /// Inputs at which packets go on that have waited.
    inputs: usize,
    /// Words for all annotations and the number of the input.
    unpacked_bytes: u32,
    bytes: u32,
    /// Annotations that are written in front of all these inputs, of as many as there are.
    written: usize,
    all_written: usize,
    /// Cache lines of it.
    lines: u32,
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    configuration: String,
    /// Inputs of elements that packets can reach.
    inputs: usize,
    /// Of the packet's descriptor.
    fields: Vec<FieldRow>,
    /// Those that anybody looks at, most looked-at first.
    annotations: Vec<AnnotationRow>,
    dead: Vec<&'static str>,
    /// Bytes of the buffer of a packet that waits; 0 if none does.
    kept_bytes: u32,
    /// The same beside what it would be without a layout of this configuration's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Waiting>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let program = args.configuration.program(1, (Writers::Scripts, General::default()))?;
    let fields = Engine::fields_of_module(program.module, program.entry, &Options::default());
    let fields = fields.into_diagnostic()?;
    let document = document(args.configuration.conf.display().to_string(), &program.layout, fields);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&document).into_diagnostic()?),
        false => print!("{}", text(&document)),
    }
    Ok(Exit::Done.into())
}

fn document(configuration: String, layout: &Layout, fields: Fields) -> Document {
    let (live, dead): (Vec<&Annotation>, Vec<&Annotation>) =
        layout.annotations.iter().partition(|annotation| annotation.live > 0);
    let row = |a: &Annotation| AnnotationRow {
        annotation: a.name,
        bytes: a.bytes,
        uses: a.uses,
        live: a.live,
        constant: a.constant,
        kept_at: a.kept_at,
        kept_bytes: a.kept_at.map(|_| a.kept_bytes),
        kept_for: a.kept_at.map(|_| a.kept_for),
    };
    Document {
        schema: 1,
        configuration,
        inputs: layout.inputs,
        fields: layout
            .fields
            .iter()
            .map(|f| FieldRow {
                field: f.name,
                offset: f.offset,
                bytes: f.bytes,
                reads: f.reads,
                written: written(f.offset, fields),
            })
            .collect(),
        annotations: live.into_iter().map(row).collect(),
        dead: dead.into_iter().map(|a| a.name).collect(),
        kept_bytes: layout.kept,
        waiting: (layout.resumptions > 0).then(|| waiting(layout)),
    }
}

fn waiting(layout: &Layout) -> Waiting {
    let all = layout.annotations.len();
    Waiting {
        inputs: layout.resumptions,
        unpacked_bytes: WORD * (all as u32 + 1),
        bytes: layout.kept,
        written: layout.annotations.iter().map(|a| a.kept_for).sum(),
        all_written: layout.resumptions * all,
        lines: layout.kept.div_ceil(LINE),
    }
}

fn text(d: &Document) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{}: {} inputs of elements that packets can reach", d.configuration, d.inputs);
    let _ = writeln!(out, "\n{:20} {:>6} {:>6} {:>6}   written", "descriptor", "offset", "bytes", "reads");
    for f in &d.fields {
        let written = match f.written.len() {
            0 => "never".to_owned(),
            n if n == ALL.len() => "always".to_owned(),
            _ => f.written.join(", "),
        };
        let _ = writeln!(out, "{:20} {:>6} {:>6} {:>6}   {written}", f.field, f.offset, f.bytes, f.reads);
    }
    let head = ["bytes", "uses", "live at", "constant", "kept at", "in bytes", "for"];
    let _ = write!(out, "\n{:20}", "annotation");
    head.iter().for_each(|word| {
        let _ = write!(out, " {word:>8}");
    });
    out.push('\n');
    for a in &d.annotations {
        let _ =
            write!(out, "{:20} {:>8} {:>8} {:>8} {:>8}", a.annotation, a.bytes, a.uses, a.live, a.constant);
        let kept = [a.kept_at, a.kept_bytes, a.kept_for.map(|inputs| inputs as u32)];
        for number in kept.map(|kept| kept.map_or_else(|| "-".to_owned(), |number| number.to_string())) {
            let _ = write!(out, " {number:>8}");
        }
        out.push('\n');
    }
    if !d.dead.is_empty() {
        let _ = writeln!(out, "dead: {}", d.dead.join(", "));
    }
    match &d.waiting {
        None => out.push_str("\nno packet waits: annotations are in registers\n"),
        Some(w) => {
            let Waiting { inputs, unpacked_bytes, bytes, written, all_written, lines } = w;
            let _ = writeln!(
                out,
                "\n{bytes} bytes of the buffer of a packet that waits, cache lines: {lines}; else annotations are in registers\n\
                 not packed: {unpacked_bytes} bytes; inputs at which packets go on: {inputs}; annotations written for all of them: {written} of {all_written}"
            );
        }
    }
    out
}
