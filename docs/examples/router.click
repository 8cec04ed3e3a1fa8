// A router of IPv4 between two interfaces, for the commands in click.md. The second interface is $dev:
//   millstream click docs/examples/router.click dev=eth7
define($dev eth1);

elementclass Port { $color, $ip, $mac, $next |
  input[0] -> DropBroadcasts
    -> redirect :: PaintTee($color)
    -> FixIPSrc($ip)
    -> ttl :: DecIPTTL
    -> fragment :: IPFragmenter(1500)
    -> EtherEncap(0x0800, $mac, $next)
    -> [0] output;
  redirect[1] -> ICMPError($ip, redirect, host) -> [1] output;
  ttl[1] -> ICMPError($ip, timeexceeded) -> [1] output;
  fragment[1] -> ICMPError($ip, unreachable, needfrag) -> [1] output;
}

count :: Counter;
rt :: RadixIPLookup(192.0.2.1/32 0, 198.51.100.1/32 0, 192.0.2.0/24 1, 198.51.100.0/24 2, 0.0.0.0/0 198.51.100.254 2);
to0 :: Queue(1024) -> ToDevice(eth0);
to1 :: Queue(1024) -> ToDevice($dev);

FromDevice(eth0) -> c0 :: Classifier(12/0806 20/0001, 12/0800, -);
FromDevice($dev) -> c1 :: Classifier(12/0806 20/0001, 12/0800, -);
c0[0] -> ARPResponder(192.0.2.1 2:0:0:0:0:1) -> to0;
c1[0] -> ARPResponder(198.51.100.1 2:0:0:0:0:2) -> to1;
c0[1] -> Paint(1) -> count;
c1[1] -> Paint(2) -> count;
c0[2], c1[2] -> Discard;

count -> Strip(14) -> CheckIPHeader -> rt;
rt[0] -> Discard;
rt[1] -> p0 :: Port(1, 192.0.2.1, 2:0:0:0:0:1, 2:0:0:0:0:a) -> to0;
rt[2] -> p1 :: Port(2, 198.51.100.1, 2:0:0:0:0:2, 2:0:0:0:0:b) -> to1;
p0[1], p1[1] -> rt;
