FromDump($IN, STOP true, BURST 1) -> c :: Classifier(12/0806 20/0001, -) -> a :: ARPResponder(192.168.0.0/16 10.0.0.0/8 1:2:3:4:5:6, 192.168.1.1 7:8:9:a:b:c);
c[1] -> Discard;
a[0] -> ToDump($DIR/answers.pcap);
a[1] -> ToDump($DIR/rest.pcap);
