// A load balancer in front of three servers. A hash of the addresses chooses the server, so all packets of a
// pair of hosts reach the same one; the servers answer directly, as in direct server return, and only the
// Ethernet destination is rewritten. The counters show how the load spreads.

FromDevice(eth0) -> c :: Classifier(12/0800, -)
  -> hash :: HashSwitch(26, 8);
c[1] -> Discard;

out :: Queue -> ToDevice(eth1);
hash[0] -> first :: Counter -> EtherRewrite(02:00:00:00:00:01, 02:00:00:00:01:01) -> out;
hash[1] -> second :: Counter -> EtherRewrite(02:00:00:00:00:01, 02:00:00:00:01:02) -> out;
hash[2] -> third :: Counter -> EtherRewrite(02:00:00:00:00:01, 02:00:00:00:01:03) -> out;
