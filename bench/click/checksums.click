// Checksums of TCP and UDP made anew, after addresses and ports were exchanged.
FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true)
  -> kinds :: IPClassifier(tcp && !ip frag, udp && !ip frag, -);
kinds[0] -> IPMirror -> SetTCPChecksum -> ToDump($DIR/tcp.pcap);
kinds[1] -> IPMirror -> SetUDPChecksum -> ToDump($DIR/udp.pcap);
kinds[2] -> StoreIPAddress(18.26.4.24, 12) -> ToDump($DIR/other.pcap);
