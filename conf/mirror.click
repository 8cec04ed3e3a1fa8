// A mirror port: eth0 and eth1 are connected as by a wire, and eth2 gets a copy of the packets of both, of at
// most 128 bytes each in a capture file as well.

FromDevice(eth0) -> a :: Tee -> Queue -> ToDevice(eth1);
FromDevice(eth1) -> b :: Tee -> Queue -> ToDevice(eth0);
a[1], b[1] -> ToDump(mirror.pcap, SNAPLEN 128) -> copies :: Counter -> Queue -> ToDevice(eth2);
