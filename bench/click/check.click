FromDump($IN, STOP true) -> Classifier(12/0800) -> Strip(14) -> c :: CheckIPHeader(CHECKSUM true);
c[0] -> Unstrip(14) -> ToDump($DIR/good.pcap);
c[1] -> Unstrip(14) -> ToDump($DIR/bad.pcap);
