FromDump($IN, STOP true) -> c :: Classifier(!12/0800, 14/45 !23/06 100/00, 60/00000000%0f0f0f0f, -);
c[0] -> ToDump($DIR/0.pcap);
c[1] -> ToDump($DIR/1.pcap);
c[2] -> ToDump($DIR/2.pcap);
c[3] -> ToDump($DIR/3.pcap);
