//! Data that programs keep of a packet beside its bytes.

use millstream_click::{AnnotationUsage, MetadataUsage, flatten, parse};
use millstream_click_elements::compile;

fn layout(text: &str) -> MetadataUsage {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    compile(&graph).unwrap_or_else(|e| panic!("{e:?}")).code.layout
}

fn annotation<'l>(layout: &'l MetadataUsage, name: &str) -> &'l AnnotationUsage {
    layout.annotations.iter().find(|a| a.name == name).expect("there is one")
}

#[test]
fn what_nobody_looks_at_is_dead_and_constants_are_known() {
    let text = "FromDevice(a) -> Paint(3) -> s :: PaintSwitch -> Discard; s[1] -> Discard; s[2] -> Discard; \
        s[3] -> ToDPDKDevice(b)";
    let layout = self::layout(text);
    let paint = annotation(&layout, "paint");
    assert_eq!((paint.live, paint.constant, paint.kept_at), (1, 1, None), "{layout:?}");
    assert!(paint.uses > 0);
    assert!(layout.annotations.iter().filter(|a| a.name != "paint").all(|a| a.live == 0), "{layout:?}");
    assert_eq!(layout.kept, 0, "no packet waits");
    let ingress = |layout: &MetadataUsage| {
        let field = layout.fields.iter().find(|f| f.offset == 12).expect("a field");
        field.reads
    };
    assert_eq!(ingress(&layout), 0, "there is one source");
    let two = self::layout("FromDevice(a) -> Discard; FromDevice(b) -> ToDPDKDevice(b)");
    assert_eq!(ingress(&two), 1, "which source it was");
}

#[test]
fn packets_that_wait_keep_what_is_looked_at_behind_that() {
    let head = "FromDevice(a) -> Paint(3) -> MarkIPHeader -> t :: Tee(2) -> ToDPDKDevice(b);";
    let tail = layout(&format!("{head} t[1] -> Discard"));
    assert_eq!((tail.kept, annotation(&tail, "paint").kept_at), (4, None));
    // Painted and checked by the same paint behind the wait.
    let paint = layout(&format!("{head} t[1] -> CheckPaint(3) -> ToDPDKDevice(c)"));
    assert_eq!((paint.kept, annotation(&paint, "paint").kept_at), (4, Some(1)), "behind the number");
    assert_eq!(annotation(&paint, "network header").kept_at, None);
    let header = layout(&format!(
        "{head} t[1] -> GetIPAddress(IP dst) -> LinearIPLookup(0.0.0.0/0 0) -> ToDPDKDevice(c)"
    ));
    // A distance of four bytes, the number of the input, and a flag for the distance.
    let network = annotation(&header, "network header");
    assert_eq!((network.kept_at, network.kept_bytes, header.kept), (Some(0), 4, 8), "{header:?}");
    let dense = header.annotations.iter().map(|a| a.kept_bytes).sum::<u32>() + 1;
    assert_eq!(header.kept, dense.next_multiple_of(4), "{header:?}");
}

#[test]
fn what_is_kept_lies_densely_the_longest_first_and_nothing_across_a_boundary() {
    let layout = layout(
        "FromDevice(a) -> MarkIPHeader(14) -> GetIPAddress(IP dst) -> Paint(1) -> SetVLANAnno(5) \
         -> t :: Tee(2) -> ToDPDKDevice(b);
         t[1] -> p :: CheckPaint(1) -> VLANEncap(VLAN_TCI ANNO) -> Strip(18) \
             -> r :: LinearIPLookup(0.0.0.0/0 0) -> CheckIPHeader
              -> ToDPDKDevice(c)",
    );
    let mut kept: Vec<(u32, u32, &str)> =
        layout.annotations.iter().filter_map(|a| Some((a.kept_at?, a.kept_bytes, a.name))).collect();
    kept.sort_unstable();
    assert!(kept.len() >= 3, "{kept:?}");
    for pair in kept.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0 && pair[0].1 >= pair[1].1, "{kept:?}");
    }
    assert!(kept.iter().all(|(at, bytes, _)| at % bytes == 0 && at + bytes <= layout.kept), "{kept:?}");
    let bytes: u32 = kept.iter().map(|(_, bytes, _)| bytes).sum();
    assert_eq!(layout.kept, (bytes + 1).next_multiple_of(4), "{kept:?}");
}

#[test]
fn each_wait_keeps_what_is_looked_at_behind_it_and_behind_waits_that_follow() {
    let layout = layout(
        "FromDevice(a) -> Paint(3) -> SetVLANAnno(5) -> t :: Tee(3) -> ToDPDKDevice(b);
         t[1] -> CheckPaint(3) -> ToDPDKDevice(c);
         t[2] -> u :: Tee(2) -> ToDPDKDevice(d); u[1] -> VLANEncap(VLAN_TCI ANNO) -> ToDPDKDevice(e)",
    );
    assert_eq!(layout.resumptions, 3, "t[1], t[2] and u[1]");
    assert_eq!(annotation(&layout, "paint").kept_for, 1, "{layout:?}");
    assert_eq!(annotation(&layout, "VLAN tag").kept_for, 2, "u[1], and t[2], which leads to it: {layout:?}");
}
