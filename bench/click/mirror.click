// The forwarder of PacketMill, section 4: both addresses swapped.
FromDump($IN, STOP true) -> EtherMirror -> ToDump($DIR/out.pcap);
