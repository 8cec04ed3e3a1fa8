FromDump($IN, STOP true, BURST 1) -> Classifier(12/0800) -> Strip(14) -> CheckIPHeader(CHECKSUM true)
  -> o :: IPGWOptions(18.26.4.24);
o[0] -> ToDump($DIR/out.pcap);
o[1] -> ICMPError(18.26.4.24, parameterproblem) -> ToDump($DIR/bad.pcap);
