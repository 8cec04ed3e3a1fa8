// A switch of three ports, between which a trace is dealt out by the last bits of the source's address.
FromDump($IN, STOP true, BURST 1) -> side :: Classifier(11/00%03, 11/01%03, -);
s :: EtherSwitch(TIMEOUT 1000000000);
side[0] -> [0] s;
side[1] -> [1] s;
side[2] -> [2] s;
s[0] -> ToDump($DIR/0.pcap);
s[1] -> ToDump($DIR/1.pcap);
s[2] -> ToDump($DIR/2.pcap);
