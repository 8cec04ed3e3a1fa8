//! Sorting of a batch into classes, stable within each class.
//!
//! A counting sort: one loop finds each packet's class and counts, another assigns places. Neither has a
//! branch that depends on packets, except for those that are too short to have a protocol. VLAN tags hide the
//! fields that identify a flow: a batch with a tagged packet stays in order.
//!
//! Invariant: a class depends only on fields that all packets of a flow share (`io::steer`): the Ethertype
//! and, if there is a whole IP header, the protocol.

use std::fmt::Write;

use millstream_native_runtime::packet::DescriptorLayout;
use millstream_plan::{BatchReordering, Schedule};

/// The label from which on `%order` has the packets' places.
pub(super) const SORTED: &str = "sorted";

/// Number of classes, and the class of packets with tags.
const MOST: u32 = 16;
const TAGGED: u32 = 15;

/// Writes the code in front of the loops: computes `%order`, of 16-bit places, and continues at label
/// [`SORTED`].
pub(super) fn sort(out: &mut String, by: BatchReordering, layout: &DescriptorLayout) {
    let most = Schedule::MOST_BATCH;
    let size = layout.stride();
    let [data, end] = layout.bounds();
    let _ = write!(
        out,
        "  %order = alloca [{most} x i16], align 64
  %class = alloca [{most} x i8], align 64
  %starts = alloca [{MOST} x i16], align 32
  call void @llvm.memset.p0.i64(ptr %starts, i8 0, i64 {bytes}, i1 false)
  br i1 %none, label %{SORTED}, label %look
look:
  %ci = phi i64 [ 0, %0 ], [ %ci1, %noted ]
  %co = mul nuw i64 %ci, {size}
  %cp = getelementptr i8, ptr %packets, i64 %co
  %cdp = getelementptr i8, ptr %cp, i64 {data}
  %cd = load i32, ptr %cdp, align 4
  %cep = getelementptr i8, ptr %cp, i64 {end}
  %ce = load i32, ptr %cep, align 4
  %clen = sub i32 %ce, %cd
  %cz = zext i32 %cd to i64
  %ca = inttoptr i64 %cz to ptr
  %framed = icmp uge i32 %clen, 14
  br i1 %framed, label %typed, label %noted
typed:
  %ctp = getelementptr i8, ptr %ca, i64 12
  %ct = load i16, ptr %ctp, align 1
  %is4 = icmp eq i16 %ct, {ip}
  %is6 = icmp eq i16 %ct, {ip6}
  %isarp = icmp eq i16 %ct, {arp}
  %isq = icmp eq i16 %ct, {tag}
  %isad = icmp eq i16 %ct, {outer}
  %istag = or i1 %isq, %isad
  %c0 = select i1 %isarp, i8 1, i8 0
  %c1 = select i1 %istag, i8 {TAGGED}, i8 %c0
  %c2 = select i1 %is4, i8 2, i8 %c1
  %c3 = select i1 %is6, i8 6, i8 %c2
",
        bytes = 2 * MOST,
        ip = u16::from_be(0x0800),
        ip6 = u16::from_be(0x86dd),
        arp = u16::from_be(0x0806),
        tag = u16::from_be(0x8100),
        outer = u16::from_be(0x88a8),
    );
    let (from, class) = match by {
        BatchReordering::Protocol => {
            protocols(out);
            ("has", "c6")
        }
        BatchReordering::Ethertype | BatchReordering::One => {
            out.push_str("  br label %noted\n");
            ("typed", "c3")
        }
    };
    let others = if by == BatchReordering::Protocol { ", [ %c3, %typed ]" } else { "" };
    let _ = write!(
        out,
        "noted:
  %c = phi i8 [ 0, %look ], [ %{class}, %{from} ]{others}
  %cn = getelementptr i8, ptr %class, i64 %ci
  store i8 %c, ptr %cn, align 1
  %cw = zext i8 %c to i64
  %cs = getelementptr i16, ptr %starts, i64 %cw
  %cc = load i16, ptr %cs, align 2
  %cc1 = add i16 %cc, 1
  store i16 %cc1, ptr %cs, align 2
  %ci1 = add nuw i64 %ci, 1
  %clast = icmp eq i64 %ci1, %count
  br i1 %clast, label %counted, label %look
counted:
  %tp = getelementptr i16, ptr %starts, i64 {TAGGED}
  %tags = load i16, ptr %tp, align 2
  %tagged = icmp ne i16 %tags, 0
  %mask = select i1 %tagged, i8 0, i8 {all}
",
        all = MOST - 1
    );
    places(out);
}

/// Assigns places from the counts; from label [`SORTED`] on `%order` has them.
fn places(out: &mut String) {
    // Start of each class; one for all, if some packets have tags.
    let _ = writeln!(out, "  %sum0 = add i16 0, 0");
    for class in 0..MOST {
        let _ = write!(
            out,
            "  %sp{class} = getelementptr i16, ptr %starts, i64 {class}
  %sc{class} = load i16, ptr %sp{class}, align 2
  store i16 %sum{class}, ptr %sp{class}, align 2
  %sum{next} = add i16 %sum{class}, %sc{class}
",
            next = class + 1
        );
    }
    let _ = write!(
        out,
        "  br label %place
place:
  %pi = phi i64 [ 0, %counted ], [ %pi1, %place ]
  %pn = getelementptr i8, ptr %class, i64 %pi
  %pc = load i8, ptr %pn, align 1
  %pm = and i8 %pc, %mask
  %pw = zext i8 %pm to i64
  %ps = getelementptr i16, ptr %starts, i64 %pw
  %pp = load i16, ptr %ps, align 2
  %pp1 = add i16 %pp, 1
  store i16 %pp1, ptr %ps, align 2
  %pz = zext i16 %pp to i64
  %po = getelementptr i16, ptr %order, i64 %pz
  %pt = trunc i64 %pi to i16
  store i16 %pt, ptr %po, align 2
  %pi1 = add nuw i64 %pi, 1
  %plast = icmp eq i64 %pi1, %count
  br i1 %plast, label %{SORTED}, label %place
{SORTED}:
"
    );
}

/// Writes the class by protocol for packets with a whole IP header: `%c6`, behind label `has`.
fn protocols(out: &mut String) {
    out.push_str(
        "  %least6 = select i1 %is6, i32 54, i32 34
  %isip = or i1 %is4, %is6
  %whole = icmp uge i32 %clen, %least6
  %haspr = and i1 %isip, %whole
  br i1 %haspr, label %has, label %noted
has:
  %prat = select i1 %is6, i64 20, i64 23
  %prp = getelementptr i8, ptr %ca, i64 %prat
  %pr = load i8, ptr %prp, align 1
  %istcp = icmp eq i8 %pr, 6
  %isudp = icmp eq i8 %pr, 17
  %icmpno = select i1 %is6, i8 58, i8 1
  %isicmp = icmp eq i8 %pr, %icmpno
  %pa = select i1 %isicmp, i8 3, i8 0
  %pb = select i1 %isudp, i8 2, i8 %pa
  %pd = select i1 %istcp, i8 1, i8 %pb
  %c6 = add i8 %c3, %pd
  br label %noted
",
    );
}

/// The place of the packet at position `%{at}` of the sorted order, as `%{place}`.
pub(super) fn sorted(out: &mut String, at: &str, place: &str) {
    let _ = write!(
        out,
        "  %q{place} = getelementptr i16, ptr %order, i64 %{at}
  %u{place} = load i16, ptr %q{place}, align 2
  %{place} = zext i16 %u{place} to i64
"
    );
}
