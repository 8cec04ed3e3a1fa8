// IPv6 headers looked at, routes, hops.
FromDump($IN, STOP true, BURST 1) -> Classifier(12/86dd) -> Strip(14) -> head :: CheckIP6Header -> GetIP6Address(24)
  -> rt :: LookupIP6Route(fe80::/10 0, ff00::/8 1, 2000::/3 3ffe::2 2, ::/0 3);
rt[0] -> hops :: DecIP6HLIM -> ToDump($DIR/link.pcap);
rt[1] -> last :: DecIP6HLIM -> ToDump($DIR/group.pcap);
rt[2] -> DecIP6HLIM -> ToDump($DIR/global.pcap);
rt[3] -> ToDump($DIR/other.pcap);
head[1] -> ToDump($DIR/bad.pcap);
hops[1], last[1] -> ToDump($DIR/hops.pcap);
