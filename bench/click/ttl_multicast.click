FromDump($IN, STOP true) -> Classifier(12/0800) -> MarkIPHeader(14) -> DecIPTTL(MULTICAST false) -> ToDump($DIR/out.pcap);
