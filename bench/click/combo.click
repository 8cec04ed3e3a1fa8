// A router with the output path in one element, as in FastClick's examples.
FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Paint(1) -> Strip(14) -> CheckIPHeader(CHECKSUM true)
  -> rt :: LookupIPRouteMP(10.0.0.0/8 0, 192.168.0.0/16 0, 0.0.0.0/0 1);
rt[0] -> a :: IPOutputCombo(1, 10.1.0.1, 576);
rt[1] -> b :: IPOutputCombo(2, 10.2.0.1, 1500);
out :: ToDump($DIR/out.pcap);
a[0], b[0] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> out;
a[1], b[1] -> ToDump($DIR/redirect.pcap);
a[2], b[2] -> ToDump($DIR/options.pcap);
a[3], b[3] -> ToDump($DIR/ttl.pcap);
a[4], b[4] -> ToDump($DIR/long.pcap);
