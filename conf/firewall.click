// A stateless packet filter between two interfaces. From outside (eth1) come only answers of TCP and UDP
// services, ICMP echoes, and connections to one web server; from inside (eth0) everything passes but mail.
// `millstream click conf/firewall.click -h in.rule0` prints a rule as it was understood.

FromDevice(eth0) -> c0 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> out :: IPFilter(drop dst tcp port 25, allow all)
  -> Unstrip(14) -> Queue -> ToDevice(eth1);

FromDevice(eth1) -> c1 :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> in :: IPFilter(allow dst host 192.0.2.80 and dst tcp port 80 or 443,
                    allow tcp opt ack,
                    allow src udp port 53,
                    allow icmp type echo or icmp type echo-reply,
                    drop all)
  -> passed :: Counter -> Unstrip(14) -> Queue -> ToDevice(eth0);

c0[1], c1[1] -> Discard;
