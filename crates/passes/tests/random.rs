//! Random small functions compute the same before and after passes: each pass alone, and the default pipeline, with
//! unlimited fuel and with any. Inputs, stack and packet memory, loops and block parameters are all in play.

use millstream_interp::ir::Interpreter;
use millstream_interp::{Context, Machine};
use millstream_ir::verify::verify_module;
use millstream_ir::*;
use millstream_passes::{Fuel, Pass, Pipeline, Session, Target, registry};

/// A small deterministic generator (xorshift64*), so that failures repeat.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A constant with a bias to what rules look for.
    fn constant(&mut self) -> i64 {
        let k = self.below(64);
        match self.below(8) {
            0 | 1 => self.below(12) as i64,
            2 => 1 << k,
            3 => ((1u64 << k) - 1) as i64,
            4 => -(self.below(5) as i64),
            5 => self.pick(&[8, 16, 24, 32, 48, 56, 63]),
            6 => self.pick(&[0xff, 0xffff, 0xffff_ffff, 0x7fff_ffff, 0x8000_0000]),
            _ => i64::from(self.next() as i32),
        }
    }
}

const ALU: [AluOp; 13] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::SDiv,
    AluOp::Mod,
    AluOp::SMod,
    AluOp::Or,
    AluOp::And,
    AluOp::Xor,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Arsh,
];
const CONDS: [Cond; 11] = [
    Cond::Eq,
    Cond::Ne,
    Cond::Gt,
    Cond::Ge,
    Cond::Lt,
    Cond::Le,
    Cond::Sgt,
    Cond::Sge,
    Cond::Slt,
    Cond::Sle,
    Cond::Set,
];
const WIDTHS: [Width; 2] = [Width::W32, Width::W64];

/// Bytes of packet that a function may touch, and of its stack object.
const PACKET: i32 = 32;
const STACK: i32 = 16;

struct Generator<'r> {
    random: &'r mut Random,
    func: Function,
    packet: Value,
    slot: Slot,
    // Integers that every block may use.
    common: Vec<Value>,
}

impl Generator<'_> {
    fn function(random: &mut Random) -> Function {
        let mut func = Function::new("f", Linkage::Global);
        let entry = func.add_block();
        let packet = func.add_param(entry, Type::Ptr(Prov::Packet));
        let common = (0..3).map(|_| func.add_param(entry, Type::I64)).collect();
        let slot = func.slots.push(SlotData { size: STACK as u32, align: 8, fixed: None });
        let mut generator = Generator { random, func, packet, slot, common };
        generator.build(entry);
        generator.func
    }

    fn build(&mut self, entry: Block) {
        let mut cursor = self.func.at_end(entry);
        let base = cursor.value(Op::StackAddr { slot: self.slot, offset: 0 }, [], Type::Ptr(Prov::Stack));
        for offset in [0, 8] {
            let flags = MemFlags::default();
            cursor.effect(Op::Store { size: Size::Dw, offset, flags }, [base, self.common[0]], []);
        }
        let count = 2 + self.random.below(6);
        let blocks: Vec<Block> = (0..count)
            .map(|_| {
                let block = self.func.add_block();
                for _ in 0..self.random.below(3) {
                    self.func.add_param(block, Type::I64);
                }
                block
            })
            .collect();
        let mut values = self.common.clone();
        self.body(entry, &mut values);
        self.common.clone_from(&values);
        self.leave(entry, &blocks, &values);
        for (i, &block) in blocks.iter().enumerate() {
            let mut values = self.common.clone();
            values.extend(&self.func.blocks[block].params);
            let counter = (self.random.below(4) == 0).then(|| self.func.add_param(block, Type::I64));
            self.body(block, &mut values);
            match counter {
                Some(counter) => self.again(block, counter, &blocks[i + 1..], &values),
                None => self.leave(block, &blocks[i + 1..], &values),
            }
        }
        self.start_counters(&blocks);
    }

    /// Edges into a self-loop were made before its counter was: they start it at 0.
    fn start_counters(&mut self, blocks: &[Block]) {
        let mut zero = None;
        for from in self.func.layout.clone() {
            let term = self.func.terminator(from).expect("every block was left");
            for i in 0..self.func.insts[term].targets.len() {
                let target = &self.func.insts[term].targets[i];
                let (params, given) = (self.func.blocks[target.block].params.len(), target.args.len());
                if blocks.contains(&target.block) && given < params {
                    let entry = self.func.entry();
                    let zero = *zero.get_or_insert_with(|| self.func.at(entry, 0).iconst(0));
                    self.func.insts[term].targets[i].args.push(zero);
                }
            }
        }
    }

    fn body(&mut self, block: Block, values: &mut Vec<Value>) {
        for _ in 0..2 + self.random.below(7) {
            let value = self.operation(block, values);
            values.extend(value);
        }
    }

    fn operand(&mut self, block: Block, values: &[Value]) -> Value {
        if self.random.below(3) == 0 {
            let value = self.random.constant();
            return self.func.at_end(block).iconst(value);
        }
        // Late values more often: longer chains.
        let near = values.len().saturating_sub(4);
        let from = if self.random.below(2) == 0 { near } else { 0 };
        values[from + self.random.below(values.len() - from)]
    }

    fn operation(&mut self, block: Block, values: &[Value]) -> Option<Value> {
        let a = self.operand(block, values);
        let b = self.operand(block, values);
        let width = self.random.pick(&WIDTHS);
        let by_width = if width == Width::W32 { Type::I32 } else { Type::I64 };
        let size = self.random.pick(&Size::ALL);
        let (op, args, ty) = match self.random.below(14) {
            0..=5 => (Op::Alu { op: self.random.pick(&ALU), width }, vec![a, b], by_width),
            6 => (Op::Zext {}, vec![a], Type::I32),
            7 => (Op::Sext { bits: self.random.pick(&[8, 16]), width }, vec![a], by_width),
            8 => {
                let kind = self.random.pick(&[SwapKind::ToBe, SwapKind::ToLe, SwapKind::Swap]);
                let bits = self.random.pick(&[16, 32, 64]);
                (Op::Swap { kind, bits }, vec![a], Type::int(u32::from(bits)))
            }
            9 => (Op::Cmp { cond: self.random.pick(&CONDS), width }, vec![a, b], Type::I1),
            10 => {
                let truth = Op::Cmp { cond: self.random.pick(&CONDS), width };
                let truth = self.func.at_end(block).value(truth, [a, b], Type::I1);
                let no = self.operand(block, values);
                (Op::Select {}, vec![truth, a, no], Type::I64)
            }
            11 => return self.load(block, size),
            12 => {
                self.store(block, size, a);
                return None;
            }
            _ => (Op::Neg { width }, vec![a], by_width),
        };
        Some(self.func.at_end(block).value(op, args, ty))
    }

    /// A base pointer and an aligned offset inside of its object.
    fn address(&mut self, block: Block, size: Size) -> (Value, i32) {
        let stack = self.random.below(2) == 0;
        let bytes = size.bytes() as i32;
        let room = if stack { STACK } else { PACKET };
        let offset = self.random.below((room / bytes) as usize) as i32 * bytes;
        let split = self.random.below(2) as i32 * offset;
        let (slot, packet) = (self.slot, self.packet);
        let mut cursor = self.func.at_end(block);
        let (base, ty) = if stack {
            let ty = Type::Ptr(Prov::Stack);
            (cursor.value(Op::StackAddr { slot, offset: 0 }, [], ty), ty)
        } else {
            (packet, Type::Ptr(Prov::Packet))
        };
        if split == 0 {
            return (base, offset);
        }
        let by = cursor.iconst(i64::from(split));
        let add = Op::Alu { op: AluOp::Add, width: Width::W64 };
        (cursor.value(add, [base, by], ty), offset - split)
    }

    fn load(&mut self, block: Block, size: Size) -> Option<Value> {
        let (base, offset) = self.address(block, size);
        let flags = MemFlags::default();
        let load = Op::Load { size, sext: false, offset, flags };
        Some(self.func.at_end(block).value(load, [base], Type::int(size.bits())))
    }

    fn store(&mut self, block: Block, size: Size, value: Value) {
        let (base, offset) = self.address(block, size);
        let flags = MemFlags::default();
        self.func.at_end(block).effect(Op::Store { size, offset, flags }, [base, value], []);
    }

    fn call(&mut self, block: Block, to: Block, values: &[Value]) -> BlockCall {
        let count = self.func.blocks[to].params.len();
        let args: Vec<Value> = (0..count).map(|_| self.operand(block, values)).collect();
        BlockCall::with(to, args)
    }

    fn leave(&mut self, block: Block, after: &[Block], values: &[Value]) {
        if after.is_empty() {
            let value = self.operand(block, values);
            self.func.at_end(block).effect(Op::Return {}, [value], []);
            return;
        }
        let near = &after[..after.len().min(3)];
        let first = self.random.pick(near);
        let first = self.call(block, first, values);
        if self.random.below(4) == 0 {
            self.func.at_end(block).effect(Op::Jump {}, [], [first]);
            return;
        }
        let second = self.random.pick(near);
        let second = self.call(block, second, values);
        let (a, b) = (self.operand(block, values), self.operand(block, values));
        let branch = Op::Branch { cond: self.random.pick(&CONDS), width: self.random.pick(&WIDTHS) };
        self.func.at_end(block).effect(branch, [a, b], [first, second]);
    }

    /// Ends a block that runs itself up to three times.
    fn again(&mut self, block: Block, counter: Value, after: &[Block], values: &[Value]) {
        if after.is_empty() {
            return self.leave(block, after, values);
        }
        let mut again = self.call(block, block, values);
        let mut cursor = self.func.at_end(block);
        let one = cursor.iconst(1);
        let next = cursor.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, [counter, one], Type::I64);
        let limit = cursor.iconst(3);
        *again.args.last_mut().expect("the counter is a parameter") = next;
        let on = self.call(block, after[0], values);
        let branch = Op::Branch { cond: Cond::Lt, width: Width::W64 };
        self.func.at_end(block).effect(branch, [next, limit], [again, on]);
    }
}

/// Result, or fault, and the packet afterwards, for some inputs.
fn behaviour(module: &Module) -> Vec<(Result<u64, String>, Vec<u8>)> {
    let mut random = Random(99);
    (0..8)
        .map(|_| {
            let mut machine = Machine::new(Context::Xdp);
            let packet: Vec<u8> = (0..PACKET).map(|_| random.next() as u8).collect();
            machine.reset(&packet);
            let interpreter = Interpreter::new(module, &mut machine);
            let start = machine.packet_address();
            let args = [start, random.constant() as u64, random.next(), random.constant() as u64];
            let result = interpreter.run(&mut machine, Func::from_u32(0), &args);
            let after = machine.bytes(start, PACKET as u64, false).expect("the packet is there").to_vec();
            (result.map_err(|e| e.to_string()), after)
        })
        .collect()
}

fn passed(original: &Module, names: &[&str], fuel: Fuel, isa: u8) -> (Module, Fuel) {
    let mut module = original.clone();
    let mut session = Session::new(Target::bpf(isa));
    session.fuel = fuel;
    let pipeline = Pipeline::of(names.iter().copied()).expect("the names are from the registry");
    if let Err(e) = pipeline.run(&mut module, &mut session) {
        panic!("{e}\n{original}");
    }
    (module, session.fuel)
}

fn check(original: &Module, names: &[&str], fuel: Fuel, isa: u8) {
    let expected = behaviour(original);
    let (module, spent) = passed(original, names, fuel, isa);
    if behaviour(&module) == expected {
        return;
    }
    // The least number of rewrites that changes the meaning shows which one did.
    for limit in 0..=spent.asked() {
        let (after, fuel) = passed(original, names, Fuel::limited(limit), isa);
        if behaviour(&after) != expected {
            let (before, _) = passed(original, names, Fuel::limited(limit.saturating_sub(1)), isa);
            panic!("{:?} is wrong\n{before}\n{after}", fuel.blame(limit.saturating_sub(1)));
        }
    }
    panic!("with rewrites left out, the meaning changes\n{original}\n{module}");
}

fn random_module(seed: u64) -> Module {
    let mut module = Module::default();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    module.funcs.push(Generator::function(&mut random));
    let errors = verify_module(&module);
    assert!(errors.is_empty(), "{errors:?}\n{module}");
    module
}

#[test]
fn every_pass_keeps_the_meaning() {
    let names: Vec<&'static str> = registry().map(Pass::name).collect();
    for seed in 0..250 {
        let module = random_module(seed);
        for &name in &names {
            check(&module, &[name], Fuel::unlimited(), 4);
        }
    }
}

#[test]
fn the_default_pipeline_keeps_the_meaning() {
    let names: Vec<&'static str> = Pipeline::default_o2().passes().iter().map(|p| p.name()).collect();
    for seed in 1000..1600 {
        check(&random_module(seed), &names, Fuel::unlimited(), 4);
        check(&random_module(seed), &names, Fuel::unlimited(), 2);
    }
}

#[test]
fn every_prefix_of_the_rewrites_keeps_the_meaning() {
    let names: Vec<&'static str> = Pipeline::default_o2().passes().iter().map(|p| p.name()).collect();
    for seed in 2000..2300 {
        let module = random_module(seed);
        for step in 1..8 {
            check(&module, &names, Fuel::limited(step * step * 2), 4);
            check(&module, &names, Fuel::unlimited().skip(step * 5), 4);
        }
    }
}
