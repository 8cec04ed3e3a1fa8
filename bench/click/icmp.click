FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
  -> c :: IPClassifier(ip ttl < 65, udp, -);
e :: EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> ToDump($DIR/out.pcap);
c[0] -> ICMPError(18.26.4.24, timeexceeded) -> e;
c[1] -> ICMPError(18.26.4.24, unreachable, needfrag, PMTU 1400) -> e;
c[2] -> ICMPError(18.26.7.1, redirect, host) -> e;
