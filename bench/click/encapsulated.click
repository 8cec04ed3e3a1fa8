// Echo requests answered; everything else within datagrams.
FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true)
  -> echo :: IPClassifier(icmp type echo, -);
echo[0] -> ping :: ICMPPingResponder -> ToDump($DIR/answers.pcap);
echo[1] -> UDPIPEncap(18.26.4.24, 4000, 18.26.7.1, 5000, CHECKSUM true) -> ToDump($DIR/datagrams.pcap);
