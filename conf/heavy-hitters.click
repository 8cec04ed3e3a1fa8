// Heavy hitters: a count-min sketch estimates the packets of each flow in bounded memory, however many flows
// there are. The handler `flows.top` lists the largest flows and `flows.estimate FLOW` one of them.

FromDevice(eth0) -> c :: Classifier(12/0800, -) -> Strip(14) -> CheckIPHeader
  -> flows :: CountMinSketch(EPSILON 0.0001, DELTA 0.01, TOP 10)
  -> Unstrip(14) -> Queue -> ToDevice(eth1);
c[1] -> Discard;
