FromDump($IN, STOP true) -> l :: CheckLength(200);
l[0] -> Strip(6) -> ToDump($DIR/short.pcap, SNAPLEN 40);
l[1] -> Unstrip(4) -> Strip(4) -> ToDump($DIR/long.pcap);
