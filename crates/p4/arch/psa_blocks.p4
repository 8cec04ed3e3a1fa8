// The Portable Switch Architecture: types, metadata and blocks. Source: PSA specification 1.2.
#ifndef MILLSTREAM_PSA_P4
#define MILLSTREAM_PSA_P4
#include <core.p4>

#define ARCHITECTURE(NAME) PSA_##NAME
#define ARCHITECTURE_URI p4.org/psa/v1
#define HASH_ALGORITHMS IDENTITY, CRC32, CRC32_CUSTOM, CRC16, CRC16_CUSTOM, ONES_COMPLEMENT16, TARGET_DEFAULT
#include <psa_common.p4>

HEADER_NUMBER_TYPE(PortId, 32, 32, 32)
HEADER_NUMBER_TYPE(MulticastGroup, 32, 32, 32)
HEADER_NUMBER_TYPE(CloneSessionId, 16, 16, 16)
HEADER_NUMBER_TYPE(ClassOfService, 8, 8, 8)
HEADER_NUMBER_TYPE(PacketLength, 16, 16, 16)
HEADER_NUMBER_TYPE(EgressInstance, 16, 16, 16)
HEADER_NUMBER_TYPE(Timestamp, 64, 64, 64)

NUMBER_CONVERSION(psa, PortId)
NUMBER_CONVERSION(psa, MulticastGroup)
NUMBER_CONVERSION(psa, CloneSessionId)
NUMBER_CONVERSION(psa, ClassOfService)
NUMBER_CONVERSION(psa, PacketLength)
NUMBER_CONVERSION(psa, EgressInstance)
NUMBER_CONVERSION(psa, Timestamp)

const PortId_t PSA_PORT_RECIRCULATE = (PortId_t) 0xfffffffa;
const PortId_t PSA_PORT_CPU = (PortId_t) 0xfffffffd;
const CloneSessionId_t PSA_CLONE_SESSION_TO_CPU = (CloneSessionId_t) 0;

enum PSA_PacketPath_t {
    NORMAL, NORMAL_UNICAST, NORMAL_MULTICAST, CLONE_I2E, CLONE_E2E, RESUBMIT, RECIRCULATE
}

// Metadata of ingress.
struct psa_ingress_parser_input_metadata_t { PortId_t ingress_port; PSA_PacketPath_t packet_path; }
struct psa_ingress_input_metadata_t {
    PortId_t ingress_port;
    PSA_PacketPath_t packet_path;
    Timestamp_t ingress_timestamp;
    ParserError_t parser_error;
}
struct psa_ingress_output_metadata_t {
    ClassOfService_t class_of_service;
    bool clone;
    CloneSessionId_t clone_session_id;
    bool drop;
    bool resubmit;
    MulticastGroup_t multicast_group;
    PortId_t egress_port;
}

// Metadata of egress.
struct psa_egress_parser_input_metadata_t { PortId_t egress_port; PSA_PacketPath_t packet_path; }
struct psa_egress_input_metadata_t {
    ClassOfService_t class_of_service;
    PortId_t egress_port;
    PSA_PacketPath_t packet_path;
    EgressInstance_t instance;
    Timestamp_t egress_timestamp;
    ParserError_t parser_error;
}
struct psa_egress_deparser_input_metadata_t { PortId_t egress_port; }
struct psa_egress_output_metadata_t { bool clone; CloneSessionId_t clone_session_id; bool drop; }

// Conditions under which a deparser's metadata is used.
@pure extern bool psa_normal(in psa_ingress_output_metadata_t istd);
@pure extern bool psa_resubmit(in psa_ingress_output_metadata_t istd);
@pure extern bool psa_clone_i2e(in psa_ingress_output_metadata_t istd);
@pure extern bool psa_clone_e2e(in psa_egress_output_metadata_t istd);
@pure extern bool psa_recirculate(
    in psa_egress_output_metadata_t istd, in psa_egress_deparser_input_metadata_t edstd);

extern void assert(in bool check);
extern void assume(in bool check);

@noWarn("unused")
action send_to_port(inout psa_ingress_output_metadata_t meta, in PortId_t egress_port) {
    meta.egress_port = egress_port;
    meta.multicast_group = (MulticastGroup_t) 0;
    meta.drop = false;
}
@noWarn("unused")
action multicast(inout psa_ingress_output_metadata_t meta, in MulticastGroup_t multicast_group) {
    meta.multicast_group = multicast_group;
    meta.drop = false;
}
@noWarn("unused")
action ingress_drop(inout psa_ingress_output_metadata_t meta) { meta.drop = true; }
@noWarn("unused")
action egress_drop(inout psa_egress_output_metadata_t meta) { meta.drop = true; }

extern PacketReplicationEngine { PacketReplicationEngine(); }
extern BufferingQueueingEngine { BufferingQueueingEngine(); }

parser IngressParser<H, M, RESUBM, RECIRCM>(
    packet_in buffer, out H parsed_hdr, inout M user_meta, in psa_ingress_parser_input_metadata_t istd,
    in RESUBM resubmit_meta, in RECIRCM recirculate_meta);
control Ingress<H, M>(
    inout H hdr, inout M user_meta, in psa_ingress_input_metadata_t istd,
    inout psa_ingress_output_metadata_t ostd);
control IngressDeparser<H, M, CI2EM, RESUBM, NM>(
    packet_out buffer, out CI2EM clone_i2e_meta, out RESUBM resubmit_meta, out NM normal_meta, inout H hdr,
    in M meta, in psa_ingress_output_metadata_t istd);
parser EgressParser<H, M, NM, CI2EM, CE2EM>(
    packet_in buffer, out H parsed_hdr, inout M user_meta, in psa_egress_parser_input_metadata_t istd,
    in NM normal_meta, in CI2EM clone_i2e_meta, in CE2EM clone_e2e_meta);
control Egress<H, M>(
    inout H hdr, inout M user_meta, in psa_egress_input_metadata_t istd,
    inout psa_egress_output_metadata_t ostd);
control EgressDeparser<H, M, CE2EM, RECIRCM>(
    packet_out buffer, out CE2EM clone_e2e_meta, out RECIRCM recirculate_meta, inout H hdr, in M meta,
    in psa_egress_output_metadata_t istd, in psa_egress_deparser_input_metadata_t edstd);

package IngressPipeline<IH, IM, NM, CI2EM, RESUBM, RECIRCM>(
    IngressParser<IH, IM, RESUBM, RECIRCM> ip, Ingress<IH, IM> ig,
    IngressDeparser<IH, IM, CI2EM, RESUBM, NM> id);
package EgressPipeline<EH, EM, NM, CI2EM, CE2EM, RECIRCM>(
    EgressParser<EH, EM, NM, CI2EM, CE2EM> ep, Egress<EH, EM> eg, EgressDeparser<EH, EM, CE2EM, RECIRCM> ed);
package PSA_Switch<IH, IM, EH, EM, NM, CI2EM, CE2EM, RESUBM, RECIRCM>(
    IngressPipeline<IH, IM, NM, CI2EM, RESUBM, RECIRCM> ingress, PacketReplicationEngine pre,
    EgressPipeline<EH, EM, NM, CI2EM, CE2EM, RECIRCM> egress, BufferingQueueingEngine bqe);

#endif
