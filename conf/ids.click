// Intrusion detection on a copy of the traffic: the packets themselves pass unchanged. Null scans, Christmas
// tree scans, SYN packets with FIN, and packets from addresses that cannot be senders are counted by kind and
// written to a capture file.

FromDevice(eth0) -> copy :: Tee -> Queue -> ToDevice(eth1);

copy[1] -> c :: Classifier(12/0800, -) -> MarkIPHeader(14)
  -> kind :: IPClassifier(tcp and tcp[13] & 0x3f = 0,
                          tcp and tcp[13] & 0x29 = 0x29,
                          tcp opt syn and tcp opt fin,
                          src net 127.0.0.0/8 or src net 0.0.0.0/8,
                          -);
c[1] -> Discard;
kind[4] -> Discard;

kind[0] -> null :: Counter -> alarm :: ToDump(ids.pcap);
kind[1] -> tree :: Counter -> alarm;
kind[2] -> synfin :: Counter -> alarm;
kind[3] -> martian :: Counter -> alarm;
