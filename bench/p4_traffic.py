"""Random table entries and packets for a P4 program: entries from its P4Info, packets from the parser in its compiled JSON.

Keys of entries, arguments of actions and fields of packets come from the same few values for each width, so that packets
hit entries, and tables the metadata that other tables set.
"""

import random
import struct

# Ports that packets come in at and leave by.
PORTS = list(range(8))
INPUTS = PORTS[:4]
CPU_PORT = 255
# Ports of clones: a clone and its packet wait in queues of their own.
MIRROR_PORTS = [8, 9]
PORT_BITS = 9
# Entries of a table, at most.
ENTRIES = 24
# Share of packets of controllers, where the parser knows them.
FROM_CONTROLLER = 0.05
# Headers of a packet, at most.
MOST_HEADERS = 24
# What a payload begins with; a number follows, by which copies of a packet are found.
MAGIC = b"\xb3\x2e"


def is_case(transition):
    """Whether a transition has a value; older compilers give no type."""
    return transition.get("type", "hexstr") == "hexstr" and transition["value"] != "default"


class Values:
    """A few values for each width, the first ones more likely."""

    def __init__(self, rng, program):
        self.rng, self.pools, self.known = rng, {}, {}
        for state in program["parsers"][0]["parse_states"]:
            for transition in state["transitions"]:
                if is_case(transition) and len(state["transition_key"]) == 1:
                    digits = transition["value"]
                    self.known.setdefault(4 * (len(digits) - 2), []).append(int(digits, 16))
        for pipeline in program["pipelines"]:
            for table in pipeline["tables"]:
                for entry in table.get("entries", []):
                    for key in entry["match_key"]:
                        digits = key.get("key")
                        if isinstance(digits, str) and digits.startswith("0x"):
                            self.known.setdefault(4 * (len(digits) - 2), []).append(int(digits, 16))

    def pool(self, bits):
        if bits not in self.pools:
            if bits == PORT_BITS:
                pool = PORTS + [CPU_PORT]
            elif bits <= 3:
                pool = list(range(1 << bits))
            else:
                pool = [self.rng.getrandbits(bits) for _ in range(6)]
                pool += [value for value in self.known.get(bits, []) if value not in pool]
                pool += [1, 0]
            self.rng.shuffle(pool)
            self.pools[bits] = pool
        return self.pools[bits]

    def pick(self, bits):
        pool = self.pool(bits)
        return pool[min(int(self.rng.expovariate(0.35)), len(pool) - 1)]

    def field(self, bits):
        """A value of a packet's field."""
        return self.pick(bits) if self.rng.random() < 0.85 else self.rng.getrandbits(bits)


def short(path):
    return path.rsplit(".", 1)[-1]


class Entries:
    """Commands that fill the tables, in words that both switches have."""

    def __init__(self, rng, values, info, program):
        self.rng, self.values, self.info, self.program = rng, values, info, program
        self.actions = {action["preamble"]["id"]: action for action in info.get("actions", [])}

    def commands(self):
        lines = []
        for profile in self.info.get("actionProfiles", []):
            lines += self.profile(profile)
        for table in self.info.get("tables", []):
            if not table.get("isConstTable"):
                lines += self.table(table)
        return lines + self.groups() + self.mirrors()

    def action(self, table, for_entries):
        """An action of a table with arguments, as words."""
        unwanted = "DEFAULT_ONLY" if for_entries else "TABLE_ONLY"
        own = [self.actions[ref["id"]] for ref in table["actionRefs"] if ref.get("scope") != unwanted]
        weights = [0.25 if "drop" in short(action["preamble"]["name"]) else 1 for action in own]
        if not own:
            return None
        action = self.rng.choices(own, weights)[0]
        return action["preamble"]["name"], [hex(self.values.pick(param["bitwidth"])) for param in action.get("params", [])]

    def condition(self, field):
        kind, bits = field["matchType"], field["bitwidth"]
        value, ones = self.values.pick(bits), (1 << bits) - 1
        if kind == "EXACT":
            return hex(value)
        if kind == "LPM":
            length = self.rng.choice([bits, bits, bits - bits // 4, bits // 2, self.rng.randint(1, bits), 0])
            return f"{value >> (bits - length) << (bits - length):#x}/{length}"
        if kind == "RANGE":
            low, high = sorted((value, self.rng.choice([ones, value, self.values.pick(bits)])))
            return f"{low:#x}->{high:#x}"
        masks = [0, 0, 0, ones, ones] + ([] if kind == "OPTIONAL" else [ones ^ (ones >> self.rng.randint(1, bits)), self.rng.getrandbits(bits)])
        mask = self.rng.choice(masks)
        return f"{value & mask:#x}&&&{mask:#x}"

    def table(self, table):
        name, lines, seen = table["preamble"]["name"], [], set()
        fields = table.get("matchFields", [])
        ordered = any(field["matchType"] in ("TERNARY", "RANGE", "OPTIONAL") for field in fields)
        profile = table.get("implementationId")
        if not profile and not table.get("constDefaultActionId") and self.rng.random() < 0.3:
            chosen = self.action(table, False)
            if chosen:
                lines.append(f"table_set_default {name} {chosen[0]} {' '.join(chosen[1])}".rstrip())
        count = min(ENTRIES, int(table.get("size", ENTRIES))) if fields else 0
        priorities = self.rng.sample(range(1, 1000), count)
        for priority in priorities:
            keys = " ".join(self.condition(field) for field in fields)
            if keys in seen:
                continue
            seen.add(keys)
            behind = f" {priority}" if ordered else ""
            if profile:
                groups, members = self.profiles[profile]
                if groups and (not members or self.rng.random() < 0.7):
                    lines.append(f"table_indirect_add_with_group {name} {keys} => {self.rng.randrange(groups)}{behind}")
                elif members:
                    lines.append(f"table_indirect_add {name} {keys} => {self.rng.randrange(members)}{behind}")
                continue
            chosen = self.action(table, True)
            if chosen:
                lines.append(f"table_add {name} {chosen[0]} {keys} => {' '.join(chosen[1])}{behind}".rstrip())
        return lines

    def profile(self, profile):
        name, lines = profile["preamble"]["name"], []
        tables = [table for table in self.info["tables"] if table.get("implementationId") == profile["preamble"]["id"]]
        count = min(8, int(profile.get("size", 8)))
        for _ in range(count):
            action, arguments = self.action(tables[0], True)
            lines.append(f"act_prof_create_member {name} {action} {' '.join(arguments)}".rstrip())
        groups = 3 if profile.get("withSelector") else 0
        for group in range(groups):
            lines.append(f"act_prof_create_group {name}")
            for member in self.rng.sample(range(count), self.rng.randint(1, min(4, count))):
                lines.append(f"act_prof_add_member_to_group {name} {member} {group}")
        self.profiles = {**getattr(self, "profiles", {}), profile["preamble"]["id"]: (groups, count)}
        return lines

    def groups(self):
        """Multicast groups for the values that arguments of 16 bits have."""
        lines = []
        for node, group in enumerate(sorted({value for value in self.values.pool(16)[:6] if value > 0})):
            ports = self.rng.sample(PORTS, self.rng.randint(1, 3))
            lines.append(f"mc_mgrp_create {group}")
            lines.append(f"mc_node_create {node + 1} {' '.join(map(str, ports))}")
            lines.append(f"mc_node_associate {group} {node}")
        return lines

    def mirrors(self):
        """Sessions of the numbers that the program gives to clones."""
        sessions = set()
        for action in self.program["actions"]:
            for primitive in action["primitives"]:
                if primitive["op"].startswith("clone"):
                    first = primitive["parameters"][0]
                    if first["type"] == "hexstr":
                        sessions.add(int(first["value"], 16))
                    else:
                        sessions.update(value for bits in (10, 16, 32) for value in self.values.pool(bits)[:4])
        return [f"mirroring_add {session} {self.rng.choice(MIRROR_PORTS)}" for session in sorted(sessions) if 0 < session < 1 << 15]


class Packets:
    """Packets that follow random paths through the parser."""

    def __init__(self, rng, values, program):
        self.rng, self.values = rng, values
        types = {kind["name"]: [(field[0], field[1]) for field in kind["fields"]] for kind in program["header_types"]}
        self.headers = {header["name"]: types[header["header_type"]] for header in program["headers"]}
        self.stacks = {stack["name"]: types[stack["header_type"]] for stack in program["header_stacks"]}
        self.states = {state["name"]: state for state in program["parsers"][0]["parse_states"]}
        self.start = program["parsers"][0]["init_state"]

    def packet(self, number):
        """The port of a packet, and its bytes."""
        self.port = self.rng.choice(INPUTS)
        self.bits, self.length, self.places, self.aliases, self.later, self.ipv4 = 0, 0, {}, {}, [], []
        state, headers = self.start, 0
        while state and headers < MOST_HEADERS:
            state = self.states[state]
            for operation in state["parser_ops"]:
                headers += self.operation(operation)
            headers += 1
            state = self.transition(state)
        self.bits <<= -self.length % 8
        self.length += -self.length % 8
        data = bytearray(self.bits.to_bytes(self.length // 8, "big"))
        tail = MAGIC + struct.pack(">I", number) + self.rng.randbytes(self.rng.choice([0, 8, 20, 40, 100]))
        data += tail if len(data) + len(tail) >= 14 else tail + bytes(14)
        for place, bits, value in self.later:
            whole = int.from_bytes(data, "big")
            shift = 8 * len(data) - place - bits
            if shift >= 0:
                whole = whole & ~(((1 << bits) - 1) << shift) | value << shift
                data = bytearray(whole.to_bytes(len(data), "big"))
        self.finish_ipv4(data)
        if self.rng.random() < 0.03:
            data = data[: self.rng.randint(1, len(data))]
        return self.port, bytes(data)

    def append(self, fields, name):
        for field, bits in fields:
            if not isinstance(bits, int):
                continue
            self.places[name, field] = (self.length, bits)
            value = self.values.field(bits)
            if field == "version" and bits == 4:
                value = 6 if "6" in name else 4
            if field == "ihl" and self.rng.random() < 0.95:
                value = 5
            self.bits, self.length = self.bits << bits | value, self.length + bits
        if any(field == "ihl" for field, _ in fields):
            self.ipv4.append(self.places[name, fields[0][0]][0])

    def operation(self, operation):
        """Returns how many headers it appends."""
        parameters = operation["parameters"]
        if operation["op"] in ("extract", "extract_VL"):
            kind, name = parameters[0]["type"], parameters[0]["value"]
            if kind == "stack":
                self.append(self.stacks[name], name)
            elif kind == "regular":
                self.append(self.headers[name], name)
            return 1
        if operation["op"] == "set" and parameters[0]["type"] == "field":
            target, source = tuple(parameters[0]["value"]), parameters[1]
            if source["type"] == "lookahead":
                self.aliases[target] = (self.length + source["value"][0], source["value"][1])
            elif source["type"] == "field" and tuple(source["value"]) in self.places:
                self.aliases[target] = self.places[tuple(source["value"])]
            elif source["type"] == "expression":
                self.cut(target, source)
        return 0

    def cut(self, target, source):
        """A field that is cut from bits ahead by shifts and masks."""
        shift, bits = 0, dict(self.headers.get(target[0], [])).get(target[1])
        while source["type"] == "expression":
            inner = source["value"]
            if inner.get("op") == ">>" and inner["right"]["type"] == "hexstr":
                shift += int(inner["right"]["value"], 16)
            source = inner if inner.get("type") == "expression" else inner.get("left") or {"type": None}
        if source["type"] == "field" and tuple(source["value"]) in self.aliases and isinstance(bits, int):
            place, width = self.aliases[tuple(source["value"])]
            if shift + bits <= width:
                self.aliases[target] = (place + width - shift - bits, bits)

    def transition(self, state):
        cases = [case for case in state["transitions"] if is_case(case)]
        default = [case for case in state["transitions"] if case.get("type") == "default" or case["value"] == "default"]
        by_port = [key["value"] for key in state["transition_key"]] == [["standard_metadata", "ingress_port"]]
        if cases and (not default or self.rng.random() < (FROM_CONTROLLER if by_port else 0.85)):
            case = self.rng.choice(cases)
            self.satisfy(state["transition_key"], int(case["value"], 16), int(case["mask"], 16) if case["mask"] else -1)
            return case["next_state"]
        return default[0]["next_state"] if default else None

    def satisfy(self, keys, value, mask):
        """Sets the fields of a transition; they are concatenated, each in whole bytes."""
        for key in reversed(keys):
            place, bits = self.place(key)
            whole = -(-bits // 8) * 8
            own, own_mask = value & (1 << bits) - 1, mask & (1 << bits) - 1
            value, mask = value >> whole, mask >> whole
            if place == "port":
                self.port = own if own == CPU_PORT else self.port
            elif place is not None and place + bits <= self.length:
                shift = self.length - place - bits
                self.bits = self.bits & ~(own_mask << shift) | (own & own_mask) << shift
            elif place is not None and own_mask == (1 << bits) - 1:
                self.later.append((place, bits, own))

    def place(self, key):
        if key["type"] == "lookahead":
            return self.length + key["value"][0], key["value"][1]
        if key["type"] in ("field", "stack_field"):
            name = tuple(key["value"])
            if name == ("standard_metadata", "ingress_port"):
                return "port", PORT_BITS
            if name in self.places:
                return self.places[name]
            if name in self.aliases:
                return self.aliases[name]
            fields = dict(self.headers.get(name[0], []))
            return None, fields.get(name[1], 8)
        return None, 8

    def finish_ipv4(self, data):
        """Lengths and checksums of IPv4 headers, most of them right."""
        for place in self.ipv4:
            at = place // 8
            if place % 8 or at + 20 > len(data) or self.rng.random() < 0.1:
                continue
            size = (data[at] & 15) * 4
            struct.pack_into(">H", data, at + 2, len(data) - at)
            struct.pack_into(">H", data, at + 10, 0)
            words = struct.unpack_from(f">{max(size, 20) // 2}H", data, at) if at + size <= len(data) else (0,)
            total = sum(words)
            while total >> 16:
                total = (total & 0xFFFF) + (total >> 16)
            struct.pack_into(">H", data, at + 10, total ^ 0xFFFF)


def make(seed, info, program, count):
    """Commands, and packets with their ports."""
    rng = random.Random(seed)
    values = Values(rng, program)
    commands = Entries(rng, values, info, program).commands()
    packets = Packets(rng, values, program)
    return commands, [packets.packet(number) for number in range(count)]
