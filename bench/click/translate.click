// IPv4 as IPv6, with another source for a while, and back: segments and datagrams.
FromDump($IN, STOP true, BURST 1)
	-> Classifier(12/0800)
	-> Strip(14)
	-> CheckIPHeader(CHECKSUM true)
	-> ip :: IPClassifier(ip frag or src host 0.0.0.0, tcp, udp, -);
ip[0] -> Discard;
ip[1] -> ok :: CheckTCPHeader(CHECKSUM true) -> StoreData(1, \<00>) -> SetIPChecksum -> four :: ProtocolTranslator46;
ip[2] -> CheckUDPHeader(CHECKSUM true) -> StoreData(1, \<00>) -> SetIPChecksum -> four;
ip[3] -> Discard;
// The peer changes the hops that are left, knows no traffic class, and has some checksums of TCP wrong.
four -> StoreData(7, \<40>) -> t :: Tee -> c :: Classifier(6/06, -);
c[0] -> StoreData(56, \<0000>) -> ToDump($DIR/segments.pcap, ENCAP IP);
c[1] -> StoreData(46, \<0000>) -> ToDump($DIR/datagrams.pcap, ENCAP IP);
t[1] -> CheckIP6Header -> ProtocolTranslator64 -> ToDump($DIR/four.pcap, ENCAP IP);
