// TCP, UDP and ICMP headers looked at, and a VLAN tag put on and taken away.
FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true)
  -> kinds :: IPClassifier(tcp, udp, icmp, -);
bad :: ToDump($DIR/bad.pcap);
kinds[0] -> tcp :: CheckTCPHeader -> Unstrip(14) -> VLANEncap(VLAN_ID 7, VLAN_PCP 3) -> ToDump($DIR/tcp.pcap);
kinds[1] -> udp :: CheckUDPHeader -> Unstrip(14) -> VLANEncap(0x2005) -> VLANDecap -> ToDump($DIR/udp.pcap);
kinds[2] -> icmp :: CheckICMPHeader -> Unstrip(14) -> VLANEncap(0) -> VLANDecap -> ToDump($DIR/icmp.pcap);
kinds[3] -> ToDump($DIR/other.pcap);
tcp[1], udp[1], icmp[1] -> Unstrip(14) -> bad;
