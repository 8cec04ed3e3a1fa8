// StrideSwitch: whose turn it is by tickets, and a suppressor that lets everything pass.
FromDump($IN, STOP true, BURST 1)
	-> s :: StrideSwitch(3, 7, 1, 3);
s[0] -> [0] u :: Suppressor;
s[1] -> [1] u;
s[2] -> [2] u;
s[3] -> [3] u;
u[0] -> ToDump($DIR/three.pcap);
u[1] -> ToDump($DIR/seven.pcap);
u[2] -> ToDump($DIR/one.pcap);
u[3] -> ToDump($DIR/again.pcap);
