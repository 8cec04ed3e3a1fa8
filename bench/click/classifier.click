FromDump($IN, STOP true)
  -> c :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800 23/06, 12/0800 23/11%1f, 12/86dd, 12/81?? 16/0800, -);
c[0] -> ToDump($DIR/arp1.pcap);
c[1] -> ToDump($DIR/arp2.pcap);
c[2] -> ToDump($DIR/tcp.pcap);
c[3] -> ToDump($DIR/udp.pcap);
c[4] -> ToDump($DIR/ip6.pcap);
c[5] -> ToDump($DIR/vlan.pcap);
c[6] -> ToDump($DIR/rest.pcap);
