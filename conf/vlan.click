// A trunk and its access ports. Frames from eth0 carry a VLAN tag: those of VLAN 10 leave untagged by eth1,
// those of VLAN 20 by eth2, all others are dropped. Frames from eth1 and eth2 get the tag of their port.

FromDevice(eth0) -> tag :: Classifier(12/8100 14/000a%0fff, 12/8100 14/0014%0fff, -);
tag[0] -> VLANDecap -> Queue -> ToDevice(eth1);
tag[1] -> VLANDecap -> Queue -> ToDevice(eth2);
tag[2] -> Discard;

trunk :: Queue -> ToDevice(eth0);
FromDevice(eth1) -> VLANEncap(VLAN_ID 10) -> trunk;
FromDevice(eth2) -> VLANEncap(VLAN_ID 20) -> trunk;
