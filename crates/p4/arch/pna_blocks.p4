// The Portable NIC Architecture: types, metadata and blocks. Source: PNA specification, version 0.7.
#ifndef MILLSTREAM_PNA_P4
#define MILLSTREAM_PNA_P4
#include <core.p4>

#define ARCHITECTURE(NAME) PNA_##NAME
#define ARCHITECTURE_URI p4.org/pna/v1
#include <psa_common.p4>

HEADER_NUMBER_TYPE(PortId, 32, 32, 32)
HEADER_NUMBER_TYPE(InterfaceId, 32, 32, 32)
HEADER_NUMBER_TYPE(MulticastGroup, 32, 32, 32)
HEADER_NUMBER_TYPE(MirrorSessionId, 16, 16, 16)
HEADER_NUMBER_TYPE(MirrorSlotId, 8, 8, 8)
HEADER_NUMBER_TYPE(ClassOfService, 8, 8, 8)
HEADER_NUMBER_TYPE(PacketLength, 16, 16, 16)
HEADER_NUMBER_TYPE(MulticastInstance, 16, 16, 16)
HEADER_NUMBER_TYPE(Timestamp, 64, 64, 64)
HEADER_NUMBER_TYPE(FlowId, 32, 32, 32)
HEADER_NUMBER_TYPE(ExpireTimeProfileId, 8, 8, 8)
HEADER_NUMBER_TYPE(PassNumber, 3, 8, 8)
HEADER_NUMBER_TYPE(SecurityAssocId, 32, 32, 64)

NUMBER_CONVERSION(pna, PortId)
NUMBER_CONVERSION(pna, InterfaceId)
NUMBER_CONVERSION(pna, MulticastGroup)
NUMBER_CONVERSION(pna, MirrorSessionId)
NUMBER_CONVERSION(pna, ClassOfService)
NUMBER_CONVERSION(pna, PacketLength)
NUMBER_CONVERSION(pna, MulticastInstance)
NUMBER_CONVERSION(pna, Timestamp)
NUMBER_CONVERSION(pna, FlowId)
NUMBER_CONVERSION(pna, ExpireTimeProfileId)
NUMBER_CONVERSION(pna, PassNumber)

const InterfaceId_t PNA_PORT_CPU = (InterfaceId_t) 0xfffffffd;
const MirrorSessionId_t PNA_MIRROR_SESSION_TO_CPU = (MirrorSessionId_t) 0;

enum PNA_Direction_t { NET_TO_HOST, HOST_TO_NET }
enum PNA_PacketPath_t {
    FROM_NET_PORT, FROM_NET_LOOPEDBACK, FROM_NET_RECIRCULATED, FROM_HOST, FROM_HOST_LOOPEDBACK,
    FROM_HOST_RECIRCULATED
}

struct pna_pre_input_metadata_t {
    PortId_t input_port;
    ParserError_t parser_error;
    PNA_Direction_t direction;
    PassNumber_t pass;
    bool loopedback;
}
struct pna_pre_output_metadata_t { bool decrypt; SecurityAssocId_t said; bit<16> decrypt_start_offset; }
struct pna_main_parser_input_metadata_t {
    PNA_Direction_t direction;
    PassNumber_t pass;
    bool loopedback;
    PortId_t input_port;
}
struct pna_main_input_metadata_t {
    PNA_Direction_t direction;
    PassNumber_t pass;
    bool loopedback;
    Timestamp_t timestamp;
    ParserError_t parser_error;
    ClassOfService_t class_of_service;
    PortId_t input_port;
}
struct pna_main_output_metadata_t { ClassOfService_t class_of_service; }

// Ways of a packet.
extern void drop_packet();
extern void send_to_port(PortId_t dest_port);
extern void mirror_packet(MirrorSlotId_t mirror_slot_id, MirrorSessionId_t mirror_session_id);
extern void recirculate();

// Entries that the data plane adds and ages.
extern bool add_entry<T>(
    string action_name, in T action_params, in ExpireTimeProfileId_t expire_time_profile_id);
extern FlowId_t allocate_flow_id();
extern void set_entry_expire_time(in ExpireTimeProfileId_t expire_time_profile_id);
extern void restart_expire_timer();

@pure extern T SelectByDirection<T>(in PNA_Direction_t direction, in T n2h_value, in T h2n_value);

control PreControlT<PH, PM>(
    in PH pre_hdr, inout PM pre_user_meta, in pna_pre_input_metadata_t istd,
    inout pna_pre_output_metadata_t ostd);
parser MainParserT<MH, MM>(
    packet_in pkt, out MH main_hdr, inout MM main_user_meta, in pna_main_parser_input_metadata_t istd);
control MainControlT<MH, MM>(
    inout MH main_hdr, inout MM main_user_meta, in pna_main_input_metadata_t istd,
    inout pna_main_output_metadata_t ostd);
control MainDeparserT<MH, MM>(
    packet_out pkt, in MH main_hdr, in MM main_user_meta, in pna_main_output_metadata_t ostd);

package PNA_NIC<PH, PM, MH, MM>(
    MainParserT<MH, MM> main_parser, PreControlT<PH, PM> pre_control, MainControlT<MH, MM> main_control,
    MainDeparserT<MH, MM> main_deparser);

#endif
