//! What programs keep of a packet beside its bytes.

use millstream_click::{Annotation, Layout, compile, flatten, parse};

fn layout(text: &str) -> Layout {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    compile(&graph).unwrap_or_else(|e| panic!("{e:?}")).layout
}

fn annotation<'l>(layout: &'l Layout, name: &str) -> &'l Annotation {
    layout.annotations.iter().find(|a| a.name == name).expect("there is one")
}

#[test]
fn what_nobody_looks_at_is_dead_and_constants_are_known() {
    let text = "FromDevice(a) -> Paint(3) -> s :: PaintSwitch -> Discard; s[1] -> Discard; s[2] -> Discard; s[3] -> ToDPDKDevice(b)";
    let layout = self::layout(text);
    let paint = annotation(&layout, "paint");
    assert_eq!((paint.live, paint.constant, paint.kept_at), (1, 1, None), "{layout:?}");
    assert!(paint.uses > 0);
    assert!(layout.annotations.iter().filter(|a| a.name != "paint").all(|a| a.live == 0), "{layout:?}");
    assert_eq!(layout.kept, 0, "no packet waits");
    let ingress = |layout: &Layout| {
        let field = layout.fields.iter().find(|f| f.name == "ingress").expect("a field");
        assert_eq!(field.offset, 12);
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
    assert_eq!((paint.kept, annotation(&paint, "paint").kept_at), (8, Some(4)));
    assert_eq!(annotation(&paint, "network header").kept_at, None);
    let header = layout(&format!(
        "{head} t[1] -> GetIPAddress(IP dst) -> LinearIPLookup(0.0.0.0/0 0) -> ToDPDKDevice(c)"
    ));
    let kept = header.annotations.iter().filter(|a| a.kept_at.is_some()).count();
    assert!(kept > 0 && header.kept == 4 + 4 * kept as u32, "{header:?}");
    assert!(annotation(&header, "network header").kept_at.is_some());
    let places: Vec<u32> = header.annotations.iter().filter_map(|a| a.kept_at).collect();
    assert!(places.is_sorted(), "most looked-at first: {header:?}");
}
