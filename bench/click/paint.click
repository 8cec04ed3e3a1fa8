FromDump($IN, STOP true, BURST 1) -> c :: Classifier(12/0800, -);
c[0] -> Paint(1) -> t :: Null;
c[1] -> Paint(2) -> t;
t -> p :: PaintTee(2);
p[0] -> k :: CheckPaint(1);
k[0] -> ToDump($DIR/ip.pcap);
k[1] -> ToDump($DIR/other.pcap);
p[1] -> EtherMirror -> ToDump($DIR/copies.pcap);
