// HashSwitch by what it sums up, of powers of two and of other numbers of outputs; packets that are too short.
FromDump($IN, STOP true, BURST 1)
	-> h :: HashSwitch(26, 4);
h[0] -> ToDump($DIR/zero.pcap);
h[1] -> k :: HashSwitch(30, 2);
h[2] -> l :: HashSwitch(40, 32);
k[0] -> ToDump($DIR/even.pcap);
k[1] -> ToDump($DIR/odd.pcap);
l[0] -> ToDump($DIR/first.pcap);
l[1] -> ToDump($DIR/second.pcap);
l[2] -> ToDump($DIR/third.pcap);
l[3] -> ToDump($DIR/fourth.pcap);
