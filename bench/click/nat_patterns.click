// Patterns by name, a destination of one's own, flows let through as they are, and protocols by themselves.
IPRewriterPatterns(NAT 192.0.2.1 20000-60000# - -, SERVER - - 198.51.100.7 8080);
FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true)
  -> kinds :: IPClassifier(tcp dst port 80, tcp, udp, -);
tcp :: TCPRewriter(pattern SERVER 0 1, pattern NAT 2 3);
udp :: UDPRewriter(pattern NAT 0 1, pass 2);
kinds[0] -> [0] tcp;
kinds[1] -> [1] tcp;
kinds[2] -> [0] udp;
kinds[3] -> [1] udp;
tcp[0] -> Unstrip(14) -> ToDump($DIR/server.pcap);
tcp[1] -> Unstrip(14) -> ToDump($DIR/server_answers.pcap);
tcp[2] -> Unstrip(14) -> ToDump($DIR/tcp.pcap);
tcp[3] -> Unstrip(14) -> ToDump($DIR/tcp_answers.pcap);
udp[0] -> Unstrip(14) -> ToDump($DIR/udp.pcap);
udp[1] -> Unstrip(14) -> ToDump($DIR/udp_answers.pcap);
udp[2] -> Unstrip(14) -> ToDump($DIR/other.pcap);
