// An IP router with two interfaces after section 4 of Click's paper (SOSP 1999): everything that RFC 1812 wants of the path, errors
// go back to the table. One trace is both interfaces; addresses of the next hops are fixed.
elementclass Interface { $color, $ip, $mac, $next |
  input[0] -> DropBroadcasts
    -> redirect :: PaintTee($color)
    -> options :: IPGWOptions($ip)
    -> FixIPSrc($ip)
    -> ttl :: DecIPTTL
    -> fragment :: IPFragmenter(576)
    -> EtherEncap(0x0800, $mac, $next)
    -> [0] output;
  redirect[1] -> ICMPError($ip, redirect, host) -> [1] output;
  options[1] -> ICMPError($ip, parameterproblem) -> [1] output;
  ttl[1] -> ICMPError($ip, timeexceeded) -> [1] output;
  fragment[1] -> ICMPError($ip, unreachable, needfrag) -> [1] output;
}

FromDump($IN, STOP true, BURST 1) -> side :: Classifier(11/00%01, -);
c0, c1 :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
side[0] -> c0;
side[1] -> c1;

out0 :: Counter -> ToDump($DIR/eth0.pcap);
out1 :: Counter -> ToDump($DIR/eth1.pcap);
host :: Counter -> ToDump($DIR/host.pcap);

c0[0] -> ARPResponder(192.168.1.1 0:0:c0:ae:67:ef, 10.0.0.0/8 0:0:c0:ae:67:ef) -> out0;
c1[0] -> ARPResponder(10.0.0.1 0:0:c0:4f:71:ef) -> out1;
c0[1], c1[1], c0[3], c1[3] -> host;

rt :: RadixIPLookup(192.168.1.1/32 0, 192.168.1.255/32 0, 192.168.1.0/32 0, 10.0.0.1/32 0, 10.255.255.255/32 0,
                    192.168.0.0/16 1, 10.0.0.0/8 2, 0/0 192.168.1.254 1);
ip :: Strip(14) -> CheckIPHeader(INTERFACES 192.168.1.1/24 10.0.0.1/8, CHECKSUM true) -> rt;
c0[2] -> Paint(1) -> ip;
c1[2] -> Paint(2) -> ip;

rt[0] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> host;
rt[1] -> i0 :: Interface(1, 192.168.1.1, 0:0:c0:ae:67:ef, 2:0:0:0:0:1) -> out0;
rt[2] -> i1 :: Interface(2, 10.0.0.1, 0:0:c0:4f:71:ef, 2:0:0:0:0:2) -> out1;
i0[1], i1[1] -> rt;
