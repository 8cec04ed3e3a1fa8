//! Classes of Click that make no sense here, and why not: said in place of a name that looks like theirs.

/// Reasons why some classes are not supported; a name that ends with `*` means all names with that beginning.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &[
            "*Wifi",
            "Wifi*",
            "Prism2*",
            "Radiotap*",
            "Athdesc*",
            "ExtraDecap",
            "ExtraEncap",
            "FilterTX",
            "FilterPhyErr",
            "FilterFailures",
            "SetTXRate",
            "SetTXPower",
            "AvailableRates",
            "WirelessInfo",
            "Beacon*",
            "Association*",
            "OpenAuth*",
            "Probe*",
            "MadwifiRate",
            "SetPacketType",
        ],
        "it works on frames of 802.11 as a monitoring interface has them, and no device here gives or takes these",
    ),
    (
        &["SR2*", "ETT*", "LinkTable", "PrintSR", "CheckSRHeader", "GatewaySelector", "Metric*"],
        "it is a routing protocol of wireless meshes over 802.11, which no device here speaks",
    ),
    (
        &["*Grid*", "DSDV*", "FixSrcLoc", "LookupLocalGridRoute*"],
        "it is a routing protocol of wireless meshes, which makes messages of its state by a clock: \
         packets wait for their time here, but no element makes any of what it knows",
    ),
    (&["IPsec*", "RadixIPsecLookup"], "there is no cryptography here"),
    (
        &[
            "TCPIn",
            "TCPOut",
            "IPIn",
            "IPOut",
            "HTTPIn",
            "HTTPOut",
            "WordMatcher",
            "RegexMatcher*",
            "FlowIDSMatcher",
        ],
        "it changes or searches the bytes of a stream, and there are packets here, no streams",
    ),
    (
        &[
            "ToyTCP",
            "TCPConn",
            "TCPDemux",
            "TCPAck",
            "TCPBuffer",
            "BufferConverter",
            "CopyTCPSeq",
            "CopyFlowID",
        ],
        "it is an end of TCP connections, with timers for each of them: packets wait for their time here, \
         but connections have none",
    ),
    (
        &["IPRateMonitor", "IPFlexMonitor", "Block"],
        "it goes by rates of addresses and their prefixes, which nobody keeps here: `CountMinSketch` says \
         how much each flow had",
    ),
    (&["Rewriter"], "`IPRewriter` has taken its place, with other arguments"),
    (&["ProtocolTranslator"], "`ProtocolTranslator64` and `ProtocolTranslator46` have taken its place"),
    (&["NDAdv"], "`IP6NDAdvertiser` has taken its place"),
    (&["SchedOrderTest"], "it tests the scheduling of tasks, and there are no tasks here"),
    (
        &["DeviceBalancer", "AggregateCounterVector"],
        "it moves queues of a card between threads: workers here have their flows by a hash (--workers)",
    ),
];

/// Why a class of Click is not supported here, if that is known.
pub(crate) fn unsupported_reason(class: &str) -> Option<&'static str> {
    let fits = |pattern: &&str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(inner), Some(_)) => class.contains(inner.trim_end_matches('*')),
        (Some(end), None) => class.ends_with(end),
        (None, Some(begin)) => class.starts_with(begin),
        (None, None) => class == *pattern,
    };
    REFUSED.iter().find(|(classes, _)| classes.iter().any(&fits)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::unsupported_reason;
    use crate::LIBRARY;

    #[test]
    fn what_is_refused_is_known_by_name_and_nothing_that_there_is() {
        for refused in ["PrintWifi", "WifiDecap", "SetGridChecksum", "SR2Querier", "IPsecESPEncap", "Block"] {
            assert!(unsupported_reason(refused).is_some(), "{refused}");
        }
        assert_eq!(unsupported_reason("Counterr"), None);
        for class in LIBRARY.all() {
            assert_eq!(unsupported_reason(class.name), None, "{}", class.name);
        }
    }
}
