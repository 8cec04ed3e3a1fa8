// Addresses and ports of TCP and UDP translated behind one address, answers let in again, and what else there is passed on.
FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true)
  -> side :: IPClassifier(src net 192.0.0.0/3 or src net 10.0.0.0/8, -);
rw :: IPRewriter(pattern 100.64.0.1 1024-65535# - - 0 1, keep 2 3);
side[0] -> [0] rw;
side[1] -> [1] rw;
rw[0] -> Unstrip(14) -> ToDump($DIR/out.pcap);
rw[1] -> Unstrip(14) -> ToDump($DIR/in.pcap);
rw[2] -> Unstrip(14) -> ToDump($DIR/kept.pcap);
rw[3] -> Unstrip(14) -> ToDump($DIR/answers.pcap);
