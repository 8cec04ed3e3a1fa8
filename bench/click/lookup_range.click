FromDump($IN, STOP true) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
  -> rt :: RangeIPLookup(192.168.0.0/16 0, 192.168.1.0/24 10.1.1.1 1, 10.0.0.0/8 1, 224.0.0.0/4 2, 0/0 2);
rt[0] -> Unstrip(14) -> ToDump($DIR/0.pcap);
rt[1] -> Unstrip(14) -> ToDump($DIR/1.pcap);
rt[2] -> Unstrip(14) -> ToDump($DIR/2.pcap);
