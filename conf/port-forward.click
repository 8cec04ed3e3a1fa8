// Port forwarding: connections to 203.0.113.1, port 8080, go to port 80 of a server in the private network,
// and its answers leave with the public address. Everything else from outside is dropped.

web :: IPRewriter(pattern - - 10.0.0.80 80 0 1, drop);

FromDevice(eth1) -> c1 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> to :: IPClassifier(dst host 203.0.113.1 and dst tcp port 8080, -) -> [0] web;
FromDevice(eth0) -> c0 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> from :: IPClassifier(src host 10.0.0.80 and src tcp port 80, -) -> [1] web;
c0[1], c1[1], to[1], from[1] -> Discard;

web[0] -> EtherEncap(0x0800, 02:00:00:00:00:0a, 02:00:00:00:00:80) -> Queue -> ToDevice(eth0);
web[1] -> EtherEncap(0x0800, 02:00:00:00:00:0b, 02:00:00:00:00:fe) -> Queue -> ToDevice(eth1);
