//! The loop over a batch.
//!
//! Each packet goes through phases: its headers are fetched, then the lines of its look-ups, stage by stage
//! ([`crate::ahead`]), then the program runs. Pipelined, a turn of the loop does one phase each for packets that are some places apart;
//! grouped, a group of packets goes through one phase after the other. Packets run in order in both.

use std::fmt::Write;

use cranelift_entity::EntityRef;

use super::{BATCH, BATCH_AHEAD, Unit};
use crate::ahead::{Ahead, Pattern};
use crate::runtime::{packet, worker};

/// Text of `ms_batch(worker, packets, count)`, or of `ms_batch_ahead`.
pub(super) fn batch(unit: &Unit<'_>, ahead: Option<Ahead>) -> String {
    let symbol = if ahead.is_some() { BATCH_AHEAD } else { BATCH };
    let (current, tails, linkage) = (worker::CURRENT, worker::TAIL_CALLS, unit.linkage());
    let mut out = format!(
        "define {linkage}void @{symbol}(ptr %w, ptr %packets, i64 %count) {{
  %current = getelementptr i8, ptr %w, i64 {current}
  %tails = getelementptr i8, ptr %w, i64 {tails}
"
    );
    match ahead.map(|ahead| ahead.fitted(unit.stages(), unit.fetched_bytes())) {
        Some(ahead) if ahead.pattern == Pattern::Grouped => grouped(&mut out, unit, ahead.packets),
        ahead => pipelined(&mut out, unit, ahead.map_or(0, |ahead| ahead.packets)),
    }
    out.push_str("done:\n  ret void\n}\n");
    out
}

/// The address of packet `%{at}`, as `%p{name}`.
fn descriptor(out: &mut String, at: &str, name: &str) {
    let size = size_of::<packet::Packet>();
    let _ = write!(
        out,
        "  %o{name} = mul nuw i64 %{at}, {size}
  %p{name} = getelementptr i8, ptr %packets, i64 %o{name}
"
    );
}

/// Does a phase for packet number `%{at}` if the batch has it, and goes on behind label `after{name}`.
fn phase(out: &mut String, at: &str, name: &str, body: impl FnOnce(&mut String)) {
    let _ = write!(
        out,
        "  %in{name} = icmp ult i64 %{at}, %count
  br i1 %in{name}, label %do{name}, label %after{name}
do{name}:
"
    );
    descriptor(out, at, name);
    body(out);
    let _ = writeln!(out, "  br label %after{name}\nafter{name}:");
}

/// Fetches the packet's first line.
fn fetch(out: &mut String) {
    out.push_str(
        "  %fd = load i32, ptr %phead, align 64
  %fz = zext i32 %fd to i64
  %fa = inttoptr i64 %fz to ptr
  call void @llvm.prefetch.p0(ptr %fa, i32 0, i32 3, i32 1)
",
    );
}

/// Runs the program on the packet at `%prun`.
fn run(out: &mut String, unit: &Unit<'_>) {
    let (entry, verdict) = (unit.entry.index(), packet::VERDICT);
    out.push_str("  store ptr %prun, ptr %current, align 8\n");
    // Where none are made there is nothing to count.
    if !unit.others.is_empty() {
        out.push_str("  store i32 0, ptr %tails, align 4\n");
    }
    let _ = write!(
        out,
        "  %r = call i64 @fn{entry}(ptr %w, ptr %prun)
  %v = trunc i64 %r to i32
  %vp = getelementptr i8, ptr %prun, i64 {verdict}
  store i32 %v, ptr %vp, align 4
"
    );
}

fn slice(out: &mut String, stage: u32) {
    let _ = writeln!(out, "  %s{stage} = call i64 @slice{stage}(ptr %w, ptr %p{stage})");
}

/// A turn runs packet `%i`, and fetches for those that are ahead of it by one, two and so on times the distance, if that is not 0.
fn pipelined(out: &mut String, unit: &Unit<'_>, distance: u32) {
    let (stages, reach) = (unit.stages(), unit.stages() * distance);
    let _ = write!(
        out,
        "  %none = icmp eq i64 %count, 0
  %turns = add nuw i64 %count, {reach}
  br i1 %none, label %done, label %next
next:
  %t = phi i64 [ 0, %0 ], [ %t1, %afterrun ]
"
    );
    if unit.prefetch > 0 {
        let _ = writeln!(out, "  %head = add nuw i64 %t, {}", unit.prefetch);
        phase(out, "head", "head", fetch);
    }
    if distance > 0 {
        for stage in 1..=stages {
            let _ = writeln!(out, "  %a{stage} = sub i64 %t, {}", (stage - 1) * distance);
            phase(out, &format!("a{stage}"), &stage.to_string(), |out| slice(out, stage));
        }
    }
    let _ = writeln!(out, "  %i = sub i64 %t, {reach}");
    if reach > 0 {
        phase(out, "i", "run", |out| run(out, unit));
    } else {
        // There is a turn for each packet, and none beside.
        descriptor(out, "i", "run");
        run(out, unit);
        out.push_str("  br label %afterrun\nafterrun:\n");
    }
    out.push_str(
        "  %t1 = add nuw i64 %t, 1
  %end = icmp eq i64 %t1, %turns
  br i1 %end, label %done, label %next
",
    );
}

/// A loop over the group from `%g` to `%h`, for one phase.
fn inner(out: &mut String, name: &str, before: &str, body: impl FnOnce(&mut String)) {
    let _ = write!(
        out,
        "  br label %loop{name}
loop{name}:
  %j{name} = phi i64 [ %g, %{before} ], [ %k{name}, %loop{name} ]
"
    );
    descriptor(out, &format!("j{name}"), name);
    body(out);
    let _ = write!(
        out,
        "  %k{name} = add nuw i64 %j{name}, 1
  %e{name} = icmp eq i64 %k{name}, %h
  br i1 %e{name}, label %out{name}, label %loop{name}
out{name}:
"
    );
}

/// Groups of packets, phase by phase.
fn grouped(out: &mut String, unit: &Unit<'_>, group: u32) {
    let _ = write!(
        out,
        "  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %group
group:
  %g = phi i64 [ 0, %0 ], [ %h, %outrun ]
  %g1 = add nuw i64 %g, {group}
  %last = icmp ult i64 %g1, %count
  %h = select i1 %last, i64 %g1, i64 %count
"
    );
    let mut before = "group".to_owned();
    if unit.prefetch > 0 {
        inner(out, "head", &before, fetch);
        before = "outhead".to_owned();
    }
    for stage in 1..=unit.stages() {
        inner(out, &stage.to_string(), &before, |out| slice(out, stage));
        before = format!("out{stage}");
    }
    inner(out, "run", &before, |out| run(out, unit));
    out.push_str("  br i1 %last, label %group, label %done\n");
}
