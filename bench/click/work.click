// Work for each packet, which leaves it as it is.
FromDump($IN, STOP true, BURST 1) -> WorkPackage(S 1, N 2, R 50, W 3) -> WorkPackage(N 1, R 100, PAYLOAD true) -> ToDump($DIR/out.pcap);
