//! `WebGen`: clients of a web server, each with an address, a connection and a request of its own. Source: RFC 793.
//!
//! A source of the element's own gives it a packet at each tick. By turns a tick begins a connection, and looks
//! at [`LOOKS`] of those that there are: each is looked at once a second. So a segment without an answer is sent
//! again after one to two seconds, and the connection is given up after [`MOST_RESENDS`] times. A tick that has
//! nothing to send is dropped.
//!
//! Clients are as simple as Click's: the request is one segment with FIN, and every segment of the server is
//! acknowledged up to its end, whatever came before it.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, fold, header_length, set_checksum};
use super::transport::{TCP, pseudo_sum, sum_bytes};
use millstream_click::arguments::{SECOND, ip, net, unsigned};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, GraphSource, NO_INPUT, SourceSchedule};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass {
    processing: "h/h",
    ..ElementClass::filter(
        "WebGen",
        "Is many clients that ask a web server for pages.",
        &[at("PREFIX"), at("DST"), at("RATE")],
        clients,
    )
}];

/// Ticks that look at a connection for each that begins one.
const LOOKS: u64 = 16;
/// Connections that begin in a second, at most.
const MOST_RATE: u64 = 50_000;
/// Times that a segment is sent again.
const MOST_RESENDS: i64 = 6;
/// A request, and the places of its digits: folder twice, a number to 2, a number to 8.
const REQUEST: &[u8; 30] = b"GET /spec/0/0-0-0 HTTP/1.0\r\n\r\n";
const DIGITS: [i32; 4] = [10, 12, 14, 16];
const REQUEST_BYTES: i64 = REQUEST.len() as i64;
/// The server's port, and the first one and the number of those of clients.
const SERVER: i64 = 80;
const FIRST_PORT: i64 = 1024;
const PORTS: i64 = 60_000;
/// Both headers.
const HEADERS: i64 = 40;
const HOPS: u8 = 250;
const WINDOW: i64 = 60 << 10;
const WORD: i64 = 0xffff_ffff;

const FIN: i64 = 1;
const SYN: i64 = 2;
const RST: i64 = 4;
const PUSH: i64 = 8;
const ACK: i64 = 16;

/// A connection: address and port of the client (0 if it is free), flags with the number of times that it was sent
/// again in the second byte, the first number, what the server has acknowledged, the number that is expected of the
/// server, when something was sent last, and the digits of the request.
const CONNECTION: [Size; 7] = [Size::Dw; 7];
const CLIENT: i32 = 0;
const STATE: i32 = 8;
const INITIAL: i32 = 16;
const ACKNOWLEDGED: i32 = 24;
const EXPECTED: i32 = 32;
const SENT: i32 = 40;
const PAGE: i32 = 48;

const CONNECTED: i64 = 1;
const GOT_FIN: i64 = 2;
const SENT_FIN: i64 = 4;
const TO_SEND: i64 = 8;
const RESENDS: i64 = 8;

struct WebClients {
    /// The prefix of clients' addresses, and the bits that differ among them.
    prefix: i64,
    free: i64,
    server: i64,
    slots: i64,
    connections: ElementHashTable,
    /// Places of connections by client.
    places: ElementHashTable,
    ticks: u32,
    segments: u32,
    initiated: u32,
    completed: u32,
    reset: u32,
    timed_out: u32,
}

/// A segment to be sent.
struct Segment {
    /// Source and destination.
    addresses: [Value; 2],
    ports: [Value; 2],
    number: Value,
    acknowledged: Value,
    flags: Value,
    /// Digits of the request, and 1 if it is to be sent, else 0.
    request: Option<(Value, Value)>,
}

fn clients(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    let (address, mask) = net(&setup.arguments.need("PREFIX")?, names)?;
    let server = i64::from(ip(&setup.arguments.need("DST")?, names)?);
    let text = setup.arguments.need("RATE")?;
    let rate = unsigned(&text, MOST_RATE)?;
    if rate == 0 {
        return Err(Error::new(text.span, "at RATE 0 no connection would begin"));
    }
    let limit = match setup.is_timed() {
        true => {
            setup.declare_schedule(SourceSchedule::Rate(rate * (LOOKS + 1)));
            None
        }
        false => {
            let message = "`WebGen` has no time to go by: it begins no connection";
            setup.warn(Error::new(setup.element.span, message));
            Some(0)
        }
    };
    // A connection that has no answer is there for 14 seconds at most.
    let slots = rate * LOOKS;
    let connections = setup.array("connections", &[Size::W], &CONNECTION, slots as u32);
    let places = setup.evicting_table("places", &[Size::Dw], &[Size::Dw], 0, slots as u32 * 2);
    setup.require_single_worker("its connections begin one after the other");
    setup.source_at(NO_INPUT, GraphSource::Constant(vec![0; (HEADERS + REQUEST_BYTES) as usize], limit));
    let [ticks, segments] = [setup.number(), setup.number()];
    Ok(Box::new(WebClients {
        prefix: i64::from(address & mask),
        free: i64::from(!mask),
        server,
        slots: slots as i64,
        connections,
        places,
        ticks,
        segments,
        initiated: setup.counter("initiated"),
        completed: setup.counter("completed"),
        reset: setup.counter("reset"),
        timed_out: setup.counter("timeout"),
    }))
}

impl ElementCodegen for WebClients {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, port: u32, packet: PacketValues) {
        match port {
            NO_INPUT => self.tick(code, packet),
            _ => self.receive(code, packet),
        }
    }
}

/// 1 if a number of a connection is behind another one, else 0.
fn is_behind(code: &mut ElementBuilder<'_, '_>, number: Value, other: Value) -> Value {
    let distance = code.sub(number, other);
    let less = code.with(AluOp::Sub, distance, 1);
    let less = code.with(AluOp::And, less, WORD);
    let (half, one, zero) = (code.int(0x7fff_ffff), code.int(1), code.int(0));
    let is_behind = code.compare(Cond::Lt, less, half);
    code.select(is_behind, one, zero)
}

/// A number of a connection so much further on.
fn further(code: &mut ElementBuilder<'_, '_>, number: Value, by: Value) -> Value {
    let sum = code.add(number, by);
    code.with(AluOp::And, sum, WORD)
}

/// Sets flags of a connection.
fn set_flags(code: &mut ElementBuilder<'_, '_>, connection: Value, flags: i64) {
    let state = code.wide(connection, STATE);
    let state = code.with(AluOp::Or, state, flags);
    code.set_wide(connection, STATE, state);
}

/// 1 if a flag is set, else 0.
fn flag(code: &mut ElementBuilder<'_, '_>, state: Value, flag: i64) -> Value {
    let shifted = code.with(AluOp::Rsh, state, i64::from(flag.trailing_zeros()));
    code.with(AluOp::And, shifted, 1)
}

impl WebClients {
    fn tick(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        let number = code.get(self.ticks);
        code.count_by_one(self.ticks);
        let turns = LOOKS as i64 + 1;
        let (round, turn) = (code.with(AluOp::Div, number, turns), code.with(AluOp::Mod, number, turns));
        code.check_int(Cond::Eq, turn, 0, |code| {
            let looked = code.with(AluOp::Mul, round, LOOKS as i64);
            let looked = code.add(looked, turn);
            self.look(code, packet, looked);
        });
        self.begin(code, packet, round);
    }

    /// A connection, by a number of any size; the packet is dropped if there is none.
    fn connection(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, number: Value) -> Value {
        let place = code.with(AluOp::Mod, number, self.slots);
        let connection = code.find(&self.connections, &[place]);
        code.check_int(Cond::Ne, connection, 0, |code| code.drop(packet, "no_connection"));
        connection
    }

    /// Begins a connection.
    fn begin(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, number: Value) {
        let place = code.with(AluOp::Mod, number, self.slots);
        let connection = self.connection(code, packet, number);
        let taken = code.wide(connection, CLIENT);
        code.check_int(Cond::Eq, taken, 0, |code| code.drop(packet, "too_many_connections"));
        let [host, port, initial, folder, middle, page] = [(); 6].map(|()| code.random());
        let host = code.with(AluOp::And, host, self.free);
        let address = code.with(AluOp::Or, host, self.prefix);
        let port = code.with(AluOp::Mod, port, PORTS);
        let port = code.with(AluOp::Add, port, FIRST_PORT);
        let client = code.with(AluOp::Lsh, address, 16);
        let client = code.alu(AluOp::Or, client, port);
        let known = code.find(&self.places, &[client]);
        code.check_int(Cond::Eq, known, 0, |code| code.drop(packet, "port_in_use"));
        let error = code.update_entry(&self.places, &[client], &[place]);
        code.check_int(Cond::Eq, error, 0, |code| code.drop(packet, "too_many_connections"));
        let initial = code.with(AluOp::And, initial, 0x0fff_ffff);
        let (folder, middle, page) = (
            code.with(AluOp::Mod, folder, 10),
            code.with(AluOp::Mod, middle, 3),
            code.with(AluOp::Mod, page, 9),
        );
        let (middle, page) = (code.with(AluOp::Lsh, middle, 8), code.with(AluOp::Lsh, page, 16));
        let digits = code.alu(AluOp::Or, folder, middle);
        let digits = code.alu(AluOp::Or, digits, page);
        let none = code.int(0);
        for (field, value) in [
            (CLIENT, client),
            (STATE, none),
            (INITIAL, initial),
            (ACKNOWLEDGED, initial),
            (EXPECTED, none),
            (PAGE, digits),
        ] {
            code.set_wide(connection, field, value);
        }
        code.count_by_one(self.initiated);
        self.send(code, packet, connection);
    }

    /// Looks at a connection, which may have waited for too long.
    fn look(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, number: Value) {
        let nothing = |code: &mut ElementBuilder<'_, '_>| code.drop(packet, "nothing_due");
        let connection = self.connection(code, packet, number);
        let client = code.wide(connection, CLIENT);
        code.check_int(Cond::Ne, client, 0, nothing);
        let (now, sent) = (code.fine_time(), code.wide(connection, SENT));
        let since = code.sub(now, sent);
        code.check_int(Cond::Ge, since, SECOND as i64, nothing);
        let state = code.wide(connection, STATE);
        let resends = code.with(AluOp::Rsh, state, RESENDS);
        code.check_int(Cond::Lt, resends, MOST_RESENDS, |code| {
            code.count_by_one(self.timed_out);
            self.end(code, connection);
            code.drop(packet, "timeout");
        });
        let state = code.with(AluOp::Add, state, 1 << RESENDS);
        code.set_wide(connection, STATE, state);
        self.send(code, packet, connection);
    }

    /// Forgets a connection.
    fn end(&self, code: &mut ElementBuilder<'_, '_>, connection: Value) {
        let (client, none) = (code.wide(connection, CLIENT), code.int(0));
        code.delete_entry(&self.places, &[client]);
        code.set_wide(connection, CLIENT, none);
    }

    /// Ends with what a connection has to send, if anything. The packet is as long as the longest segment.
    fn send(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, connection: Value) {
        let (now, state) = (code.fine_time(), code.wide(connection, STATE));
        code.set_wide(connection, SENT, now);
        let (initial, acknowledged) = (code.wide(connection, INITIAL), code.wide(connection, ACKNOWLEDGED));
        let connected = flag(code, state, CONNECTED);
        let got_fin = flag(code, state, GOT_FIN);
        let had_sent_fin = flag(code, state, SENT_FIN);
        // The request is sent as a whole until all of it is acknowledged.
        let beyond = code.with(AluOp::Add, initial, 1 + REQUEST_BYTES);
        let beyond = code.with(AluOp::And, beyond, WORD);
        let open = is_behind(code, beyond, acknowledged);
        let request = code.alu(AluOp::And, open, connected);
        let wanted = flag(code, state, TO_SEND);
        let opening = code.with(AluOp::Xor, connected, 1);
        let any = code.alu(AluOp::Or, wanted, request);
        let any = code.alu(AluOp::Or, any, opening);
        code.check_int(Cond::Ne, any, 0, |code| code.drop(packet, "nothing_due"));
        let of_request = code.with(AluOp::Mul, request, PUSH | FIN);
        let later = code.alu(AluOp::Or, of_request, got_fin);
        let later = code.with(AluOp::Or, later, ACK);
        let (zero, syn) = (code.int(0), code.int(SYN));
        let is_connected = code.compare(Cond::Ne, connected, zero);
        let flags = code.select(is_connected, later, syn);
        let fin = code.with(AluOp::And, flags, FIN);
        let sent_fin = code.alu(AluOp::Or, fin, had_sent_fin);
        let behind = further(code, beyond, had_sent_fin);
        let one = code.int(1);
        let first = further(code, initial, one);
        let is_request = code.compare(Cond::Ne, request, zero);
        let number = code.select(is_request, first, behind);
        let number = code.select(is_connected, number, initial);
        let expected = code.wide(connection, EXPECTED);
        let (client, digits) = (code.wide(connection, CLIENT), code.wide(connection, PAGE));
        let fin_bit = code.with(AluOp::Mul, sent_fin, SENT_FIN);
        let state = code.with(AluOp::And, state, !TO_SEND);
        let state = code.alu(AluOp::Or, state, fin_bit);
        code.set_wide(connection, STATE, state);
        // Both ends have closed it.
        let is_closed = code.alu(AluOp::And, sent_fin, got_fin);
        code.when(Cond::Ne, is_closed, zero, &[], |code| {
            code.count_by_one(self.completed);
            self.end(code, connection);
            Vec::new()
        });
        let (address, port) = (code.with(AluOp::Rsh, client, 16), code.with(AluOp::And, client, 0xffff));
        let (server, server_port) = (code.int(self.server), code.int(SERVER));
        let segment = Segment {
            addresses: [address, server],
            ports: [port, server_port],
            number,
            acknowledged: expected,
            flags,
            request: Some((digits, request)),
        };
        self.write(code, packet, &segment);
    }

    /// Ends with a segment, in place of the bytes of a packet.
    fn write(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, segment: &Segment) {
        let (data, zero) = (packet.data, code.int(0));
        let mut length = code.int(HEADERS);
        if let Some((digits, request)) = segment.request {
            let more = code.with(AluOp::Mul, request, REQUEST_BYTES);
            length = code.add(length, more);
            code.when(Cond::Ne, request, zero, &[], |code| {
                code.write(data, HEADERS as i32, REQUEST);
                let folder = code.with(AluOp::And, digits, 0xff);
                let middle = code.with(AluOp::Rsh, digits, 8);
                let middle = code.with(AluOp::And, middle, 0xff);
                let page = code.with(AluOp::Rsh, digits, 16);
                for (place, digit) in DIGITS.into_iter().zip([folder, folder, middle, page]) {
                    let digit = code.with(AluOp::Add, digit, i64::from(b'0'));
                    code.set_byte(data, HEADERS as i32 + place, digit);
                }
                Vec::new()
            });
        }
        let end = code.end(data, length);
        let identification = code.get(self.segments);
        code.count_by_one(self.segments);
        code.write(data, 0, &[0x45, 0]);
        code.set_half(data, 2, length);
        code.set_half(data, 4, identification);
        code.write(data, 6, &[0, 0, HOPS, TCP as u8, 0, 0]);
        let [source, destination] = segment.addresses;
        code.set_word(data, 12, source);
        code.set_word(data, 16, destination);
        let header = code.int(HEADER);
        set_checksum(code, data, header);
        let tcp = code.at(data, HEADER);
        code.set_half(tcp, 0, segment.ports[0]);
        code.set_half(tcp, 2, segment.ports[1]);
        code.set_word(tcp, 4, segment.number);
        code.set_word(tcp, 8, segment.acknowledged);
        code.write(tcp, 12, &[5 << 4, 0]);
        code.set_byte(tcp, 13, segment.flags);
        let window = code.int(WINDOW);
        code.set_half(tcp, 14, window);
        code.write(tcp, 16, &[0; 4]);
        let bytes = code.with(AluOp::Sub, length, HEADER);
        let pseudo = pseudo_sum(code, data, bytes, TCP);
        let sum = sum_bytes(code, tcp, bytes, pseudo);
        let sum = fold(code, sum);
        let sum = code.with(AluOp::Xor, sum, 0xffff);
        code.set_raw(2, tcp, 16, sum);
        let yes = code.truth(true);
        let packet = packet.bounded(data, end).with(Annotation::Network, data);
        code.out(0, packet.with(Annotation::HasNetwork, yes).with(Annotation::Destination, destination));
    }

    /// A segment of the server.
    fn receive(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues) {
        let bad = |code: &mut ElementBuilder<'_, '_>| code.drop(packet, "bad_length");
        let header = packet.data;
        code.need(packet, header, HEADERS, "too_short");
        let (total, own) = (code.half(header, 2), header_length(code, header));
        code.check_int(Cond::Ge, own, HEADER, bad);
        let there = code.length(packet);
        code.check(Cond::Le, total, there, bad);
        let tcp = code.plus(header, own);
        code.need(packet, tcp, 20, "too_short");
        let offset = code.byte(tcp, 12);
        let offset = code.with(AluOp::Rsh, offset, 4);
        let offset = code.with(AluOp::Lsh, offset, 2);
        let before = code.add(own, offset);
        code.check(Cond::Le, before, total, bad);
        let bytes = code.sub(total, before);
        let flags = code.byte(tcp, 13);
        let (number, acknowledged) = (code.word(tcp, 4), code.word(tcp, 8));
        let ports = [code.half(tcp, 2), code.half(tcp, 0)];
        let addresses = [code.word(header, 16), code.word(header, 12)];
        let packet = whole(code, packet);
        // Whoever asks for a connection that is not there gets a reset, but for a reset (RFC 793, 3.4).
        let (unknown, known, zero) = (code.block(), code.block(), code.int(0));
        let client = code.with(AluOp::Lsh, addresses[0], 16);
        let client = code.alu(AluOp::Or, client, ports[0]);
        code.check_int(Cond::Eq, ports[1], SERVER, |code| code.jump(unknown, &[]));
        let place = code.find(&self.places, &[client]);
        code.branch(Cond::Eq, place, zero, unknown, known);
        code.switch_to_block(unknown);
        let reset = code.with(AluOp::And, flags, RST);
        code.check_int(Cond::Eq, reset, 0, |code| code.drop(packet, "no_connection"));
        let refusal = Segment {
            addresses,
            ports,
            number: acknowledged,
            acknowledged: number,
            flags: code.int(RST),
            request: None,
        };
        self.write(code, packet, &refusal);
        code.switch_to_block(known);
        let place = code.wide(place, 0);
        let connection = self.connection(code, packet, place);
        self.take(code, connection, [number, acknowledged, bytes, flags]);
        let reset = code.with(AluOp::And, flags, RST);
        code.check_int(Cond::Eq, reset, 0, |code| {
            code.count_by_one(self.reset);
            self.end(code, connection);
            code.drop(packet, "reset");
        });
        self.send(code, packet, connection);
    }

    /// Brings a connection up to date by a segment: its number, the one that it acknowledges, its bytes and flags.
    fn take(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        connection: Value,
        [number, acknowledged, bytes, flags]: [Value; 4],
    ) {
        let zero = code.int(0);
        let (state, initial) = (code.wide(connection, STATE), code.wide(connection, INITIAL));
        let one = code.int(1);
        let (first, next) = (further(code, initial, one), further(code, number, one));
        let end = further(code, number, bytes);
        let (opened, other, on) = (code.block(), code.block(), code.block());
        let kind = code.with(AluOp::And, flags, ACK | RST);
        code.check_int(Cond::Eq, kind, ACK, |code| code.jump(other, &[]));
        let connected = flag(code, state, CONNECTED);
        code.check_int(Cond::Eq, connected, 0, |code| code.jump(other, &[]));
        code.branch(Cond::Eq, acknowledged, first, opened, other);
        code.switch_to_block(opened);
        code.set_wide(connection, ACKNOWLEDGED, first);
        code.set_wide(connection, EXPECTED, next);
        set_flags(code, connection, CONNECTED | TO_SEND);
        code.jump(on, &[]);
        code.switch_to_block(other);
        code.when(Cond::Ne, bytes, zero, &[], |code| {
            set_flags(code, connection, TO_SEND);
            let expected = code.wide(connection, EXPECTED);
            let is_new = is_behind(code, end, expected);
            let is_new = code.compare(Cond::Ne, is_new, zero);
            let expected = code.select(is_new, end, expected);
            code.set_wide(connection, EXPECTED, expected);
            Vec::new()
        });
        code.jump(on, &[]);
        code.switch_to_block(on);
        let acks = flag(code, flags, ACK);
        code.when(Cond::Ne, acks, zero, &[], |code| {
            let known = code.wide(connection, ACKNOWLEDGED);
            let is_new = is_behind(code, acknowledged, known);
            let is_new = code.compare(Cond::Ne, is_new, zero);
            let newest = code.select(is_new, acknowledged, known);
            code.set_wide(connection, ACKNOWLEDGED, newest);
            Vec::new()
        });
        let fin = flag(code, flags, FIN);
        let state = code.wide(connection, STATE);
        let had_fin = flag(code, state, GOT_FIN);
        let no_fin = code.with(AluOp::Xor, had_fin, 1);
        let is_first = code.alu(AluOp::And, fin, no_fin);
        code.when(Cond::Ne, is_first, zero, &[], |code| {
            let expected = code.wide(connection, EXPECTED);
            code.when(Cond::Eq, end, expected, &[], |code| {
                let one = code.int(1);
                let behind = further(code, expected, one);
                code.set_wide(connection, EXPECTED, behind);
                set_flags(code, connection, GOT_FIN | TO_SEND);
                Vec::new()
            });
            Vec::new()
        });
    }
}

/// The packet, at least as long as the longest segment.
fn whole(code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> PacketValues {
    let (length, wanted, on) = (code.length(packet), code.int(HEADERS + REQUEST_BYTES), code.block());
    let params: Vec<Value> = millstream_click::packet::TYPES.iter().map(|ty| code.param(on, *ty)).collect();
    code.check(Cond::Lt, length, wanted, |code| code.jump(on, &packet.values()));
    let missing = code.sub(wanted, length);
    let longer = code.lengthened(packet, missing);
    code.jump(on, &longer.values());
    code.switch_to_block(on);
    PacketValues::of(&params)
}
