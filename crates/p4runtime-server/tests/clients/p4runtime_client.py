"""Controller of the package p4runtime (1.4): python3 p4runtime_client.py ADDR:PORT P4INFO CONFIG

It drives the generated stubs alone: pipeline config, roles, batches with an error for each update, atomic batches
and reads with wildcards, of the program `entities.p4`.
"""

import queue
import sys

import grpc
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4
from p4.v1 import p4runtime_pb2_grpc

ADDRESS, INFO, CONFIG = sys.argv[1:4]
DEVICE = 1


class Controller:
    """A stream with an election id."""

    def __init__(self, stub, election, role=""):
        self.stub, self.election, self.role = stub, p4.Uint128(high=0, low=election), role
        self.requests = queue.Queue()
        request = p4.StreamMessageRequest()
        request.arbitration.device_id = DEVICE
        request.arbitration.election_id.CopyFrom(self.election)
        if role:
            request.arbitration.role.name = role
        self.requests.put(request)
        self.responses = stub.StreamChannel(iter(self.requests.get, None))

    def code(self):
        return next(self.responses).arbitration.status.code

    def write(self, updates, atomicity=0):
        request = p4.WriteRequest(
            device_id=DEVICE, election_id=self.election, role=self.role, updates=updates, atomicity=atomicity
        )
        return self.stub.Write(request)

    def close(self):
        self.requests.put(None)
        self.responses.cancel()


def config_request(info, action, election):
    request = p4.SetForwardingPipelineConfigRequest(device_id=DEVICE, election_id=election, action=action)
    request.config.p4info.CopyFrom(info)
    request.config.p4_device_config = open(CONFIG, "rb").read()
    request.config.cookie.cookie = 42
    return request


def station(info, address, port):
    """Update that inserts an entry of `stations`."""
    table = next(t for t in info.tables if t.preamble.alias == "stations")
    action = next(a for a in info.actions if a.preamble.alias == "forward")
    update = p4.Update(type=p4.Update.INSERT)
    entry = update.entity.table_entry
    entry.table_id = table.preamble.id
    match = entry.match.add(field_id=1)
    match.exact.value = address.to_bytes(6, "big").lstrip(b"\0") or b"\0"
    entry.action.action.action_id = action.preamble.id
    entry.action.action.params.add(param_id=1, value=bytes([port]))
    return update


def count(stub, info):
    table = next(t for t in info.tables if t.preamble.alias == "stations")
    request = p4.ReadRequest(device_id=DEVICE)
    request.entities.add().table_entry.table_id = table.preamble.id
    return sum(len(answer.entities) for answer in stub.Read(request))


def refused(act, code):
    try:
        act()
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error
    raise AssertionError("nothing was refused")


def main():
    info = text_format.Parse(open(INFO).read(), p4info_pb2.P4Info())
    stub = p4runtime_pb2_grpc.P4RuntimeStub(grpc.insecure_channel(ADDRESS))
    print("version", stub.Capabilities(p4.CapabilitiesRequest()).p4runtime_api_version)
    primary, backup = Controller(stub, 7), Controller(stub, 3)
    assert primary.code() == code_pb2.OK and backup.code() == code_pb2.ALREADY_EXISTS
    actions = p4.SetForwardingPipelineConfigRequest
    stub.SetForwardingPipelineConfig(config_request(info, actions.VERIFY, primary.election))
    stub.SetForwardingPipelineConfig(config_request(info, actions.VERIFY_AND_SAVE, primary.election))
    commit = actions(device_id=DEVICE, election_id=primary.election, action=actions.COMMIT)
    stub.SetForwardingPipelineConfig(commit)
    read = stub.GetForwardingPipelineConfig(p4.GetForwardingPipelineConfigRequest(device_id=DEVICE))
    assert read.config.p4info == info and read.config.cookie.cookie == 42
    primary.write([station(info, n, 2) for n in range(1, 1001)])
    assert count(stub, info) == 1000
    # The middle update of three is wrong: its error alone is in the details, and the others are written.
    batch = [station(info, 2000, 2), station(info, 5, 2), station(info, 2001, 2)]
    error = refused(lambda: primary.write(batch), grpc.StatusCode.UNKNOWN)
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    codes = []
    for detail in status_pb2.Status.FromString(details).details:
        message = p4.Error()
        detail.Unpack(message)
        codes.append(message.canonical_code)
    assert codes == [0, code_pb2.ALREADY_EXISTS, 0] and count(stub, info) == 1002, codes
    # The same as one atomic batch leaves nothing.
    batch = [station(info, 3000, 2), station(info, 5, 2), station(info, 3001, 2)]
    refused(lambda: primary.write(batch, p4.WriteRequest.DATAPLANE_ATOMIC), grpc.StatusCode.UNKNOWN)
    assert count(stub, info) == 1002
    refused(lambda: backup.write([station(info, 4000, 2)]), grpc.StatusCode.PERMISSION_DENIED)
    twin = Controller(stub, 7)
    error = refused(twin.code, grpc.StatusCode.INVALID_ARGUMENT)
    print("refused:", error.details())
    # A role has a primary of its own; entries outlive a program that is reconciled.
    other = Controller(stub, 1, "operators")
    assert other.code() == code_pb2.OK
    other.write([station(info, 5000, 2)])
    stub.SetForwardingPipelineConfig(config_request(info, actions.RECONCILE_AND_COMMIT, primary.election))
    assert count(stub, info) == 1003
    primary.close()
    assert backup.code() == code_pb2.NOT_FOUND
    for controller in [backup, other, twin]:
        controller.close()
    print("p4runtime: done")


main()
