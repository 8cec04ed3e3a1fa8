// A slow and long line, to test applications with: ten megabits per second and 50 ms in one direction, the
// same in the other. Each direction has a queue of 100 packets that drops the oldest.

FromDevice(eth0) -> there :: FrontDropQueue(100) -> LinkUnqueue(50ms, 10Mbps) -> Queue -> ToDevice(eth1);
FromDevice(eth1) -> back :: FrontDropQueue(100) -> LinkUnqueue(50ms, 10Mbps) -> Queue -> ToDevice(eth0);
