// Ethernet over UDP, as VXLAN does it without its header. Whole frames of eth0 become the payload of UDP
// packets to the other end; the frames in packets from there leave by eth0.

FromDevice(eth0) -> UDPIPEncap(192.0.2.1, 4789, 198.51.100.1, 4789)
  -> EtherEncap(0x0800, 02:00:00:00:00:01, 02:00:00:00:00:0a) -> Queue -> ToDevice(eth1);

FromDevice(eth1) -> c :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> inside :: IPClassifier(src host 198.51.100.1 and dst udp port 4789, -)
  -> StripIPHeader -> Strip(8) -> CheckLength(1514) -> Queue -> ToDevice(eth0);

c[1], inside[1] -> Discard;
