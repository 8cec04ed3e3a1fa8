//! Arithmetic of every width beside big integers.

use millstream_rng::Rng;
use num_bigint::{BigInt, BigUint, Sign};

use crate::common::{bytes, lowered, switch};

const WIDTHS: [u32; 22] =
    [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64, 65, 72, 100, 127, 128, 129, 200, 256, 512];

/// Expression in P4, and its value.
type Operation = (&'static str, fn(&Operands) -> BigInt);

struct Operands {
    a: BigInt,
    b: BigInt,
    shift: u32,
    width: u32,
}

impl Operands {
    fn modulus(&self) -> BigInt {
        BigInt::from(1) << self.width
    }

    fn signed(&self, value: &BigInt) -> BigInt {
        match *value >= (BigInt::from(1) << (self.width - 1)) {
            true => value - self.modulus(),
            false => value.clone(),
        }
    }

    fn most(&self) -> BigInt {
        self.modulus() - 1
    }

    fn signed_range(&self, value: BigInt) -> BigInt {
        let half = BigInt::from(1) << (self.width - 1);
        value.clamp(-half.clone(), half - 1)
    }
}

fn truth(value: bool) -> BigInt {
    BigInt::from(u8::from(value))
}

const OPERATIONS: [Operation; 30] = [
    ("h.i.a + h.i.b", |o| &o.a + &o.b),
    ("h.i.a - h.i.b", |o| &o.a - &o.b),
    ("h.i.a * h.i.b", |o| &o.a * &o.b),
    ("h.i.a & h.i.b", |o| &o.a & &o.b),
    ("h.i.a | h.i.b", |o| &o.a | &o.b),
    ("h.i.a ^ h.i.b", |o| &o.a ^ &o.b),
    ("~h.i.a", |o| o.most() - &o.a),
    ("-h.i.a", |o| -&o.a),
    ("h.i.a |+| h.i.b", |o| (&o.a + &o.b).min(o.most())),
    ("h.i.a |-| h.i.b", |o| (&o.a - &o.b).max(BigInt::ZERO)),
    ("h.i.a << h.i.s", |o| &o.a << o.shift),
    ("h.i.a >> h.i.s", |o| &o.a >> o.shift),
    ("h.i.a << 5", |o| &o.a << 5),
    ("h.i.a >> 5", |o| &o.a >> 5),
    ("(val)((sig)h.i.a >> h.i.s)", |o| o.signed(&o.a) >> o.shift),
    ("(val)((sig)h.i.a >> 3)", |o| o.signed(&o.a) >> 3),
    ("(val)((sig)h.i.a << h.i.s)", |o| &o.a << o.shift),
    ("(val)((sig)h.i.a |+| (sig)h.i.b)", |o| o.signed_range(o.signed(&o.a) + o.signed(&o.b))),
    ("(val)((sig)h.i.a |-| (sig)h.i.b)", |o| o.signed_range(o.signed(&o.a) - o.signed(&o.b))),
    ("(val)((sig)h.i.a * (sig)h.i.b)", |o| o.signed(&o.a) * o.signed(&o.b)),
    ("(h.i.a < h.i.b) ? (val)1 : 0", |o| truth(o.a < o.b)),
    ("(h.i.a >= h.i.b) ? (val)1 : 0", |o| truth(o.a >= o.b)),
    ("((sig)h.i.a < (sig)h.i.b) ? (val)1 : 0", |o| truth(o.signed(&o.a) < o.signed(&o.b))),
    ("((sig)h.i.a <= (sig)h.i.b) ? (val)1 : 0", |o| truth(o.signed(&o.a) <= o.signed(&o.b))),
    ("(h.i.a == h.i.b) ? (val)1 : 0", |o| truth(o.a == o.b)),
    ("(val)(h.i.a ++ h.i.b)", |o| o.b.clone()),
    ("(h.i.a ++ h.i.b)[WIDTH + WIDTH - 1:WIDTH]", |o| o.a.clone()),
    ("(val)(h.i.a[WIDTH - 1:WIDTH / 2])", |o| &o.a >> (o.width / 2)),
    ("(val)(bit<1100>)(int<1100>)(sig)h.i.a", |o| o.signed(&o.a)),
    ("(val)(((bit<1100>)(int<1100>)(sig)h.i.a) >> WIDTH)", |o| o.signed(&o.a) >> o.width),
];

fn program(width: u32) -> String {
    let pad = |bits: u32| bits.next_multiple_of(8) - bits;
    let field = |text: &str, bits: u32| match bits {
        0 => String::new(),
        _ => format!("    bit<{bits}> {text};\n"),
    };
    let mut outputs = String::new();
    let mut code = String::new();
    for (index, (text, _)) in OPERATIONS.iter().enumerate() {
        outputs += &field(&format!("p{index}"), pad(width));
        outputs += &field(&format!("r{index}"), width);
        code += &format!("        h.o.r{index} = {};\n", text.replace("WIDTH", &width.to_string()));
    }
    let padding = field("pa", pad(width));
    let second = field("pb", pad(width));
    format!(
        "#include <v1model.p4>
typedef bit<{width}> val;
typedef int<{width}> sig;
header in_t {{
{padding}    val a;
{second}    val b;
    bit<16> s;
}}
header out_t {{
{outputs}}}
struct headers {{ in_t i; out_t o; }}
struct meta {{ }}
parser P(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {{
    state start {{ p.extract(h.i); transition accept; }}
}}
control V(inout headers h, inout meta m) {{ apply {{ }} }}
control I(inout headers h, inout meta m, inout standard_metadata_t s) {{
    apply {{
        h.o.setValid();
{code}        h.i.setInvalid();
    }}
}}
control E(inout headers h, inout meta m, inout standard_metadata_t s) {{ apply {{ }} }}
control D(packet_out p, in headers h) {{ apply {{ p.emit(h); }} }}
V1Switch(P(), V(), I(), E(), V(), D()) main;
"
    )
}

/// A number of bits, with ends and runs more often than chance gives.
fn number(random: &mut Rng, width: u32) -> BigUint {
    let bytes = bytes(random, width.div_ceil(8) as usize);
    let mask = (BigUint::from(1u8) << width) - 1u8;
    let any = BigUint::from_bytes_be(&bytes) & &mask;
    match random.next_u64() % 8 {
        0 => BigUint::ZERO,
        1 => mask,
        2 => BigUint::from(1u8) << (width - 1),
        3 => (BigUint::from(1u8) << (width - 1)) - 1u8,
        4 => any >> (random.next_u64() as u32 % width),
        _ => any,
    }
}

fn packed(value: &BigUint, width: u32) -> Vec<u8> {
    let size = width.div_ceil(8) as usize;
    let digits = value.to_bytes_be();
    let mut bytes = vec![0; size.saturating_sub(digits.len())];
    bytes.extend(&digits[digits.len().saturating_sub(size)..]);
    bytes
}

#[test]
fn arithmetic_of_every_width_agrees_with_big_integers() {
    let mut random = Rng::new(1);
    for width in WIDTHS {
        let text = program(width);
        let program = lowered("test.p4", Some(text)).unwrap();
        let mut switch = switch(&program);
        for _ in 0..60 {
            let (a, b) = (number(&mut random, width), number(&mut random, width));
            let shift = (random.next_u64() % u64::from(width + width / 4 + 2)) as u32;
            let mut packet = packed(&a, width);
            packet.extend(packed(&b, width));
            packet.extend((shift as u16).to_be_bytes());
            let sent = switch.receive(0, &packet).unwrap();
            let size = width.div_ceil(8) as usize;
            let operands = Operands { a: a.into(), b: b.into(), shift, width };
            for (index, (text, compute)) in OPERATIONS.iter().enumerate() {
                let found = BigUint::from_bytes_be(&sent[0].data[index * size..(index + 1) * size]);
                let exact = compute(&operands);
                let modulus = operands.modulus();
                let wanted = ((exact % &modulus) + &modulus) % &modulus;
                let found = BigInt::from_biguint(Sign::Plus, found);
                let (a, b) = (&operands.a, &operands.b);
                assert_eq!(found, wanted, "{text} with {width} bits, a {a:x}, b {b:x}, s {shift}");
            }
        }
    }
}
