//! Instructions with setup code: two operands in, one result out. The operands are in `r6` and `r7`, the
//! result is left in `r6`; the packet is at `r9`.

/// Offset of the results in the packet, after two operands.
pub(crate) const RESULTS: usize = 16;
/// Room for results, so that the packet fits one page with its head room.
pub(crate) const ROOM: usize = 1024;
/// Seed of all random choices.
pub(crate) const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Xorshift.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Half the time a value near which behaviour changes.
    pub(crate) fn operand(&mut self) -> u64 {
        const EDGES: [u64; 14] = [
            0,
            1,
            2,
            7,
            31,
            32,
            63,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x7fff_ffff,
            0xffff_ffff,
            0x7fff_ffff_ffff_ffff,
        ];
        let choice = self.next();
        let edge = EDGES[(choice >> 8) as usize % EDGES.len()];
        match choice % 8 {
            0 => edge,
            1 => edge.wrapping_neg(),
            2 => edge.wrapping_add(1),
            3 => edge << 32 | self.next() >> 32,
            4 => self.next() >> 32,
            5 => (self.next() as i32) as i64 as u64,
            _ => self.next(),
        }
    }

    fn immediate(&mut self) -> i32 {
        self.operand() as i32
    }
}

/// An instruction with setup code: the operands are in r6 and r7, the result is left in r6.
pub(crate) fn snippets(random: &mut Random) -> Vec<String> {
    let mut out = Vec::new();
    arithmetic(random, &mut out);
    unary(&mut out);
    branches(random, &mut out);
    memory(&mut out);
    packets(&mut out);
    atomics(&mut out);
    out
}

fn arithmetic(random: &mut Random, out: &mut Vec<String>) {
    for op in ["+", "-", "*", "/", "s/", "%", "s%", "|", "&", "^", "<<", ">>", "s>>"] {
        for (register, bits) in [("r", 64), ("w", 32)] {
            out.push(format!("{register}6 {op}= {register}7"));
            out.push(format!("{register}6 {op}= {register}6"));
            for _ in 0..3 {
                // The verifier refuses to divide by a constant 0, and constant counts beyond the width.
                let imm = match op {
                    "<<" | ">>" | "s>>" => random.immediate() & (bits - 1),
                    "/" | "s/" | "%" | "s%" => Some(random.immediate()).filter(|i| *i != 0).unwrap_or(-1),
                    _ => random.immediate(),
                };
                out.push(format!("{register}6 {op}= {imm}"));
            }
        }
    }
}

fn unary(out: &mut Vec<String>) {
    let texts = [
        "r6 = r7",
        "w6 = w7",
        "r6 = -7",
        "w6 = -7",
        "r6 = (s8)r7",
        "r6 = (s16)r7",
        "r6 = (s32)r7",
        "w6 = (s8)w7",
        "w6 = (s16)w7",
        "r6 = -r6",
        "w6 = -w6",
        "r6 = be16 r6",
        "r6 = be32 r6",
        "r6 = be64 r6",
        "r6 = le16 r6",
        "r6 = le32 r6",
        "r6 = le64 r6",
        "r6 = bswap16 r6",
        "r6 = bswap32 r6",
        "r6 = bswap64 r6",
        "r6 = 0xfedcba9876543210",
    ];
    out.extend(texts.map(str::to_owned));
}

fn branches(random: &mut Random, out: &mut Vec<String>) {
    for cond in ["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"] {
        for register in ["r", "w"] {
            let mut operands = vec![format!("{register}7"), format!("{register}6")];
            operands.extend((0..3).map(|_| random.immediate().to_string()));
            for operand in operands {
                out.push(format!(
                    "r0 = 1\nif {register}6 {cond} {operand} goto taken@\nr0 = 0\ntaken@:\nr6 = r0"
                ));
            }
        }
    }
    out.push("r0 = 1\nif r6 > r7 goto less@\ngotol over@\nless@:\nr0 = 0\nover@:\nr6 = r0".to_owned());
}

/// The stack slot at r10-8 holds the first operand.
fn memory(out: &mut Vec<String>) {
    for size in ["u8", "u16", "u32", "u64", "s8", "s16", "s32"] {
        out.push(format!("*(u64 *)(r10 -8) = r6\nr6 = *({size} *)(r10 -8)"));
    }
    for size in ["u8", "u16", "u32", "u64"] {
        out.push(format!("*(u64 *)(r10 -8) = r6\n*({size} *)(r10 -8) = r7\nr6 = *(u64 *)(r10 -8)"));
        out.push(format!("*(u64 *)(r10 -8) = r6\n*({size} *)(r10 -8) = -3\nr6 = *(u64 *)(r10 -8)"));
        out.push(format!("*(u64 *)(r10 -8) = r6\nr6 = load_acquire(({size} *)(r10 -8))"));
        out.push(format!(
            "*(u64 *)(r10 -8) = r6\nstore_release(({size} *)(r10 -8), r7)\nr6 = *(u64 *)(r10 -8)"
        ));
    }
}

/// Loads and stores of the packet, which need not be aligned; `#` is the offset of the result.
fn packets(out: &mut Vec<String>) {
    for size in ["u8", "u16", "u32", "u64", "s8", "s16", "s32"] {
        for at in [0, 1, 3, 5, 7] {
            out.push(format!("r6 = *({size} *)(r9 +{at})"));
        }
    }
    for size in ["u8", "u16", "u32", "u64"] {
        out.push(format!("*({size} *)(r9 +#) = r7\nr6 = *(u64 *)(r9 +#)"));
        out.push(format!("*({size} *)(r9 +#) = -77\nr6 = *(u64 *)(r9 +#)"));
    }
}

/// Both the fetched value and the value left in memory count.
fn atomics(out: &mut Vec<String>) {
    for (size, wide) in [("u64", "64"), ("u32", "")] {
        let slot = format!("({size} *)(r10 -8)");
        let mut operations = vec![format!("r7 = atomic{wide}_xchg({slot}, r7)")];
        for (op, name) in [("+", "add"), ("&", "and"), ("|", "or"), ("^", "xor")] {
            operations.push(format!("lock *{slot} {op}= r7"));
            operations.push(format!("r7 = atomic{wide}_fetch_{name}({slot}, r7)"));
        }
        for expected in ["r6", "r7"] {
            operations.push(format!("r0 = {expected}\nr0 = atomic{wide}_cmpxchg({slot}, r0, r7)\nr7 ^= r0"));
        }
        for operation in operations {
            out.push(format!(
                "*(u64 *)(r10 -8) = r6\n{operation}\nr6 = *(u64 *)(r10 -8)\nr7 *= 0x10001\nr6 ^= r7"
            ));
        }
    }
}

/// A program that applies each snippet to the operands and stores the result in r6.
pub(crate) fn program(snippets: &[String]) -> String {
    let length = RESULTS + 8 * snippets.len();
    let mut text =
        format!("r9 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r9\nr2 += {length}\nif r2 > r8 goto out\n");
    for (n, snippet) in snippets.iter().enumerate() {
        let at = RESULTS + 8 * n;
        let snippet = snippet.replace('@', &n.to_string()).replace('#', &at.to_string());
        text += &format!("r6 = *(u64 *)(r9 +0)\nr7 = *(u64 *)(r9 +8)\n{snippet}\n*(u64 *)(r9 +{at}) = r6\n");
    }
    text + "out:\nr0 = 2\nexit\n"
}
