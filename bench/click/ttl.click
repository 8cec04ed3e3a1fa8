FromDump($IN, STOP true) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> d :: DecIPTTL;
d[0] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> ToDump($DIR/out.pcap);
d[1] -> EtherEncap(0x0800, 3:3:3:3:3:3, 4:4:4:4:4:4) -> ToDump($DIR/expired.pcap);
