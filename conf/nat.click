// Source NAT for a private network behind eth0. Connections from inside leave by eth1 with the address
// 203.0.113.1 and a port of their own; answers are translated back, and packets that belong to no
// connection are dropped. The handler `nat.size` is the number of connections.

define($PUBLIC 203.0.113.1, $INSIDE 02:00:00:00:00:0a, $OUTSIDE 02:00:00:00:00:0b);

nat :: IPRewriter(pattern $PUBLIC 1024-65535 - - 0 1, drop);

FromDevice(eth0) -> c0 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> f0 :: IPClassifier(tcp or udp, -) -> [0] nat;
FromDevice(eth1) -> c1 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> f1 :: IPClassifier(tcp or udp, -) -> [1] nat;
c0[1], c1[1], f0[1], f1[1] -> Discard;

nat[0] -> EtherEncap(0x0800, $OUTSIDE, 02:00:00:00:00:fe) -> Queue -> ToDevice(eth1);
nat[1] -> EtherEncap(0x0800, $INSIDE, 02:00:00:00:00:fd) -> Queue -> ToDevice(eth0);
