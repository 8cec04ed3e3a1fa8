// A filter on ports for packets that come in fragments, too: only the first fragment of a packet has its ports.
// Fragments become packets in front of the filter, and packets that are too long become fragments behind it.

FromDevice(eth0) -> c :: Classifier(12/0800, -);
c[0] -> Strip(14)
    -> CheckIPHeader
    -> IPReassembler
    -> f :: IPFilter(deny udp port 1900, allow all)
    -> IPFragmenter(1500)
    -> EtherEncap(0x0800, 02:00:00:00:00:01, 02:00:00:00:00:02)
    -> q :: Queue(1000)
    -> ToDevice(eth1);
c[1] -> q;
