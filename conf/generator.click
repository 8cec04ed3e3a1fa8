// A traffic generator: a million UDP packets a second of 128 flows, from one host to another. It needs no
// input; `--packets` or Ctrl-C ends it. Replace the destination by a machine of your own.

FastUDPFlows(RATE 1000000, LIMIT -1, LENGTH 60,
             SRCETH 02:00:00:00:00:01, SRCIP 192.0.2.1,
             DSTETH 02:00:00:00:00:02, DSTIP 198.51.100.1,
             FLOWS 128, FLOWSIZE 10000)
  -> sent :: Counter -> Queue -> ToDevice(eth0);
