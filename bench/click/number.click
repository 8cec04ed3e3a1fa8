// Numbers written into packets, in both orders.
FromDump($IN, STOP true, BURST 1)
	-> r :: RoundRobinSwitch
	-> NumberPacket(42)
	-> ToDump($DIR/little.pcap);
r[1] -> NumberPacket(46, NET_ORDER true) -> ToDump($DIR/big.pcap);
