// A firewall, by the rules of IPFilter's documentation.
FromDump($IN, STOP true) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
  -> f :: IPFilter(deny src net 224.0.0.0/4,
                   allow tcp && dst port www && syn && !ack,
                   allow src tcp port 443 or 80,
                   1 udp port domain || dst udp port > 1023,
                   2 icmp type echo || icmp type echo-reply,
                   1 ip frag,
                   deny tcp opt rst,
                   3 tcp,
                   deny all);
f[0] -> Unstrip(14) -> ToDump($DIR/0.pcap);
f[1] -> Unstrip(14) -> ToDump($DIR/1.pcap);
f[2] -> Unstrip(14) -> ToDump($DIR/2.pcap);
f[3] -> Unstrip(14) -> ToDump($DIR/3.pcap);
