FromDump($IN) -> replay :: ReplayUnqueue(STOP 3, LIMIT 1000)
    -> c :: Classifier(12/0800, -);
c[0] -> StoreData(0, abc) -> ToDump($DIR/ip.pcap);
c[1] -> ToDump($DIR/other.pcap);
