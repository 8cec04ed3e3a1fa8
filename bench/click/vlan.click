// Tags by annotation: put in, taken away and put in again, with another type and where the native one has none.
FromDump($IN, STOP true, BURST 1)
	-> r :: RoundRobinSwitch
	-> SetVLANAnno(VLAN_ID 7, VLAN_PCP 5)
	-> VLANEncap(ANNO)
	-> t :: Tee
	-> ToDump($DIR/tagged.pcap);
t[1] -> VLANDecap -> d :: Tee -> ToDump($DIR/plain.pcap);
d[1] -> VLANEncap(VLAN_TCI ANNO, ETHERTYPE 0x88a8) -> ToDump($DIR/again.pcap);
r[1] -> SetVLANAnno(9) -> e :: VLANEncap(ANNO, NATIVE_VLAN 9) -> ToDump($DIR/native.pcap);
r[2] -> SetVLANAnno(0) -> VLANEncap(VLAN_ID 3) -> VLANDecap(false) -> VLANEncap(ANNO, NATIVE_VLAN -1) -> ToDump($DIR/none.pcap);
