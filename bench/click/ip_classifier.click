FromDump($IN, STOP true) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
  -> c :: IPClassifier(src or dst host 192.168.1.2 and tcp,
                       10.0.0.0/8 and syn,
                       src net 192.168.0.0/16 and dst net 192.168.0.0/16 and (udp port 53 or udp port 5353),
                       ip ttl < 64 and not ip tos 0,
                       src port != 443 and ack,
                       ip proto igmp or ip vers 4 and ip hl > 5,
                       ip[9:1] 17 and udp[4:2] & 0xff00 == 0,
                       -);
c[0] -> ToDump($DIR/0.pcap);
c[1] -> ToDump($DIR/1.pcap);
c[2] -> ToDump($DIR/2.pcap);
c[3] -> ToDump($DIR/3.pcap);
c[4] -> ToDump($DIR/4.pcap);
c[5] -> ToDump($DIR/5.pcap);
c[6] -> ToDump($DIR/6.pcap);
c[7] -> ToDump($DIR/7.pcap);
