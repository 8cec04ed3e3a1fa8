//! `millstream layout`: per-packet data of a compiled Click configuration, beside the packet's bytes.
//! docs/click.md.

use std::fmt::Write as _;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};
use millstream_click::{Ablations, AnnotationUsage, HandlerWriters, MetadataUsage};
use millstream_native::{DescriptorField, DescriptorLayout as Descriptor, NativeEngine, NativeOptions};
use serde::Serialize;

use crate::click;
use crate::exit::Exit;
use millstream_console::wrap::{columns, wrap};

/// Flags of `millstream layout`.
#[derive(Debug, clap::Args)]
pub struct LayoutArgs {
    #[command(flatten)]
    configuration: click::ClickConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FieldRow {
    field: &'static str,
    /// Offset in the descriptor, in bytes; `None` for a field that it does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<usize>,
    bytes: u32,
    /// Loads from the context.
    reads: usize,
    /// Writer of the field, for each packet.
    written: Option<&'static str>,
}

/// The layout of descriptors, compared with the one that has all fields.
#[derive(Serialize)]
struct DescriptorRow {
    /// Bytes from one to the next.
    stride: usize,
    /// Bytes of these for notes of look-ups that are fetched ahead.
    notes: usize,
    /// Bytes that are written when a packet comes.
    received: usize,
    /// Cache lines of the descriptors of a batch of 64.
    lines: usize,
    whole_stride: usize,
    whole_received: usize,
    whole_lines: usize,
}

/// Bytes of an annotation that is not packed, and of a cache line.
const WORD: u32 = 4;
const LINE: u32 = 64;

/// Packets of a batch.
const BATCH: usize = 64;

/// Writer of a field, for each packet: the receiver, or code.
fn writer(field: DescriptorField) -> Option<&'static str> {
    match field {
        _ if field.is_received() => Some("received"),
        DescriptorField::Verdict => Some("code"),
        _ => None,
    }
}

/// Fields of the descriptor, in order, and fields of the context that it does not have.
fn fields(layout: &MetadataUsage, descriptor: &Descriptor) -> Vec<FieldRow> {
    let of_context =
        |f: &millstream_click::ContextField| Some((DescriptorField::of_context(f.offset)?, f.reads));
    let context: Vec<(DescriptorField, usize)> = layout.fields.iter().filter_map(of_context).collect();
    let reads = |field| context.iter().find(|(known, _)| *known == field).map_or(0, |(_, reads)| *reads);
    let there = descriptor.places().map(|(field, offset)| (field, Some(offset)));
    let absent = context.iter().filter(|(field, _)| descriptor.offset(*field).is_none());
    let row = |(field, offset): (DescriptorField, Option<usize>)| FieldRow {
        field: field.name(),
        offset,
        bytes: WORD,
        reads: reads(field),
        written: offset.and_then(|_| writer(field)),
    };
    there.chain(absent.map(|(field, _)| (*field, None))).map(row).collect()
}

fn descriptor_row(descriptor: &Descriptor) -> DescriptorRow {
    let received =
        |of: &Descriptor| of.places().filter(|(field, _)| field.is_received()).count() * WORD as usize;
    let lines = |of: &Descriptor| (BATCH * of.stride()).div_ceil(LINE as usize);
    let whole = &Descriptor::WHOLE;
    DescriptorRow {
        stride: descriptor.stride(),
        notes: descriptor.notes().1 * WORD as usize,
        received: received(descriptor),
        lines: lines(descriptor),
        whole_stride: whole.stride(),
        whole_received: received(whole),
        whole_lines: lines(whole),
    }
}

#[derive(Serialize)]
struct AnnotationRow {
    annotation: &'static str,
    bytes: u32,
    uses: usize,
    live: usize,
    constant: usize,
    /// Offset, in bytes, in the data that is kept while a packet waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_at: Option<u32>,
    /// Its bytes there, and the number of inputs behind queues for which it is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_for: Option<usize>,
}

/// Data kept for a waiting packet, with a word for each annotation and with this configuration's layout.
#[derive(Serialize)]
struct QueuedPacketLayout {
    /// Inputs at which packets go on that have waited.
    inputs: usize,
    /// Words for all annotations and the number of the input.
    unpacked_bytes: u32,
    bytes: u32,
    /// Writes of annotations in front of all these inputs, and their number if each wrote every annotation.
    written: usize,
    all_written: usize,
    /// Its cache lines.
    lines: u32,
}

#[derive(Serialize)]
struct LayoutReport {
    schema: u32,
    configuration: String,
    /// Inputs of elements that packets can reach.
    inputs: usize,
    /// Of the packet's descriptor.
    fields: Vec<FieldRow>,
    descriptor: DescriptorRow,
    /// Annotations that are read, most frequent first.
    annotations: Vec<AnnotationRow>,
    dead: Vec<&'static str>,
    /// Bytes of the buffer of a packet that waits; 0 if none does.
    kept_bytes: u32,
    /// Comparison with a layout that is not this configuration's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<QueuedPacketLayout>,
}

/// Runs the command.
pub fn run(args: &LayoutArgs) -> Result<ExitCode> {
    let source = args.configuration.source(false)?;
    let program = click::compile_to_ir(&source, 1, (HandlerWriters::Scripts, Ablations::default()))?;
    let descriptor =
        NativeEngine::layout_of_module(program.code.module, program.code.entry, &NativeOptions::default());
    let descriptor = descriptor.into_diagnostic()?;
    let document = document(source.input.name(), &program.code.layout, &descriptor);
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&document).into_diagnostic()?),
        false => out!("{}", text(&document)),
    }
    Ok(Exit::Done.into())
}

fn document(configuration: String, layout: &MetadataUsage, descriptor: &Descriptor) -> LayoutReport {
    let (live, dead): (Vec<&AnnotationUsage>, Vec<&AnnotationUsage>) =
        layout.annotations.iter().partition(|annotation| annotation.live > 0);
    let row = |a: &AnnotationUsage| AnnotationRow {
        annotation: a.name,
        bytes: a.bytes,
        uses: a.uses,
        live: a.live,
        constant: a.constant,
        kept_at: a.kept_at,
        kept_bytes: a.kept_at.map(|_| a.kept_bytes),
        kept_for: a.kept_at.map(|_| a.kept_for),
    };
    LayoutReport {
        schema: 1,
        configuration,
        inputs: layout.inputs,
        fields: fields(layout, descriptor),
        descriptor: descriptor_row(descriptor),
        annotations: live.into_iter().map(row).collect(),
        dead: dead.into_iter().map(|a| a.name).collect(),
        kept_bytes: layout.kept,
        waiting: (layout.resumptions > 0).then(|| waiting(layout)),
    }
}

fn waiting(layout: &MetadataUsage) -> QueuedPacketLayout {
    let all = layout.annotations.len();
    QueuedPacketLayout {
        inputs: layout.resumptions,
        unpacked_bytes: WORD * (all as u32 + 1),
        bytes: layout.kept,
        written: layout.annotations.iter().map(|a| a.kept_for).sum(),
        all_written: layout.resumptions * all,
        lines: layout.kept.div_ceil(LINE),
    }
}

fn text(d: &LayoutReport) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{}: {} inputs of elements that packets can reach", d.configuration, d.inputs);
    let _ = writeln!(out, "\n{:20} {:>6} {:>6} {:>6}   written", "descriptor", "offset", "bytes", "reads");
    for f in &d.fields {
        let written = match (f.offset, f.written) {
            (None, _) => "never read",
            (_, Some("received")) => "when a packet comes",
            (_, Some(_)) => "by code",
            (_, None) => "once",
        };
        let offset = f.offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
        let _ = writeln!(out, "{:20} {offset:>6} {:>6} {:>6}   {written}", f.field, f.bytes, f.reads);
    }
    let r = &d.descriptor;
    let _ = writeln!(
        out,
        "{} bytes each, {} of them for prefetching; {} are written when a packet comes;\n\
         cache lines of a batch of {BATCH}: {}\n\
         with all fields: {} bytes, {} written, cache lines: {}",
        r.stride, r.notes, r.received, r.lines, r.whole_stride, r.whole_received, r.whole_lines
    );
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
        let dead = wrap(&format!("dead: {}", d.dead.join(", ")), columns(), 2);
        let _ = writeln!(out, "{}", dead.join("\n"));
    }
    match &d.waiting {
        None => out.push_str("\nno packet is queued: annotations are in registers\n"),
        Some(w) => {
            let QueuedPacketLayout { inputs, unpacked_bytes, bytes, written, all_written, lines } = w;
            let _ = writeln!(
                out,
                "\nannotations of a queued packet: {bytes} bytes of its buffer, cache lines: {lines}\n\
                 without packing: {unpacked_bytes} bytes\n\
                 inputs that queued packets resume at: {inputs}; \
                 annotations written for them: {written} of {all_written}\n\
                 annotations of all other packets are in registers"
            );
        }
    }
    out
}
