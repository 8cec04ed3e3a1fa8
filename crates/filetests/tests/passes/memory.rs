//! Random programs over stack, packet and maps do the same before and after the memory passes.
//!
//! A program is a chain of blocks with diamonds and loops between them; state lives in the stack frame, the
//! packet and two maps. `MILLSTREAM_FUZZ_SEEDS=FROM..TO` chooses the seeds.

use std::fmt::Write as _;

use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, MachineState};
use millstream_ir::text::parse_module;
use millstream_ir::verify::verify_module;
use millstream_ir::{Func, Map, Module};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};

use crate::rng::Rng;

const SIZES: [(&str, i64, &str); 4] = [("b", 1, "i8"), ("h", 2, "i16"), ("w", 4, "i32"), ("dw", 8, "any")];
/// Bytes of the frame that programs use.
const USED: i64 = 48;

struct Writer {
    rng: Rng,
    text: String,
    values: usize,
    blocks: usize,
    /// Values that dominate the place under construction.
    at_hand: Vec<String>,
}

impl Writer {
    fn new_value(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values + 100)
    }

    fn new_block(&mut self) -> String {
        self.blocks += 1;
        format!("block{}", self.blocks)
    }

    fn line(&mut self, line: String) {
        writeln!(self.text, "  {line}").unwrap();
    }

    fn define(&mut self, ty: &str, op: String) -> String {
        let value = self.new_value();
        self.line(format!("{value}: {ty} = {op}"));
        value
    }

    fn constant(&mut self, value: i64) -> String {
        self.define("i64", format!("const.{value}"))
    }

    fn pick(&mut self) -> String {
        let n = self.rng.below(self.at_hand.len());
        self.at_hand[n].clone()
    }

    /// A value to store: often a constant.
    fn operand(&mut self) -> String {
        match self.rng.below(5) {
            0 => self.constant(0),
            1 => {
                let n = self.rng.next() as i64;
                let shift = self.rng.below(64);
                self.constant(n >> shift)
            }
            2 => {
                let (value, by) = (self.pick(), 8 * self.rng.below(8) as i64);
                let by = self.constant(by);
                self.define("i64", format!("alu.lshr.w64 {value}, {by}"))
            }
            _ => self.pick(),
        }
    }

    /// An address into the used part of the frame and the displacement to use with it.
    fn stack_place(&mut self, size: i64) -> (String, i64) {
        let offset = -USED + size * self.rng.below((USED / size) as usize) as i64;
        if self.rng.below(3) > 0 {
            return ("v1".into(), offset);
        }
        let part = 8 * (self.rng.below(12) as i64 - 6);
        let part = self.constant(part + offset);
        let base = self.define("ptr(stack)", format!("alu.add.w64 v1, {part}"));
        (base, offset - self.constant_of(&part))
    }

    /// The number of a constant that was just written.
    fn constant_of(&self, value: &str) -> i64 {
        let mark = format!("{value}: i64 = const.");
        let at = self.text.rfind(&mark).unwrap() + mark.len();
        self.text[at..].lines().next().unwrap().parse().unwrap()
    }

    fn statement(&mut self, local: &mut Vec<String>) {
        let (size, bytes, ty) = SIZES[self.rng.below(4)];
        match self.rng.below(16) {
            0..=4 => {
                let value = self.operand();
                let (base, at) = self.stack_place(bytes);
                self.line(format!("store.{size}.{at}.plain {base}, {value}"));
            }
            5..=7 => {
                let (base, at) = self.stack_place(bytes);
                let signed = self.rng.below(5) == 0;
                let (sign, ty) = if signed { ("s", "i64") } else { ("u", ty) };
                local.push(self.define(ty, format!("load.{size}.{sign}.{at}.plain {base}")));
            }
            8 | 9 => {
                let value = self.operand();
                let at = self.rng.below(56);
                self.line(format!("store.{size}.{at}.plain v2, {value}"));
            }
            10 => {
                let at = self.rng.below(56);
                local.push(self.define(ty, format!("load.{size}.u.{at}.plain v2")));
            }
            11 => self.copy(),
            12 => local.push(self.assemble()),
            13 => local.push(self.variable_load()),
            14 => local.push(self.map_call()),
            _ => {
                let (a, b) = (self.operand(), self.operand());
                let op = ["add", "sub", "xor", "mul"][self.rng.below(4)];
                local.push(self.define("i64", format!("alu.{op}.w64 {a}, {b}")));
            }
        }
    }

    /// A copy by bytes from the packet to the stack.
    fn copy(&mut self) {
        let from = self.rng.below(40) as i64;
        let to = -USED + 8 * self.rng.below((USED / 8) as usize) as i64;
        for i in 0..(1 + self.rng.below(8) as i64) {
            let byte = self.define("i8", format!("load.b.u.{}.plain v2", from + i));
            self.line(format!("store.b.{}.plain v1, {byte}", to + i));
        }
    }

    /// A word assembled from bytes of the packet or the stack, in either order.
    fn assemble(&mut self) -> String {
        let (base, at) = match self.rng.below(2) {
            0 => ("v2", self.rng.below(56) as i64),
            _ => ("v1", -USED + 4 * self.rng.below(8) as i64),
        };
        let reversed = self.rng.below(2) == 0;
        let n = [2, 4, 3, 8][self.rng.below(4)];
        let mut word = None;
        for i in 0..n {
            let byte = self.define("i8", format!("load.b.u.{}.plain {base}", at + i));
            let shift = self.constant(8 * if reversed { n - 1 - i } else { i });
            let byte = self.define("i64", format!("alu.shl.w64 {byte}, {shift}"));
            word = Some(match word {
                None => byte,
                Some(word) => self.define("i64", format!("alu.or.w64 {word}, {byte}")),
            });
        }
        word.unwrap()
    }

    fn variable_load(&mut self) -> String {
        let (value, mask) = (self.pick(), self.constant(7));
        let index = self.define("i64", format!("alu.and.w64 {value}, {mask}"));
        let start = -USED + 8 * self.rng.below((USED / 8) as usize) as i64;
        let start = self.constant(start);
        let base = self.define("ptr(stack)", format!("alu.add.w64 v1, {start}"));
        let base = self.define("ptr(stack)", format!("alu.add.w64 {base}, {index}"));
        if self.rng.below(2) == 0 {
            let stored = self.operand();
            self.line(format!("store.b.0.plain {base}, {stored}"));
        }
        self.define("i8", format!("load.b.u.0.plain {base}"))
    }

    /// An address of 8-aligned stack.
    fn buffer(&mut self, bytes: i64) -> String {
        let at = -USED + 8 * self.rng.below(((USED - bytes) / 8 + 1) as usize) as i64;
        let at = self.constant(at);
        self.define("ptr(stack)", format!("alu.add.w64 v1, {at}"))
    }

    fn map_call(&mut self) -> String {
        let key = self.buffer(8);
        if self.rng.below(2) == 0 {
            // Few different keys, so that lookups hit.
            let (low, high) = (self.rng.below(3) as i64, self.constant(0));
            let low = self.constant(low);
            self.line(format!("store.w.0.plain {key}, {low}"));
            self.line(format!("store.w.4.plain {key}, {high}"));
        }
        let map = self.define("ptr(map0)", "map_addr.map0".into());
        match self.rng.below(4) {
            0 | 1 => {
                let value = self.buffer(16);
                let flags = self.constant(0);
                self.define("i64", format!("helper.2 {map}, {key}, {value}, {flags}"))
            }
            2 => self.define("i64", format!("helper.3 {map}, {key}")),
            _ => self.lookup(&map, &key),
        }
    }

    /// A lookup and, where the key is there, a change of the value; ends the block.
    fn lookup(&mut self, map: &str, key: &str) -> String {
        let found = self.define("ptr(value?:map0)", format!("helper.1 {map}, {key}"));
        let (zero, stored) = (self.constant(0), self.operand());
        let (hit, join, result) = (self.new_block(), self.new_block(), self.new_value());
        self.line(format!("br.ne.w64 {found}, {zero}, {hit}, {join}({zero})"));
        writeln!(self.text, "{hit}:").unwrap();
        let old = self.define("i64", format!("load.dw.u.8.plain {found}"));
        self.line(format!("store.w.8.plain {found}, {stored}"));
        let new = self.define("i64", format!("load.dw.u.8.plain {found}"));
        let sum = self.define("i64", format!("alu.add.w64 {old}, {new}"));
        self.line(format!("jump {join}({sum})"));
        writeln!(self.text, "{join}({result}: i64):").unwrap();
        result
    }

    fn statements(&mut self, most: usize) -> Vec<String> {
        let mut local = Vec::new();
        for _ in 0..1 + self.rng.below(most) {
            self.statement(&mut local);
        }
        local
    }

    fn diamond(&mut self) {
        let (a, b) = (self.pick(), self.operand());
        let (yes, no, join) = (self.new_block(), self.new_block(), self.new_block());
        self.line(format!("br.ult.w32 {a}, {b}, {yes}, {no}"));
        for arm in [yes, no] {
            writeln!(self.text, "{arm}:").unwrap();
            self.statements(4);
            self.line(format!("jump {join}"));
        }
        writeln!(self.text, "{join}:").unwrap();
    }

    fn repeat(&mut self) {
        let (head, after) = (self.new_block(), self.new_block());
        let (start, one) = (self.constant(0), self.constant(1));
        let limit = 1 + self.rng.below(3) as i64;
        let limit = self.constant(limit);
        self.line(format!("jump {head}({start})"));
        let counter = self.new_value();
        writeln!(self.text, "{head}({counter}: i64):").unwrap();
        self.statements(5);
        let next = self.define("i64", format!("alu.add.w64 {counter}, {one}"));
        self.line(format!("br.ult.w64 {next}, {limit}, {head}({next}), {after}"));
        writeln!(self.text, "{after}:").unwrap();
    }

    fn call(&mut self) {
        let buffer = self.buffer(16);
        let result = self.define("any", format!("call.fn1 {buffer}"));
        self.at_hand.push(result);
    }
}

const CALLEE: &str = "fn1 \"callee\" static returns {
block0(v0: any):
  v1: i64 = load.dw.u.0.plain v0
  v2: i64 = const.3
  v3: i64 = alu.mul.w64 v1, v2
  store.w.8.plain v0, v3
  return v3
}
";

fn program(seed: u64) -> String {
    let mut w =
        Writer { rng: Rng(seed), text: String::new(), values: 0, blocks: 0, at_hand: vec!["v3".into()] };
    w.text.push_str("map map0 \"m\" kind=1 key=8 value=16 entries=64 flags=0\n");
    w.text.push_str(
        "fn0 \"f\" program(6) returns {\n  ss0 size=512 align=8 fixed=-512\nblock0(v0: ptr(ctx)):\n",
    );
    w.line("v1: ptr(stack) = stack_addr.ss0.512".into());
    w.line("v2: ptr(packet) = load.w.u.0.plain v0".into());
    w.line("v3: i64 = load.dw.u.0.plain v2".into());
    for i in 0..USED / 8 {
        let value = w.operand();
        w.line(format!("store.dw.{}.plain v1, {value}", -8 * (i + 1)));
    }
    for _ in 0..2 + w.rng.below(5) {
        let local = w.statements(6);
        w.at_hand.extend(local);
        match w.rng.below(5) {
            0 | 1 => w.diamond(),
            2 => w.repeat(),
            3 => w.call(),
            _ => {}
        }
    }
    let mut sum = w.pick();
    for _ in 0..w.rng.below(4) {
        let (base, at) = w.stack_place(8);
        let part = w.define("i64", format!("load.dw.u.{at}.plain {base}"));
        sum = w.define("i64", format!("alu.add.w64 {sum}, {part}"));
    }
    for value in w.at_hand.clone() {
        sum = w.define("i64", format!("alu.xor.w64 {sum}, {value}"));
    }
    w.line(format!("return {sum}"));
    w.text.push_str("}\n");
    w.text.push_str(CALLEE);
    w.text
}

/// Visible results of a run: the result, the packet, the map.
type Outcome = (Result<u64, String>, Vec<u8>, Vec<Option<Vec<u8>>>);

fn run(module: &Module, packet: &[u8]) -> Outcome {
    let mut machine = MachineState::new(ContextKind::Xdp);
    machine.reset(packet);
    let interpreter = IrInterpreter::new(module, &mut machine);
    let result = interpreter.run_context(&mut machine, Func::from_u32(0)).map_err(|e| e.to_string());
    let map = interpreter.map(Map::from_u32(0)).unwrap();
    let keys: Vec<u64> = (0..3).chain(std::iter::once(u64::MAX)).collect();
    let values = keys.iter().map(|k| machine.maps.get(map, &k.to_le_bytes())).collect();
    (result, machine.packet.bytes().to_vec(), values)
}

const PIPELINES: &[&[&str]] = &[
    &["split-stack"],
    &["mem2reg"],
    &["split-stack", "mem2reg"],
    &["forward"],
    &["split-stack", "forward", "forward"],
    &["dse"],
    &["split-stack", "dse"],
    &["merge-loads"],
    &["merge-stores"],
    &["split-stack", "merge-stores", "merge-loads"],
    &["inline", "split-stack", "mem2reg", "dse"],
    &["promote-keys", "lower-keys"],
    &["split-stack", "promote-keys", "dse", "dce", "lower-keys", "merge-stores"],
    &[
        "split-stack",
        "mem2reg",
        "params",
        "gvn",
        "forward",
        "dse",
        "merge-loads",
        "merge-stores",
        "forward",
        "dse",
        "mem2reg",
        "dce",
    ],
];

fn seeds() -> std::ops::Range<u64> {
    let range = std::env::var("MILLSTREAM_FUZZ_SEEDS").unwrap_or_else(|_| "0..150".into());
    let (from, to) = range.split_once("..").expect("seeds are given as FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn memory_passes_keep_the_meaning() {
    let mut changed = 0;
    for seed in seeds() {
        let text = program(seed);
        let original = parse_module(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert_eq!(verify_module(&original), [], "seed {seed}\n{text}");
        let mut rng = Rng(!seed);
        let packets: Vec<Vec<u8>> = (0..3).map(|_| (0..64).map(|_| rng.next() as u8).collect()).collect();
        let before: Vec<Outcome> = packets.iter().map(|p| run(&original, p)).collect();
        assert!(before.iter().all(|o| o.0.is_ok()), "seed {seed}: {:?}\n{text}", before[0].0);
        let default = (PassPipeline::default_o2(), &["default"][..]);
        let listed = PIPELINES.iter().map(|names| (PassPipeline::of(names.iter().copied()).unwrap(), *names));
        for (pipeline, names) in listed.chain([default]) {
            let mut module = original.clone();
            changed +=
                u32::from(pipeline.run(&mut module, &mut PassSession::new(TargetInfo::bpf(4))).unwrap());
            assert_eq!(verify_module(&module), [], "seed {seed}, {names:?}\n{text}\n{module}");
            for (packet, before) in packets.iter().zip(&before) {
                let after = run(&module, packet);
                assert_eq!(&after, before, "seed {seed}, {names:?}\n{text}\nbecame\n{module}");
            }
        }
    }
    assert!(changed > 0, "no pass ever changed a program");
}
