//! The language: examples of click(5); printed configurations read as the same, and nothing panics.

use millstream_click::{ast, flatten, parse};
use millstream_click_elements::compile;
use proptest::prelude::*;

/// A configuration without compound elements, connections only.
fn flat(text: &str) -> String {
    let statements = parse(text).unwrap_or_else(|e| panic!("{e}: {:?}", &text[e.span.start..]));
    let graph = flatten(&statements, &[]).unwrap_or_else(|e| panic!("{e}: {:?}", e.help));
    let name = |port: &millstream_click::ElementPort| graph.elements[port.element].name.clone();
    let lines = graph
        .connections
        .iter()
        .map(|c| format!("{}[{}]->[{}]{}", name(&c.from), c.from.port, c.to.port, name(&c.to)));
    lines.collect::<Vec<_>>().join(" ")
}

fn arguments(text: &str) -> Vec<String> {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    graph
        .elements
        .iter()
        .map(|e| e.arguments.iter().map(|a| a.text.clone()).collect::<Vec<_>>().join("|"))
        .collect()
}

#[test]
fn connections_have_ports_chains_and_fans() {
    assert_eq!(flat("a,b::X; a [1] -> [2] x :: X [3] -> [4] b"), "a[1]->[2]x x[3]->[4]b");
    assert_eq!(flat("a,b,c::X; a, b[1] -> [2] c"), "a[0]->[2]c b[1]->[2]c");
    assert_eq!(flat("a,b,c::X; a -> b, [1] c"), "a[0]->[0]b a[0]->[1]c");
    assert_eq!(flat("c, x,y::X; c=>x, y; c[0-1] => [0,1]x"), "c[0]->[0]x c[1]->[0]y c[1]->[1]x");
    assert_eq!(flat("a :: X -> b :: Y; a -> b"), "a[0]->[0]b");
    assert_eq!(flat("b -> a :: X; b :: Y;"), "b[0]->[0]a");
}

#[test]
fn names_of_anonymous_elements_count_the_elements() {
    assert_eq!(flat("x :: X -> Y(1) -> Y"), "x[0]->[0]Y@2 Y@2[0]->[0]Y@3");
    assert_eq!(flat("a/b :: X -> c@1::Y // end"), "a/b[0]->[0]c@1");
}

#[test]
fn no_element_has_the_name_of_a_class_that_was_used() {
    let refused = |text: &str| flatten(&parse(text).expect("parsed"), &[]).expect_err("refused");
    let unused = refused("elementclass F { A -> B } A :: Idle");
    assert_eq!(unused.message, "class 'A' used as element name");
    let twice = refused("elementclass F { A :: A -> B } A :: Idle");
    assert_eq!(twice.note.expect("another").1, unused.message);
    assert_eq!(flat("elementclass F { A :: X -> B } A :: X; A -> y :: Y"), "A[0]->[0]y");
    assert_eq!(flat("A -> y :: Y; A :: X"), "A[0]->[0]y");
}

#[test]
fn groups_are_detours() {
    for group in
        ["( input -> output )", "( [0] -> [0] )", "(->)", "( [0]->[0]; [1]->[1] ) => ( [0]->[0]; [1]->[1] )"]
    {
        let text = format!("x, y :: X; x -> {group} -> y");
        assert!(flat(&text).contains("x[0]->[0]y"), "{group}: {}", flat(&text));
    }
    let text =
        "x,y::X; x -> c :: C(00/01) => ( input[0] -> output; input[1] -> p :: Paint(1) -> output ) -> y";
    assert_eq!(flat(text), "x[0]->[0]c c[0]->[0]y c[1]->[0]p p[0]->[0]y");
}

#[test]
fn compound_elements_are_taken_apart() {
    let text = "a,b,c,d::X; compound :: { input -> X -> output; input [1] -> y :: Y -> [1] output };
        a -> compound -> b; c -> [1] compound [1] -> d;";
    assert_eq!(
        flat(text),
        "a[0]->[0]compound/X@1 c[0]->[0]compound/y compound/X@1[0]->[0]b compound/y[0]->[0]d"
    );
    // The name of the class has its previous meaning inside of its own definition.
    assert_eq!(
        flat("elementclass Queue { input -> Queue -> output } a::X -> q :: Queue -> b::X"),
        "a[0]->[0]q/Queue@1 q/Queue@1[0]->[0]b"
    );
    assert_eq!(
        flat("elementclass M { -> X -> } a :: A -> M -> M -> b :: B"),
        "a[0]->[0]M@2/X@1 M@2/X@1[0]->[0]M@3/X@1 M@3/X@1[0]->[0]b"
    );
}

#[test]
fn definitions_are_chosen_by_ports_and_arguments() {
    let class = "elementclass Q { input -> A -> output || $cap | input -> B($cap) -> output || \
        $cap, N $n | C($cap, $n) -> output || ... }";
    assert_eq!(arguments(&format!("{class} x :: X -> Q -> x"))[1], "");
    assert_eq!(arguments(&format!("{class} x :: X -> Q(5) -> x"))[1], "5");
    assert_eq!(arguments(&format!("{class} Q(5, N 6) -> x :: X")), ["", "5|6"]);
    // Forms that are not defined have the previous meaning of the name.
    assert_eq!(flat(&format!("{class} x :: X -> q :: Q(1,2,3) -> x")), "x[0]->[0]q q[0]->[0]x");
    let none = "elementclass T { $a | X($a) } T(1, 2)";
    let error = flatten(&parse(none).expect("parsed"), &[]).expect_err("no definition");
    assert!(error.help.expect("why").contains("no parameter for the argument `2`"));
}

#[test]
fn parameters_and_definitions_are_lexical() {
    assert_eq!(arguments("X($a); define($a 2)"), ["2"]);
    assert_eq!(arguments("define($a 2) { $a | X($a) } (100); X(${a}0, '$a', ${b-7})"), ["20|'$a'|7", "100"]);
    assert_eq!(
        arguments("{ $a, COUNT $count, __REST__ $rest | X($a, $count, $rest) } (1, 2, COUNT 3, FOO 4)"),
        ["1|3|2|FOO 4"]
    );
    let outside = [("a".to_owned(), "9".to_owned())];
    let graph = flatten(&parse("define($a 2) X($a)").expect("parsed"), &outside).expect("flattened");
    assert_eq!(graph.elements[0].arguments[0].text, "9");
}

#[test]
fn configuration_strings_balance_parentheses() {
    let text = "C1(simple) C2(with (balanced) parens) C3(with \")quoted\" paren) C4(// end )\n going!) \
        C5(/* :) */ and \\) C6('(')";
    assert_eq!(
        arguments(text),
        ["simple", "with (balanced) parens", "with \")quoted\" paren", "going!", "and \\", "'('"]
    );
}

#[test]
fn nested_definitions_do_not_multiply_without_end() {
    let mut text = String::from("elementclass A0 { X; X; }");
    for level in 1..60 {
        text += &format!("elementclass A{level} {{ A{0}; A{0}; }}", level - 1);
    }
    let error = flatten(&parse(&(text + " A59")).expect("parsed"), &[]).expect_err("too many");
    assert!(error.message.contains("more than"), "{error}");
    let deep = "(".repeat(100_000);
    assert!(parse(&deep).is_err());
}

/// Statements as a grammar makes them.
fn statement(depth: u32) -> BoxedStrategy<String> {
    let word = prop::sample::select(vec!["a", "b/c", "X", "Queue", "input", "output", "c@3"]);
    let config =
        prop::sample::select(vec!["", "()", "(1, 2)", "(\"a)\", 'b(')", "($x /* c */)", "(\\<00 ff>)"]);
    let ports = prop::sample::select(vec!["", "[0]", "[1,3]", "[0-2]"]);
    let named = (word.clone(), config.clone()).prop_map(|(w, c)| format!("{w}{c}"));
    let declared = (word.clone(), named.clone()).prop_map(|(w, c)| format!("{w} :: {c}"));
    let what: BoxedStrategy<String> = match depth {
        0 => prop_oneof![word.clone().prop_map(str::to_owned), named, declared].boxed(),
        _ => {
            let inner = prop::collection::vec(statement(depth - 1), 0..3).prop_map(|all| all.join("; "));
            prop_oneof![
                3 => word.clone().prop_map(str::to_owned),
                2 => named,
                2 => declared,
                1 => inner.clone().prop_map(|s| format!("({s})")),
                1 => (inner.clone(), config).prop_map(|(s, c)| format!("{{ $p, K $q | {s} }}{c}")),
                1 => (word.clone(), inner).prop_map(|(w, s)| format!("{w} :: {{ {s} || ... }}")),
            ]
            .boxed()
        }
    };
    let endpoint = (ports.clone(), what, ports).prop_map(|(i, w, o)| format!("{i}{w}{o}"));
    let endpoints = prop::collection::vec(endpoint, 1..3).prop_map(|all| all.join(", "));
    let arrow = prop::sample::select(vec![" -> ", " => "]);
    let chain = (endpoints.clone(), prop::collection::vec((arrow, endpoints), 0..3));
    chain
        .prop_map(|(first, rest)| rest.into_iter().fold(first, |text, (arrow, next)| text + arrow + &next))
        .boxed()
}

/// Reads a text as far as it is valid: then its flat form is a configuration, and the compiled program is
/// valid.
fn understood(text: &str) {
    let Ok(statements) = parse(text) else { return };
    let Ok(graph) = flatten(&statements, &[]) else { return };
    let flat = graph.to_string();
    assert!(parse(&flat).is_ok(), "{flat}");
    if let Ok(program) = compile(&graph) {
        assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
    }
}

proptest! {
    #[test]
    fn what_is_printed_reads_as_the_same(all in prop::collection::vec(statement(2), 0..5)) {
        let text = all.join(";\n");
        let read = parse(&text).unwrap_or_else(|e| panic!("{e} in {text}"));
        let printed = ast::print(&read);
        prop_assert_eq!(parse(&printed).unwrap_or_else(|e| panic!("{e} in {printed}")), read);
        // Any meaning is fine, but no panic.
        understood(&text);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[ -~\n]{0,200}") {
        understood(&text);
    }

    #[test]
    fn no_arguments_make_a_class_panic(class in prop::sample::select(CLASSES.to_vec()), text in "[ -'*-~]{0,60}") {
        let text = format!("Idle -> x :: {class}({text}) -> Idle");
        understood(&text);
    }
}

const CLASSES: &[&str] = &[
    "Classifier",
    "IPClassifier",
    "IPFilter",
    "StaticIPLookup",
    "ARPResponder",
    "ICMPError",
    "CheckIPHeader",
    "EtherEncap",
    "Strip",
    "Paint",
    "InfiniteSource",
    "GetIPAddress",
    "Tee",
    "Switch",
    "DecIPTTL",
    "FromDump",
    "ToDump",
    "CheckLength",
    "CheckTCPHeader",
    "EtherSwitch",
    "IPFragmenter",
    "IPGWOptions",
    "IPRewriter",
    "StoreData",
    "VLANDecap",
    "VLANEncap",
];
