// A learning Ethernet switch with three ports. It remembers behind which port an address is, sends frames
// there, and floods those to unknown addresses. The handler `sw.table` shows what it has learned.

sw :: EtherSwitch;

FromDevice(eth0) -> [0] sw [0] -> Queue -> ToDevice(eth0);
FromDevice(eth1) -> [1] sw [1] -> Queue -> ToDevice(eth1);
FromDevice(eth2) -> [2] sw [2] -> Queue -> ToDevice(eth2);
