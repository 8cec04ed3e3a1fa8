FromDump($IN, STOP true) -> EtherRewrite(1:2:3:4:5:6, 7:8:9:a:b:c) -> Counter -> ToDump($DIR/out.pcap);
