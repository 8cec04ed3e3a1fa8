// A monitor that sends nothing: it counts packets and bytes by protocol, and a script prints a line with
// them each second, to standard output.

FromDevice(eth0) -> all :: Counter -> c :: Classifier(12/0800, 12/86dd, 12/0806, -);
c[0] -> MarkIPHeader(14) -> ip :: IPClassifier(tcp, udp, icmp, -);
ip[0] -> tcp :: Counter -> Discard;
ip[1] -> udp :: Counter -> Discard;
ip[2] -> icmp :: Counter -> Discard;
ip[3] -> Discard;
c[1] -> ip6 :: Counter -> Discard;
c[2] -> arp :: Counter -> Discard;
c[3] -> Discard;

Script(label next,
       wait 1s,
       print "all $(all.count) tcp $(tcp.count) udp $(udp.count) icmp $(icmp.count) ip6 $(ip6.count) arp $(arp.count)",
       goto next);
