// A shaper with two classes of service. Voice (DSCP 46) goes first, everything else waits in a longer queue,
// and both together leave at one megabit per second. A bulk queue that is full drops new packets.

FromDevice(eth0) -> c :: Classifier(12/0800, -) -> MarkIPHeader(14)
  -> class :: IPClassifier(ip dscp 46, -);

class[0] -> voice :: Queue(50) -> [0] first :: PrioSched;
class[1], c[1] -> bulk :: Queue(500) -> [1] first;
first -> BandwidthShaper(125kBps) -> sent :: Counter -> ToDevice(eth1);
