// The XDP program of filter.bpf.c (compiled to filter.o) as an element between two devices.
FromDevice(eth0)
  -> filter :: BPF(filter.o)
  -> passed :: Counter
  -> Queue
  -> ToDevice(eth1);
