FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800 14/45) -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> t :: Tee(2);
t[0] -> f :: IPFragmenter(300) -> ToDump($DIR/300.pcap);
f[1] -> ToDump($DIR/refused.pcap);
t[1] -> IPFragmenter(576, HONOR_DF false) -> ToDump($DIR/576.pcap);
