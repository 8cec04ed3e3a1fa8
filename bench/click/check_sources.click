FromDump($IN, STOP true) -> Classifier(12/0800)
  -> c :: CheckIPHeader(OFFSET 14, INTERFACES 192.168.1.1/24 10.0.0.1/8 172.16.255.255/12, CHECKSUM false);
c[0] -> ToDump($DIR/good.pcap);
c[1] -> ToDump($DIR/bad.pcap);
