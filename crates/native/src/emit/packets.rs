//! Packets as values: bounds, copies, sent packets and waiting ones.

use millstream_ir::{QueueEnd, Value};

use super::func::FunctionEmitter;
use millstream_native_runtime::packet::{DescriptorField, DescriptorLayout, ETH_HLEN, SENT_SIZE, XDP_FRAME};
use millstream_native_runtime::worker;

const EINVAL: i32 = libc::EINVAL;

/// Text of `i64 @adjust_head(ptr worker, ptr packet, i64 delta)`: `bpf_xdp_adjust_head`, which calls the
/// runtime only if there is, or might be, metadata to move. `None` if descriptors do not have the room around
/// packets, since nobody moves them.
pub(super) fn adjust_head(layout: &DescriptorLayout) -> Option<String> {
    let [meta, start, open] = [DescriptorField::Meta, DescriptorField::Start, DescriptorField::Open]
        .map(|field| layout.offset(field));
    let (meta, start, open, [data, end]) = (meta?, start?, open?, layout.bounds());
    Some(format!(
        "define internal i64 @adjust_head(ptr %w, ptr %p, i64 %delta) alwaysinline {{
  %dp = getelementptr i8, ptr %p, i64 {data}
  %d = load i32, ptr %dp, align 4, !tbaa !5
  %mp = getelementptr i8, ptr %p, i64 {meta}
  %m = load i32, ptr %mp, align 4, !tbaa !5
  %op = getelementptr i8, ptr %p, i64 {open}
  %o = load i32, ptr %op, align 4, !tbaa !5
  %bare = icmp eq i32 %m, %d
  %closed = icmp eq i32 %o, 0
  %plain = and i1 %bare, %closed
  br i1 %plain, label %own, label %called
own:
  %dz = zext i32 %d to i64
  %dt = trunc i64 %delta to i32
  %ds = sext i32 %dt to i64
  %new = add nsw i64 %dz, %ds
  %sp = getelementptr i8, ptr %p, i64 {start}
  %s = load i32, ptr %sp, align 4, !tbaa !5
  %sz = zext i32 %s to i64
  %first = add nuw i64 %sz, {XDP_FRAME}
  %ep = getelementptr i8, ptr %p, i64 {end}
  %e = load i32, ptr %ep, align 4, !tbaa !5
  %ez = zext i32 %e to i64
  %last = add nsw i64 %ez, -{ETH_HLEN}
  %behind = icmp sge i64 %new, %first
  %before = icmp sle i64 %new, %last
  %fits = and i1 %behind, %before
  br i1 %fits, label %move, label %refused
move:
  %nt = trunc i64 %new to i32
  store i32 %nt, ptr %dp, align 4, !tbaa !5
  store i32 %nt, ptr %mp, align 4, !tbaa !5
  ret i64 0
refused:
  ret i64 -{EINVAL}
called:
  %pi = ptrtoint ptr %p to i64
  %r = call i64 @ms_adjust_head(ptr %w, i64 %pi, i64 %delta, i64 0, i64 0, i64 0)
  ret i64 %r
}}
"
    ))
}

impl FunctionEmitter<'_> {
    /// [`Op::ClonePacket`](millstream_ir::Op::ClonePacket).
    pub(super) fn clone_packet(&mut self, packet: Value, result: Option<Value>) {
        let packet = self.int(packet);
        self.runtime("ms_clone", &[packet], &[], &[], result);
    }

    /// [`Op::Hold`](millstream_ir::Op::Hold).
    pub(super) fn hold(&mut self, packet: Value, queue: Value, end: QueueEnd) {
        let (packet, queue) = (self.int(packet), self.int(queue));
        let front = u8::from(end == QueueEnd::Front).to_string();
        self.runtime("ms_hold", &[packet, queue, front], &[], &[], None);
    }

    /// `bpf_xdp_adjust_head` of the current packet.
    pub(super) fn adjust_head(&mut self, packet: Value, delta: Value, result: Option<Value>) {
        let (packet, delta) = (self.ptr(packet), self.int(delta));
        let value = self.code.value(&format!("call i64 @adjust_head(ptr %w, ptr {packet}, i64 {delta})"));
        self.define_int(result, &value);
    }

    pub(super) fn set_bounds(&mut self, packet: Value, data: Value, end: Value) {
        if self.unit.is_pipeline() {
            for (value, offset) in [data, end].into_iter().zip([worker::BOUNDS, worker::BOUNDS + 8]) {
                let value = self.int(value);
                let at = self.code.value(&format!("getelementptr i8, ptr %w, i64 {offset}"));
                self.code.line(&format!("store i64 {value}, ptr {at}, align 8"));
            }
            return;
        }
        let packet = self.ptr(packet);
        for (value, offset) in [data, end].into_iter().zip(self.unit.layout.bounds()) {
            let value = self.int(value);
            let value = self.code.value(&format!("trunc i64 {value} to i32"));
            let at = self.code.value(&format!("getelementptr i8, ptr {packet}, i64 {offset}"));
            self.code.line(&format!("store i32 {value}, ptr {at}, align 4, !tbaa !5"));
        }
    }

    /// Appends a packet to the list of sent packets, which has room for all packets.
    pub(super) fn send(&mut self, packet: Value, output: Value) {
        let (packet, output) = (self.ptr(packet), self.int(output));
        let field = |this: &mut Self, offset: usize| {
            this.code.value(&format!("getelementptr i8, ptr %w, i64 {offset}"))
        };
        let (list, count) = (field(self, worker::SENT), field(self, worker::SENT_LEN));
        let to = self.code.value(&format!("load ptr, ptr {list}, align 8"));
        let before = self.code.value(&format!("load i64, ptr {count}, align 8"));
        let offset = self.code.value(&format!("mul i64 {before}, {SENT_SIZE}"));
        let at = self.code.value(&format!("getelementptr i8, ptr {to}, i64 {offset}"));
        self.code.line(&format!("store ptr {packet}, ptr {at}, align 8"));
        let second = self.code.value(&format!("getelementptr i8, ptr {at}, i64 8"));
        self.code.line(&format!("store i64 {output}, ptr {second}, align 8"));
        let after = self.code.value(&format!("add i64 {before}, 1"));
        self.code.line(&format!("store i64 {after}, ptr {count}, align 8"));
    }

    /// Calls the runtime only if any packet waits.
    pub(super) fn pull(&mut self, queue: Value, result: Option<Value>) {
        let queue = self.int(queue);
        let count = self.code.value(&format!("getelementptr i8, ptr %w, i64 {}", worker::HELD));
        let held = self.code.value(&format!("load i64, ptr {count}, align 8"));
        let none = self.code.value(&format!("icmp eq i64 {held}, 0"));
        let (some, on) = (self.code.fresh_label("some"), self.code.fresh_label("pulled"));
        let from = self.code.label.clone();
        self.code.line(&format!("br i1 {none}, label %{on}, label %{some}"));
        self.code.begin(&some);
        let args = "i64 0, i64 0, i64 0, i64 0";
        let taken = self.code.value(&format!("call i64 @ms_pull(ptr %w, i64 {queue}, {args})"));
        self.code.line(&format!("br label %{on}"));
        self.code.begin(&on);
        let packet = self.code.value(&format!("phi i64 [ 0, %{from} ], [ {taken}, %{some} ]"));
        self.define_int(result, &packet);
    }
}
