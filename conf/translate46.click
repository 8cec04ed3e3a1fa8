// Stateless translation between IPv4 and IPv6 (RFC 7915): eth0 speaks IPv4, eth1 IPv6 with IPv4-mapped
// addresses. TCP, UDP and ICMP echoes pass in both directions.

FromDevice(eth0) -> c0 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> ProtocolTranslator46
  -> EtherEncap(0x86dd, 02:00:00:00:00:02, 02:00:00:00:00:0b) -> Queue -> ToDevice(eth1);

FromDevice(eth1) -> c1 :: Classifier(12/86dd, -) -> Strip(14) -> CheckIP6Header
  -> ProtocolTranslator64
  -> EtherEncap(0x0800, 02:00:00:00:00:01, 02:00:00:00:00:0a) -> Queue -> ToDevice(eth0);

c0[1], c1[1] -> Discard;
