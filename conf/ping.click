// A host that answers pings: ARP requests for its address and ICMP echo requests to it. Everything else
// is dropped and counted.

define($IP 192.0.2.7, $MAC 02:00:00:00:00:07);

out :: Queue -> ToDevice(eth0);
FromDevice(eth0) -> c :: Classifier(12/0806 20/0001, 12/0800, -);
c[0] -> ARPResponder($IP $MAC) -> out;
c[1] -> CheckIPHeader(14) -> echo :: IPClassifier(dst host $IP and icmp type echo, -);
echo[0] -> ICMPPingResponder -> EtherMirror -> out;
echo[1], c[2] -> other :: Counter -> Discard;
