// Copies in the order of outputs, innermost first.
FromDump($IN, STOP true, BURST 1) -> t :: Tee(3);
o :: ToDump($DIR/out.pcap);
t[0] -> u :: Tee(2);
u[0] -> Strip(2) -> o;
u[1] -> Strip(4) -> o;
t[1] -> EtherMirror -> o;
t[2] -> o;
