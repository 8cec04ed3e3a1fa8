// Writes a capture of 1,000 UDP packets to in.pcap: input for the other examples.
FastUDPSource(RATE 0, LIMIT 1000, LENGTH 64,
    SRCETH 2:0:0:0:0:a, SRCIP 192.0.2.7, SPORT 1000, DSTETH 2:0:0:0:0:1, DSTIP 198.51.100.9, DPORT 53)
  -> ToDump(in.pcap, ENCAP ETHER);
