elementclass Half { $from, $to | input -> r :: EtherRewrite($from, $to) -> output || input -> EtherMirror -> output; }
FromDump($IN, STOP true, BURST 1) -> c :: Classifier(12/0800, 12/0806, -) => Half(1:1:1:1:1:1, 2:2:2:2:2:2), Half(3:3:3:3:3:3, 4:4:4:4:4:4), ( -> Paint(3) -> )
  -> ToDump($DIR/out.pcap);
