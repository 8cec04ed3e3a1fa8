//! Errors about wrong configurations: the position, the rule, the nearest name.

use millstream_click::{Error, flatten, parse};
use millstream_click_elements::compile;

fn errors(text: &str) -> String {
    let all: Vec<Error> = match parse(text).and_then(|statements| flatten(&statements, &[])) {
        Ok(graph) => compile(&graph).expect_err("something is wrong"),
        Err(e) => vec![e],
    };
    let line = |e: &Error| {
        let place = text.get(e.span.start..e.span.end).unwrap_or("?");
        let help = e.help.as_ref().map_or(String::new(), |h| format!(" [{h}]"));
        format!("`{place}`: {}{help}", e.message)
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn unknown_classes_have_a_nearest_name() {
    insta::assert_snapshot!(errors("Idle -> Clasifier(-) -> Discrad"), @r"
    `Clasifier(-)`: there is no element class `Clasifier` [the nearest name is `Classifier`]
    `Discrad`: there is no element class `Discrad` [the nearest name is `Discard`]
    ");
    insta::assert_snapshot!(errors("counter :: Counter; Idle -> countr -> Discard"), @"`countr`: there is no element class `countr` [the nearest name is `counter`]");
}

#[test]
fn rewriters_say_what_they_expect() {
    insta::assert_snapshot!(errors("Idle -> r :: IPRewriter(keep 0 0, drop) -> Discard"), @"`r`: 2 specifications and 1 inputs: there must be one each");
    insta::assert_snapshot!(errors("Idle -> r :: IPRewriter(patern NAT 0 0) -> Discard"), @"`patern NAT 0 0`: input spec 0: expected drop, pass [OUTPUT], keep OUTPUT REPLY_OUTPUT, pattern ... OUTPUT REPLY_OUTPUT, or the name of a mapper");
    insta::assert_snapshot!(errors("Idle -> r :: IPRewriter(pattern NAT 0 0) -> Discard"), @"`pattern NAT 0 0`: input spec 0: no such pattern, and none of SADDR SPORT DADDR DPORT [patterns have names by IPRewriterPatterns(NAME SADDR SPORT DADDR DPORT)]");
    insta::assert_snapshot!(errors("Idle -> r :: IPRewriter(pattern 1.0.0.1 9-8 - - 0 0) -> Discard"), @"`9-8`: input spec 0: bad source port [the range of ports goes backwards]");
    insta::assert_snapshot!(errors("Idle -> r :: IPRewriter(pattern 1.0.0.1-1.0.0.9 - - - 0 0) -> Discard"), @"`1.0.0.1-1.0.0.9`: input spec 0: a pattern with ports has one source address [several addresses to choose from are SADDR DADDR: `1.0.0.1-1.0.0.9 -`]");
    insta::assert_snapshot!(errors("Idle -> r :: IPAddrRewriter(pattern 1.0.0.9-1.0.0.1 - 0 0) -> Discard"), @"`1.0.0.9-1.0.0.1`: input spec 0: bad source address [the range of addresses goes backwards]");
    insta::assert_snapshot!(errors("Idle -> r :: IPAddrRewriter(pattern 1.0.0.0/33 - 0 0) -> Discard"), @"`1.0.0.0/33`: input spec 0: bad source address [`1.0.0.0/33` is not an IP prefix like 18.26.4.0/24: an address, a range `ADDR-ADDR2`, a prefix, or `-` for what the packet has]");
    insta::assert_snapshot!(errors("Idle -> r :: IPAddrRewriter(pattern 1.0.0.1 2.0.0.1 0 0) -> Discard"), @"`pattern 1.0.0.1 2.0.0.1 0 0`: `IPAddrRewriter` changes the addresses of sources only: SADDR -");
    insta::assert_snapshot!(errors("Idle -> r :: IPAddrPairRewriter(pattern 1.0.0.1 9 - - 0 0) -> Discard"), @"`pattern 1.0.0.1 9 - - 0 0`: `IPAddrPairRewriter` knows no ports: SADDR DADDR");
}

#[test]
fn who_names_rewriters_is_told_which_there_are() {
    let with = |maps| {
        errors(&format!(
            "Idle -> nat :: IPRewriter(keep 0 0) -> Discard; Idle -> c :: Counter -> ICMPRewriter({maps}) -> Discard"
        ))
    };
    insta::assert_snapshot!(with("nta"), @"`nta`: there is no element `nta` [the nearest name is `nat`]");
    insta::assert_snapshot!(with("nat c"), @"`c`: `c` is of class `Counter`, which rewrites no flows");
    insta::assert_snapshot!(with("nat:1"), @"`nat:1`: `1` is not a number from 0 to 0");
    insta::assert_snapshot!(with(""), @"`ICMPRewriter()`: `ICMPRewriter` lacks its argument MAPS");
}

#[test]
fn errors_in_elements_made_of_others_are_where_those_are_used() {
    insta::assert_snapshot!(errors("Idle -> i :: IPInputCombo(300) -> Discard"), @"`i`: `300` is not a number from 0 to 255");
}

#[test]
fn arguments_are_checked() {
    insta::assert_snapshot!(errors("Idle -> Strip -> Paint(300) -> EtherEncap(0x800, 1:2:3:4:5, 1:1:1:1:1:1) -> Discard"), @r"
    `Strip`: `Strip` lacks its argument LENGTH
    `300`: `300` is not a number from 0 to 255
    `1:2:3:4:5`: `1:2:3:4:5` is not an Ethernet address like 0:1:2:3:4:5
    ");
    insta::assert_snapshot!(errors("Idle -> CheckIPHeader(CHECKSM false) -> Discard"), @"`CHECKSM false`: `CheckIPHeader` has no argument CHECKSM [the nearest name is `CHECKSUM`]");
    insta::assert_snapshot!(errors("Idle -> DecIPTTL(MULTICST false) -> Discard"), @"`MULTICST false`: `DecIPTTL` has no argument MULTICST [the nearest name is `MULTICAST`]");
    insta::assert_snapshot!(errors("Idle -> c :: Classifier(12/080, -); c[0] -> Discard; c[1] -> Discard"), @"`12/080`: `12/080` is no clause like 12/0806 or 33/02%12 [offset in decimal, value and mask in as many hexadecimal digits, an even number; `?` is any digit]");
    insta::assert_snapshot!(errors("Idle -> r :: StaticIPLookup(1.0.0.0/8 0, 1.0.0.0/8 0, 2/8 1); r -> Discard"), @"`1.0.0.0/8 0`: there is a route for this prefix already");
    insta::assert_snapshot!(errors("Idle -> f :: IPFilter(allow tpc port 80); f -> Discard"), @"`tpc`: expected a test like `src host 10.0.0.1`, `tcp` or `dst port 80`; found `tpc` [the nearest name is `tcp`]");
}

#[test]
fn headers_and_lengths_that_cannot_be_are_refused() {
    insta::assert_snapshot!(errors("Idle -> IPEncap(icmpp, 1.1.1.1, 2.2.2.2) -> Discard"), @"`icmpp`: `icmpp` is not a number from 0 to 255 [the nearest name is `icmp`]");
    insta::assert_snapshot!(errors("Idle -> e :: IPEncap(4, 1.1.1.1, 2.2.2.2, TOS 1, CE true) -> Discard"), @"`e`: TOS excludes DSCP, ECT and CE");
    insta::assert_snapshot!(errors("Idle -> e :: IPEncap(4, 1.1.1.1, 2.2.2.2, ECT 2, CE true) -> Discard"), @"`e`: ECT and CE exclude each other");
    insta::assert_snapshot!(errors("Idle -> Pad(60, RANDOM true) -> Pad(9999) -> Discard"), @r"
    `true`: RANDOM true of `Pad` is not supported: zeros are added
    `9999`: `9999` is not a number from 0 to 3500
    ");
}

#[test]
fn push_and_pull_do_not_meet() {
    insta::assert_snapshot!(errors("FromDevice(a) -> ToDevice(b)"), @"`FromDevice(a) -> ToDevice(b)`: `FromDevice@1` [0] pushes packets, `ToDevice@2` [0] pulls them, and they are connected [put a `Queue` where packets are to be pulled, an `Unqueue` where they are to be pushed]");
    insta::assert_snapshot!(errors("FromDevice(a) -> Counter -> Strip(1) -> t :: ToDevice(b)"), @"`t`: `FromDevice@1` [0] pushes packets, `t` [0] pulls them, and they are connected [put a `Queue` where packets are to be pulled, an `Unqueue` where they are to be pushed]");
    assert!(
        compile(
            &flatten(&parse("FromDevice(a) -> Counter -> Queue -> Strip(1) -> ToDevice(b)").unwrap(), &[])
                .unwrap()
        )
        .is_ok()
    );
}

#[test]
fn ports_are_connected_once() {
    insta::assert_snapshot!(errors("Idle -> c :: Counter"), @"`c`: 'c :: Counter' output 0 unused");
    insta::assert_snapshot!(errors("Idle -> c :: Counter -> Discard; c[1] -> Discard"), @"`c`: `c` has no output 1 [`Counter` has one output, [0]]");
    insta::assert_snapshot!(errors("FromDevice(a) -> c :: Counter; c -> Discard; c -> d :: Discard"), @"`c -> d :: Discard`: illegal reuse of 'c :: Counter' push output 0 [a `Tee` sends copies to several elements]");
    insta::assert_snapshot!(errors("i :: Idle -> [1] c :: { input -> output }"), @"`c`: `c` is used with 2 inputs and 0 outputs, for which its class has no definition [a definition has 1 inputs and 1 outputs]");
}

#[test]
fn packets_do_not_go_round_for_ever() {
    insta::assert_snapshot!(errors("FromDevice(a) -> c :: Counter -> p :: Paint(1) -> c"), @"`c`: packets go round through `c` without end [no element on the way drops them or has another output]");
}

#[test]
fn what_definitions_multiply_to_is_limited() {
    let doubled: Vec<String> = (1..60).map(|n| format!("$a{n} $a{}$a{}", n - 1, n - 1)).collect();
    let text = format!("define($a0 text, {})", doubled.join(", "));
    assert!(errors(&text).ends_with("variables become more text than 256 MiB"), "{}", errors(&text));
    // Each is tried with two inputs first, so that all below it is made twice.
    let nested: String = (1..60)
        .map(|n| {
            let inner = n - 1;
            format!(
                "elementclass C{n} {{ input -> C{inner} -> output; input[1] -> Discard \
                 || input -> C{inner} -> output }}"
            )
        })
        .collect();
    let text = format!("elementclass C0 {{ input -> Null -> output }} {nested} Idle -> C59 -> Discard");
    assert!(errors(&text).contains("more than"), "{}", errors(&text));
}

#[test]
fn what_is_no_statement_is_shown() {
    insta::assert_snapshot!(errors("a -> -> b"), @"`->`: an element is missing between two arrows");
    insta::assert_snapshot!(errors("a :: X(1"), @"`(`: a configuration string without its closing parenthesis");
    insta::assert_snapshot!(errors("a [x] -> b"), @"`x`: expected a port number below 1024, found `x`");
    insta::assert_snapshot!(errors("a :: X; a :: Y"), @"`a`: redeclaration of element 'a'");
    insta::assert_snapshot!(errors("define($a 1, $a 2)"), @"`$a 2`: `$a` is defined twice in this scope");
    insta::assert_snapshot!(errors("a,b,c,d::Idle; a,b -> c,d"), @"`a,b -> c,d`: syntax error: many-to-many connections require '=>' [`=>` connects as many outputs to as many inputs, one by one]");
    insta::assert_snapshot!(errors("-> Idle"), @"`->`: syntax error near '->' [nothing is named here, and there is no compound element around it]");
}

#[test]
fn scripts_say_what_they_do_not_know() {
    insta::assert_snapshot!(errors("Script(TYPE BUSY)"), @"`BUSY`: scripts of type BUSY are not supported [those that are: ACTIVE, PASSIVE, DRIVER, PROXY, PACKET, SIGNAL with the names of signals]");
    insta::assert_snapshot!(errors("Script(prnt x, label a)"), @"`prnt`: there is no instruction `prnt` in scripts here [the nearest name is `print`]");
    insta::assert_snapshot!(errors("Script(goto nowere, label nowhere)"), @"`nowere`: there is no label `nowere` [the nearest name is `nowhere`]");
    insta::assert_snapshot!(errors("Script(write)"), @"`write`: `write` lacks the name of a handler");
    insta::assert_snapshot!(errors("Idle -> Script(end) -> Discard"), @"`Script(end)`: scripts run for packets only where they come one by one: not in stages, and not in code for other programs");
}

#[test]
fn addresses_times_and_routes_of_ipv6_are_checked() {
    insta::assert_snapshot!(errors("Idle -> CheckIP6Header(1.2.3.4) -> Discard"), @"`1.2.3.4`: `1.2.3.4` is not an IPv6 address");
    insta::assert_snapshot!(errors("Idle -> r :: LookupIP6Route(::/129 0) -> Discard"), @"`::/129`: `::/129` is not an IPv6 prefix like 3ffe:1ce1:2::/80");
    insta::assert_snapshot!(errors("Idle -> r :: LookupIP6Route(::/0 0, 1::/16 1, ::/0 0) -> Discard"), @"`1`: `1` is not a number from 0 to 0 [the last output that is connected is [0]]");
    insta::assert_snapshot!(errors("Idle -> r :: LookupIP6Route(::/0 0, 0::0/0 0) -> Discard"), @"`0::0/0 0`: there is a route for this prefix already");
    insta::assert_snapshot!(errors("Idle -> r :: LookupIP6Route() -> Discard"), @"`r`: `LookupIP6Route` has no routes");
    insta::assert_snapshot!(errors("Idle -> IP6NDAdvertiser(::1 nobody) -> Discard"), @"`nobody`: `nobody` is neither an IPv6 prefix nor an Ethernet address");
    insta::assert_snapshot!(errors("Idle -> ICMP6Error(::1, 9, 0) -> Discard"), @"`9`: 9 is no type of errors or redirects [errors are 1 to 4, a redirect is 137]");
    insta::assert_snapshot!(errors("TimedSource(1 year) -> Discard"), @"`1 year`: `1 year` is not a time like 5, 0.5s or 10ms");
    insta::assert_snapshot!(errors("FastUDPFlows(RATE 0, LIMIT -1, LENGTH 60, SRCETH 1:1:1:1:1:1, SRCIP 1.1.1.1, DSTETH 1:1:1:1:1:1, DSTIP 1.1.1.1, FLOWS 0, FLOWSIZE 1) -> Discard"), @"`0`: there must be a flow at least");
    insta::assert_snapshot!(errors("FromDPDKRing(FROM_PROC a) -> Discard"), @"`FromDPDKRing(FROM_PROC a)`: a ring needs FROM_PROC and TO_PROC");
}

#[test]
fn names_of_addresses_are_somebodys() {
    insta::assert_snapshot!(errors("FromDump(a) -> EtherEncap(0x0800, eth9, eth9:eth) -> Discard"), @"`eth9:eth`: `eth9:eth` is not an Ethernet address like 0:1:2:3:4:5 [a name is what `AddressInfo` says it is, or an interface of this machine that has such an address]");
    insta::assert_snapshot!(errors("FromDump(a) -> MarkIPHeader -> LinearIPLookup(eth9:gw 0) -> Discard"), @"`eth9:gw`: `eth9:gw` is not an IP prefix like 18.26.4.0/24 [a name is what `AddressInfo` says it is, or an interface of this machine that has such an address]");
    insta::assert_snapshot!(errors("AddressInfo(net 10.0.0.0/8); FromDump(a) -> MarkIPHeader -> SetIPAddress(net) -> Discard"), @"`net`: `net` is not an IP address [a name is what `AddressInfo` says it is, or an interface of this machine that has such an address]");
}

#[test]
fn values_of_variables_end_their_parentheses_and_quotes() {
    let with = |argument: &str, body: &str| {
        let class = format!("elementclass C {{ $a, $b | input -> {body} -> output }}");
        errors(&format!("{class} Idle -> C({argument}) -> Discard"))
    };
    let unbalanced = "`$a`: with the values of its variables, this string has a parenthesis or a quote without \
                      its other half [a comma ends an argument, inside of parentheses as well: put what \
                      belongs together in double quotes]";
    assert_eq!(with("f(1, 2)", "Print($a)"), unbalanced);
    assert_eq!(with("f(1, 2)", "Print($b)"), unbalanced.replace("$a", "$b"));
    // Pieces that meet again, and what is quoted, are configurations.
    assert!(!with("f(1, 2)", "Paint($a, $b)").contains("parenthesis"));
    assert!(!with("\"f(1, 2)\", 3", "Paint($a)").contains("parenthesis"));
}
