// An IPv4 router between eth0 (192.0.2.0/24) and eth1 (198.51.100.0/24). It answers ARP requests and asks
// for the addresses of its neighbours, looks the destination up in a table of routes, decrements the time
// to live, and sends an ICMP error where that ends. Run it on interfaces with `--io raw`.

define($IP0 192.0.2.1, $MAC0 02:00:00:00:00:01, $IP1 198.51.100.1, $MAC1 02:00:00:00:00:02);

rt :: RadixIPLookup($IP0/32 0, $IP1/32 0, 192.0.2.0/24 1, 198.51.100.0/24 2, 0.0.0.0/0 198.51.100.254 2);

elementclass Port { $ip, $mac |
  input[0] -> in :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
  in[0] -> ARPResponder($ip $mac) -> [0] output;
  in[1] -> [1] arp :: ARPQuerier($ip, $mac) -> [0] output;
  in[2] -> Strip(14) -> CheckIPHeader -> [1] output;
  in[3] -> Discard;
  input[1] -> ttl :: DecIPTTL -> FixIPSrc($ip) -> arp;
  ttl[1] -> ICMPError($ip, timeexceeded) -> [1] output;
}

FromDevice(eth0) -> p0 :: Port($IP0, $MAC0) -> Queue -> ToDevice(eth0);
FromDevice(eth1) -> p1 :: Port($IP1, $MAC1) -> Queue -> ToDevice(eth1);
p0[1], p1[1] -> rt;
rt[0] -> Discard;
rt[1] -> [1] p0;
rt[2] -> [1] p1;
