// A policer: of each second, eth1 gets at most 1,000 packets of UDP, and what is above that rate is dropped.
// Unlike a shaper it delays nothing, and other protocols are not limited.

out :: Queue -> ToDevice(eth1);
FromDevice(eth0) -> c :: Classifier(12/0800, -) -> MarkIPHeader(14) -> ip :: IPClassifier(udp, -);
ip[0] -> limit :: RatedSplitter(1000) -> out;
limit[1] -> excess :: Counter -> Discard;
ip[1], c[1] -> out;
