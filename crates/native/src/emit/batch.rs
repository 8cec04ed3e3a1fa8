//! The loop over a batch.
//!
//! Each packet goes through stages: its headers are fetched, then the lines of its look-ups, one after the
//! other ([`crate::prefetch`]), then the program runs. A [`Schedule`] says in which order, and for how many
//! packets at once.
//!
//! Invariant: each packet goes through each stage once, and packets run in order, or in that of their classes
//! ([`super::batch_sorting`]).

use std::fmt::Write;

use cranelift_entity::EntityRef;

use super::{BATCH, BATCH_AHEAD, CodegenUnit, batch_sorting};
use millstream_native_runtime::packet::DescriptorField;
use millstream_native_runtime::worker;
use millstream_plan::{BatchReordering, Schedule, SchedulePattern};

/// Stage of a packet's processing.
#[derive(Clone, Copy)]
enum BatchStage {
    /// Its headers are fetched.
    Headers,
    /// Lines of its look-ups are fetched.
    Lines(u32),
    /// The program runs.
    Run,
}

impl BatchStage {
    /// Name of the stage, as a part of other names.
    fn name(self) -> String {
        match self {
            BatchStage::Headers => "head".to_owned(),
            BatchStage::Lines(stage) => format!("s{stage}"),
            BatchStage::Run => "run".to_owned(),
        }
    }
}

/// Text of `ms_batch(worker, packets, count)`, or of `ms_batch_ahead`, which fetches for look-ups.
pub(super) fn batch(unit: &CodegenUnit<'_>, fetches: bool) -> String {
    let symbol = if fetches { BATCH_AHEAD } else { BATCH };
    let (current, tails, linkage) = (worker::CURRENT, worker::TAIL_CALLS, unit.linkage());
    let mut out = format!(
        "define {linkage}void @{symbol}(ptr %w, ptr %packets, i64 %count) {{
  %current = getelementptr i8, ptr %w, i64 {current}
  %tails = getelementptr i8, ptr %w, i64 {tails}
  %none = icmp eq i64 %count, 0
"
    );
    let sorted = unit.classes() != BatchReordering::One;
    if sorted {
        batch_sorting::sort(&mut out, unit.classes(), &unit.layout);
    }
    let lines = if fetches { unit.stages() } else { 0 };
    let (schedule, _) = unit.schedule.fitted(lines, unit.fetched_bytes());
    let headers = (schedule.headers > 0).then_some(BatchStage::Headers);
    let stages: Vec<BatchStage> =
        headers.into_iter().chain((1..=lines).map(BatchStage::Lines)).chain([BatchStage::Run]).collect();
    let begin = if sorted { batch_sorting::SORTED } else { "0" };
    let mut code = BatchLoopEmitter { out: &mut out, unit, stages: &stages, schedule: &schedule, begin };
    match schedule.pattern {
        SchedulePattern::Groups => code.grouped(),
        SchedulePattern::PipelinedGroups => code.pipelined_groups(),
        SchedulePattern::Packets | SchedulePattern::Fit => code.pipelined(lines),
    }
    out.push_str("done:\n  ret void\n}\n");
    out
}

/// The loops of a function, while it is written.
struct BatchLoopEmitter<'l> {
    out: &'l mut String,
    unit: &'l CodegenUnit<'l>,
    stages: &'l [BatchStage],
    schedule: &'l Schedule,
    /// The label in front of the loops.
    begin: &'l str,
}

impl BatchLoopEmitter<'_> {
    /// Writes a stage for packet number `%{at}`; names in it end with `name`.
    fn stage(&mut self, stage: BatchStage, at: &str, name: &str) {
        let size = self.unit.layout.stride();
        let mut at = at.to_owned();
        if self.begin == batch_sorting::SORTED {
            let place = format!("x{name}");
            batch_sorting::sorted(self.out, &at, &place);
            at = place;
        }
        let _ = write!(
            self.out,
            "  %o{name} = mul nuw i64 %{at}, {size}
  %p{name} = getelementptr i8, ptr %packets, i64 %o{name}
"
        );
        match stage {
            BatchStage::Headers => {
                let [data, _] = self.unit.layout.bounds();
                let _ = write!(
                    self.out,
                    "  %fp{name} = getelementptr i8, ptr %p{name}, i64 {data}
  %fd{name} = load i32, ptr %fp{name}, align 4
  %fz{name} = zext i32 %fd{name} to i64
  %fa{name} = inttoptr i64 %fz{name} to ptr
  call void @llvm.prefetch.p0(ptr %fa{name}, i32 0, i32 3, i32 1)
"
                );
            }
            BatchStage::Lines(stage) => {
                let _ = writeln!(self.out, "  %s{name} = call i64 @slice{stage}(ptr %w, ptr %p{name})");
            }
            BatchStage::Run => self.run(name),
        }
    }

    /// Runs the program on the packet at `%p{name}`.
    fn run(&mut self, name: &str) {
        let entry = self.unit.entry.index();
        let _ = writeln!(self.out, "  store ptr %p{name}, ptr %current, align 8");
        // Nothing is counted if there are no tail calls.
        if !self.unit.others.is_empty() {
            self.out.push_str("  store i32 0, ptr %tails, align 4\n");
        }
        let _ = writeln!(self.out, "  %r{name} = call i64 @fn{entry}(ptr %w, ptr %p{name})");
        let Some(verdict) = self.unit.layout.offset(DescriptorField::Verdict) else { return };
        let _ = write!(
            self.out,
            "  %v{name} = trunc i64 %r{name} to i32
  %vp{name} = getelementptr i8, ptr %p{name}, i64 {verdict}
  store i32 %v{name}, ptr %vp{name}, align 4
"
        );
    }

    /// The same for the packet `offset` places behind `%t`, if it is in the batch.
    fn stage_if(&mut self, stage: BatchStage, offset: i64, name: &str) {
        let _ = write!(
            self.out,
            "  %a{name} = add i64 %t, {offset}
  %in{name} = icmp ult i64 %a{name}, %count
  br i1 %in{name}, label %do{name}, label %after{name}
do{name}:
"
        );
        self.stage(stage, &format!("a{name}"), name);
        let _ = writeln!(self.out, "  br label %after{name}\nafter{name}:");
    }

    /// Each iteration runs packet `%t` minus the reach of the stages, and fetches for those that are ahead of
    /// it by one, two and so on times the distance. Unrolled, it does each of these for several packets.
    fn pipelined(&mut self, lines: u32) {
        let (distance, unroll) = (i64::from(self.schedule.distance), i64::from(self.schedule.unroll));
        let reach = i64::from(lines) * distance;
        let headers = i64::from(self.schedule.headers);
        let last =
            if reach > 0 || unroll > 1 { format!("afterrun{}", unroll - 1) } else { "afterrun".to_owned() };
        let _ = write!(
            self.out,
            "  %turns = add nuw i64 %count, {reach}
  br i1 %none, label %done, label %next
next:
  %t = phi i64 [ 0, %{begin} ], [ %t1, %{last} ]
",
            begin = self.begin
        );
        for &stage in self.stages {
            let offset = match stage {
                BatchStage::Headers => headers,
                BatchStage::Lines(number) => -i64::from(number - 1) * distance,
                BatchStage::Run => -reach,
            };
            if matches!(stage, BatchStage::Run) && reach == 0 && unroll == 1 {
                // One iteration for each packet, and nothing else.
                self.stage(stage, "t", "run");
                self.out.push_str("  br label %afterrun\nafterrun:\n");
                continue;
            }
            for at in 0..unroll {
                self.stage_if(stage, offset + at, &format!("{}{at}", stage.name()));
            }
        }
        let _ = write!(
            self.out,
            "  %t1 = add nuw i64 %t, {unroll}
  %end = icmp uge i64 %t1, %turns
  br i1 %end, label %done, label %next
"
        );
    }

    /// One stage for the packets from `%{from}` to below `%{to}`, at least one; continues at label
    /// `out{name}`.
    fn span(&mut self, stage: BatchStage, (from, to): (&str, &str), before: &str) {
        let (name, unroll) = (stage.name(), self.schedule.unroll);
        let mut first = (from.to_owned(), before.to_owned());
        if unroll > 1 {
            // Unrolled while enough packets are left; then one by one.
            let _ = write!(
                self.out,
                "  br label %many{name}
many{name}:
  %m{name} = phi i64 [ %{from}, %{before} ], [ %n{name}, %turn{name} ]
  %n{name} = add nuw i64 %m{name}, {unroll}
  %fit{name} = icmp ule i64 %n{name}, %{to}
  br i1 %fit{name}, label %turn{name}, label %few{name}
turn{name}:
"
            );
            for at in 0..unroll {
                let _ = writeln!(self.out, "  %m{name}{at} = add nuw i64 %m{name}, {at}");
                self.stage(stage, &format!("m{name}{at}"), &format!("{name}{at}"));
            }
            let _ = write!(
                self.out,
                "  br label %many{name}
few{name}:
  %left{name} = icmp ult i64 %m{name}, %{to}
  br i1 %left{name}, label %loop{name}, label %out{name}
"
            );
            first = (format!("m{name}"), format!("few{name}"));
        } else {
            let _ = writeln!(self.out, "  br label %loop{name}");
        }
        let _ = write!(
            self.out,
            "loop{name}:
  %j{name} = phi i64 [ %{}, %{} ], [ %k{name}, %loop{name} ]
",
            first.0, first.1
        );
        self.stage(stage, &format!("j{name}"), &name);
        let _ = write!(
            self.out,
            "  %k{name} = add nuw i64 %j{name}, 1
  %e{name} = icmp eq i64 %k{name}, %{to}
  br i1 %e{name}, label %out{name}, label %loop{name}
out{name}:
"
        );
    }

    /// The end of the group that begins at `%{from}`, as `%{to}`; `%{last}` says whether another group
    /// follows.
    fn group_end(&mut self, from: &str, to: &str, last: &str) {
        let _ = write!(
            self.out,
            "  %{to}1 = add nuw i64 %{from}, {group}
  %{last} = icmp ult i64 %{to}1, %count
  %{to} = select i1 %{last}, i64 %{to}1, i64 %count
",
            group = self.schedule.sub_batch
        );
    }

    /// Groups of packets, stage by stage.
    fn grouped(&mut self) {
        let _ = write!(
            self.out,
            "  br i1 %none, label %done, label %group
group:
  %g = phi i64 [ 0, %{} ], [ %h, %outrun ]
",
            self.begin
        );
        self.group_end("g", "h", "more");
        let mut before = "group".to_owned();
        for &stage in self.stages {
            self.span(stage, ("g", "h"), &before);
            before = format!("out{}", stage.name());
        }
        self.out.push_str("  br i1 %more, label %group, label %done\n");
    }

    /// Iterations, each of which does the first stage for a group, the second one for the group before it,
    /// and so on: fetched lines have the time of a group to arrive.
    fn pipelined_groups(&mut self) {
        let group = i64::from(self.schedule.sub_batch);
        let reach = (self.stages.len() as i64 - 1) * group;
        let _ = write!(
            self.out,
            "  %turns = add nuw i64 %count, {reach}
  br i1 %none, label %done, label %next
next:
  %t = phi i64 [ 0, %{begin} ], [ %t1, %afterrun ]
",
            begin = self.begin
        );
        for (at, &stage) in self.stages.iter().enumerate() {
            let (name, offset) = (stage.name(), -(at as i64) * group);
            let _ = write!(
                self.out,
                "  %g{name} = add i64 %t, {offset}
  %in{name} = icmp ult i64 %g{name}, %count
  br i1 %in{name}, label %do{name}, label %after{name}
do{name}:
"
            );
            let end = format!("h{name}");
            self.group_end(&format!("g{name}"), &end, &format!("more{name}"));
            self.span(stage, (&format!("g{name}"), &end), &format!("do{name}"));
            let _ = writeln!(self.out, "  br label %after{name}\nafter{name}:");
        }
        let _ = write!(
            self.out,
            "  %t1 = add nuw i64 %t, {group}
  %end = icmp uge i64 %t1, %turns
  br i1 %end, label %done, label %next
"
        );
    }
}
