FromDump($IN, STOP true) -> GetIPAddress(30)
  -> rt :: RadixIPLookup(192.168.1.1/32 1, 10.0.0.0/9 0, 128.0.0.0/1 - 1, 192.168.0.0/255.255.255.0 0);
rt[0] -> ToDump($DIR/0.pcap);
rt[1] -> ToDump($DIR/1.pcap);
