// An IP-in-IP tunnel (RFC 2003). Packets from eth0 get an outer header to the other end of the tunnel; what
// comes from there by eth1 loses it and goes on to eth0.

FromDevice(eth0) -> c0 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> IPEncap(4, 192.0.2.1, 198.51.100.1)
  -> EtherEncap(0x0800, 02:00:00:00:00:01, 02:00:00:00:00:0a) -> Queue -> ToDevice(eth1);

FromDevice(eth1) -> c1 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> inside :: IPClassifier(ip proto 4 and src host 198.51.100.1, -)
  -> StripIPHeader -> CheckIPHeader
  -> EtherEncap(0x0800, 02:00:00:00:00:02, 02:00:00:00:00:0b) -> Queue -> ToDevice(eth0);

c0[1], c1[1], inside[1] -> Discard;
