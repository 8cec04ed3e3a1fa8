// An IPv6 router between two networks of documentation addresses. It checks the header, decrements the hop
// limit, looks the destination up, and sends an ICMPv6 error where a packet has no hop left.

rt :: LookupIP6Route(2001:db8:1::/48 ::0 0, 2001:db8:2::/48 ::0 1, ::0/0 ::0 2);

FromDevice(eth0) -> c0 :: Classifier(12/86dd, -) -> Strip(14) -> CheckIP6Header -> GetIP6Address(24) -> rt;
FromDevice(eth1) -> c1 :: Classifier(12/86dd, -) -> Strip(14) -> CheckIP6Header -> GetIP6Address(24) -> rt;
c0[1], c1[1] -> Discard;

rt[0] -> hop0 :: DecIP6HLIM -> EtherEncap(0x86dd, 02:00:00:00:00:01, 02:00:00:00:00:0a)
  -> Queue -> ToDevice(eth0);
rt[1] -> hop1 :: DecIP6HLIM -> EtherEncap(0x86dd, 02:00:00:00:00:02, 02:00:00:00:00:0b)
  -> Queue -> ToDevice(eth1);
rt[2] -> Discard;
hop0[1], hop1[1] -> ICMP6Error(2001:db8:1::1, 3, 0) -> rt;
