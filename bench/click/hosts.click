// Hosts behind a translator: addresses of a pool, and a port for each flow.
FromDump($IN, STOP true, BURST 1)
	-> Classifier(12/0800)
	-> Strip(14)
	-> CheckIPHeader(CHECKSUM true)
	-> ip :: IPClassifier(ip frag or src host 0.0.0.0, tcp, udp, -);
ip[0] -> Discard;
ip[1] -> CheckTCPHeader(CHECKSUM true) -> four :: ProtocolTranslator46;
ip[2] -> CheckUDPHeader(CHECKSUM true) -> four;
ip[3] -> Discard;
four -> StoreData(7, \<40>) -> StoreData(1, \<00>) -> t :: Tee -> [0] pool :: AddressTranslator(0, 1, 0, 0, ::9.0.0.1, ::9.0.0.2, ::9.0.0.3);
pool[0] -> a :: Classifier(6/06, -);
a[0] -> StoreData(56, \<0000>) -> ToDump($DIR/segments.pcap, ENCAP IP);
a[1] -> StoreData(46, \<0000>) -> ToDump($DIR/datagrams.pcap, ENCAP IP);
t[1] -> [0] ports :: AddressTranslator(0, 1, 1, 0, ::9.0.0.4 1024 65000);
ports[0] -> b :: Classifier(6/06, -);
b[0] -> StoreData(56, \<0000>) -> ToDump($DIR/flows.pcap, ENCAP IP);
b[1] -> StoreData(46, \<0000>) -> ToDump($DIR/others.pcap, ENCAP IP);
Idle -> [1] pool;
Idle -> [1] ports;
pool[1] -> Discard;
ports[1] -> Discard;
