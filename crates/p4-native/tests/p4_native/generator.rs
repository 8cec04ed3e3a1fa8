//! Random P4_16 programs for v1model: headers, stacks, parsers with loops, tables of all kinds of keys, externs,
//! and expressions of many widths.

use std::fmt::Write;

use millstream_rng::Rng;

/// Widths of fields and variables.
const WIDTHS: [u32; 16] = [1, 2, 3, 5, 8, 9, 13, 16, 24, 31, 32, 48, 63, 64, 72, 128];
/// Deepest nesting of expressions and statements.
const DEEPEST: u32 = 3;

/// A value that statements read and write.
#[derive(Clone)]
struct KnownField {
    name: String,
    width: u32,
}

/// Text of a program that is made.
pub(crate) struct ProgramGenerator {
    random: Rng,
    out: String,
    fields: Vec<KnownField>,
    /// Names of tables that a control may apply once.
    tables: Vec<String>,
    /// Packets may be cloned, resubmitted, recirculated and replicated, and cause messages.
    has_requests: bool,
    depth: u32,
}

impl ProgramGenerator {
    /// The program of this seed, with or without requests to the traffic manager other than to drop.
    pub(crate) fn program(seed: u64, has_requests: bool) -> String {
        let random = Rng::new(seed);
        let (out, fields, tables) = (String::new(), Vec::new(), Vec::new());
        let mut generator = ProgramGenerator { random, out, fields, tables, has_requests, depth: 0 };
        generator.types();
        generator.parser();
        generator.control("In", "ingress");
        generator.control("Out", "egress");
        generator.out.push_str(
            "control NoVerify(inout headers h, inout meta m) { apply { } }
control Compute(inout headers h, inout meta m) { apply { } }
control Deparse(packet_out p, in headers h) { apply { p.emit(h.a); p.emit(h.b); p.emit(h.s); p.emit(h.c); } }
V1Switch(Parse(), NoVerify(), In(), Out(), Compute(), Deparse()) main;
",
        );
        generator.out
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn width(&mut self) -> u32 {
        WIDTHS[self.below(WIDTHS.len() as u64) as usize]
    }

    fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Headers of whole bytes, and metadata. The first field of each header is `k`, of eight bits.
    fn types(&mut self) {
        self.line("#include <core.p4>\n#include <v1model.p4>");
        for (header, member) in [("A", "h.a"), ("B", "h.b"), ("C", "h.c"), ("S", "h.s[0]")] {
            let mut text = format!("header {header} {{ bit<8> k;");
            let mut known = vec![("k".to_owned(), 8)];
            let mut bits = 0;
            for at in 0..1 + self.below(4) {
                let width = self.width();
                bits += width;
                let kind = if width > 1 && self.chance(4) { "int" } else { "bit" };
                let _ = write!(text, " {kind}<{width}> f{at};");
                if kind == "bit" {
                    known.push((format!("f{at}"), width));
                }
            }
            let rest = bits.next_multiple_of(8) - bits;
            if rest > 0 {
                let _ = write!(text, " bit<{rest}> r;");
                known.push(("r".to_owned(), rest));
            }
            self.line(&(text + " }"));
            let member = |(name, width)| KnownField { name: format!("{member}.{name}"), width };
            self.fields.extend(known.into_iter().map(member));
        }
        self.line("struct headers { A a; B b; S[3] s; C c; }");
        let mut text = "struct meta {".to_owned();
        for at in 0..4 {
            let width = self.width();
            let list = if at == 0 { "@field_list(1) " } else { "" };
            let _ = write!(text, " {list}bit<{width}> m{at};");
            self.fields.push(KnownField { name: format!("m.m{at}"), width });
        }
        self.line(&(text + " }"));
    }

    fn parser(&mut self) {
        let [first, second, third] = [2, 3, 1].map(|bits| self.below(1 << bits));
        let check = if self.chance(2) { "verify(h.b.k != 7, error.NoMatch);" } else { "" };
        let peek = match self.chance(2) {
            true => "if (p.lookahead<bit<8>>() == 9) { m.m1 = ~m.m1; }",
            false => "",
        };
        let text = format!(
            "parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {{
  state start {{ p.extract(h.a); transition select(h.a.k[1:0]) {{ {first}: b; 1: stack; default: accept; }} }}
  state b {{ p.extract(h.b); {check} transition select(h.b.k[2:0], h.a.k[2:2]) {{
    ({second} &&& 3, _): c; (2..5, {third}): stack; (_, _): accept; }} }}
  state stack {{ p.extract(h.s.next); {peek} transition select(h.s.last.k[0:0]) {{ 1: stack; default: c; }} }}
  state c {{ p.extract(h.c); transition accept; }}
}}"
        );
        self.line(&text);
    }

    fn control(&mut self, name: &str, kind: &str) {
        let _ = writeln!(
            self.out,
            "control {name}(inout headers h, inout meta m, inout standard_metadata_t s) {{"
        );
        self.line("register<bit<40>>(16) reg; counter(8, CounterType.packets_and_bytes) cnt;");
        let known = self.fields.len();
        for at in 0..3 {
            let width = self.width();
            let value = self.expression(width);
            let _ = writeln!(self.out, "bit<{width}> v{at} = {value};");
            self.fields.push(KnownField { name: format!("v{at}"), width });
        }
        self.line("action none() { }");
        for at in 0..3 {
            let (one, other) = (self.width(), self.width());
            let _ = writeln!(self.out, "action act{at}(bit<{one}> x, bit<{other}> y) {{");
            let outside = self.fields.len();
            self.fields.push(KnownField { name: "x".to_owned(), width: one });
            self.fields.push(KnownField { name: "y".to_owned(), width: other });
            for _ in 0..1 + self.below(3) {
                self.assignment(outside);
            }
            self.fields.truncate(outside);
            self.line("}");
        }
        self.tables.clear();
        for at in 0..1 + self.below(3) {
            self.table(at);
        }
        self.line("apply {");
        for _ in 0..2 + self.below(6) {
            self.statement(kind);
        }
        if kind == "ingress" {
            self.line("if (h.a.k[7:6] != 3) { s.egress_spec = (bit<9>)h.a.k[4:2]; }");
        }
        self.line("} }");
        self.fields.truncate(known);
    }

    fn table(&mut self, at: u64) {
        let _ = writeln!(self.out, "table t{at} {{ key = {{");
        let mut has_prefix = false;
        let kinds = ["exact", "ternary", "range", "optional", "lpm"];
        let plain = self.chance(2);
        for number in 0..1 + self.below(3) {
            let field = self.field();
            let kind = match plain {
                true if has_prefix || !self.chance(3) => "exact",
                true => "lpm",
                false => kinds[self.below(5) as usize],
            };
            if kind == "lpm" && has_prefix {
                continue;
            }
            has_prefix |= kind == "lpm";
            // A range of one bit is no use, and elements need names of their own.
            let _ = writeln!(self.out, "{}: {kind} @name(\"k{number}\");", field.name);
        }
        let action = self.below(3);
        let _ = writeln!(self.out, "}} actions = {{ act0; act1; act2; none; }} size = 64;");
        if self.chance(3) {
            let _ = writeln!(self.out, "default_action = act{action}(1, 0);");
        } else {
            self.line("default_action = none();");
        }
        self.line("}");
        self.tables.push(format!("t{at}"));
    }

    fn field(&mut self) -> KnownField {
        let at = self.below(self.fields.len() as u64) as usize;
        self.fields[at].clone()
    }

    /// An assignment to a field, or to a part of it, among the first `known` ones.
    fn assignment(&mut self, known: usize) {
        let at = self.below(known as u64) as usize;
        let field = self.fields[at].clone();
        if field.width > 1 && self.chance(4) {
            let low = self.below(u64::from(field.width)) as u32;
            let high = low + self.below(u64::from(field.width - low)) as u32;
            let value = self.expression(high - low + 1);
            let _ = writeln!(self.out, "{}[{high}:{low}] = {value};", field.name);
        } else {
            let value = self.expression(field.width);
            let _ = writeln!(self.out, "{} = {value};", field.name);
        }
    }

    fn statement(&mut self, kind: &str) {
        self.depth += 1;
        match self.below(if self.depth < DEEPEST { 14 } else { 10 }) {
            0 => {
                let (at, field) = (self.expression(32), self.field());
                let value = self.expression(40);
                let (name, width) = (field.name, field.width);
                let _ = writeln!(
                    self.out,
                    "{{ bit<40> r; reg.read(r, {at} & 31); {name} = (bit<{width}>)r; reg.write({at} & 31, {value}); }}"
                );
            }
            1 => {
                let at = self.expression(32);
                let _ = writeln!(self.out, "cnt.count({at} & 7);");
            }
            2 => {
                let header = ["h.a", "h.b", "h.c", "h.s[1]"][self.below(4) as usize];
                let method = if self.chance(3) { "setInvalid" } else { "setValid" };
                let _ = writeln!(self.out, "{header}.{method}();");
            }
            3 => {
                let text = ["h.s.push_front(1);", "h.s.pop_front(1);", "h.b = h.b;", "h.s[2] = h.s[0];"];
                let at = self.below(4) as usize;
                self.line(text[at]);
            }
            4 => {
                let (one, other, into) = (self.expression(32), self.expression(16), self.field());
                let algorithm = ["crc16", "crc32", "csum16", "identity"][self.below(4) as usize];
                let (name, width) = (into.name, into.width);
                let _ = writeln!(
                    self.out,
                    "{{ bit<32> r; hash(r, HashAlgorithm.{algorithm}, 32w1, {{ {one}, {other} }}, 32w77); \
                     {name} = {}; }}",
                    cast("r", 32, width)
                );
            }
            5 => self.request(kind),
            6 if !self.tables.is_empty() => {
                let table = self.tables.remove(0);
                match self.below(3) {
                    0 => {
                        let _ = writeln!(self.out, "if (!{table}.apply().hit) {{");
                        self.statement(kind);
                        self.line("}");
                    }
                    1 => {
                        let _ = writeln!(self.out, "switch ({table}.apply().action_run) {{ act0: {{");
                        self.statement(kind);
                        self.line("} act1: { } default: {");
                        self.statement(kind);
                        self.line("} }");
                    }
                    _ => {
                        let _ = writeln!(self.out, "{table}.apply();");
                    }
                }
            }
            7 if self.has_requests => {
                let value = self.expression(16);
                let _ = writeln!(self.out, "log_msg(\"value {{}}\", {{ {value} }});");
            }
            8 | 9 => self.assignment(self.fields.len()),
            _ => {
                let condition = self.condition();
                let _ = writeln!(self.out, "if ({condition}) {{");
                self.statement(kind);
                self.line("} else {");
                self.statement(kind);
                self.statement(kind);
                self.line("}");
            }
        }
        self.depth -= 1;
    }

    /// A request to the traffic manager, under a condition that packets seldom meet.
    fn request(&mut self, kind: &str) {
        let chosen = self.below(6);
        let text = match (kind, if self.has_requests { chosen } else { 5 + chosen % 2 }) {
            ("ingress", 0) => "clone_preserving_field_list(CloneType.I2E, 1, 1);",
            ("ingress", 1) => "s.mcast_grp = 2;",
            ("ingress", 2) => "if (s.instance_type == 0) { resubmit_preserving_field_list(1); }",
            ("egress", 0) => {
                "if (s.instance_type == 0) { clone_preserving_field_list(CloneType.E2E, 1, 1); }"
            }
            ("egress", 1) => "if (s.instance_type == 0) { recirculate_preserving_field_list(1); }",
            (_, 3) => "truncate(20);",
            (_, 4) => "digest(1, { h.a.k, m.m0 });",
            (_, 5) => "exit;",
            _ => "mark_to_drop(s);",
        };
        let _ = writeln!(self.out, "if (h.a.k[5:3] == {}) {{ {text} }}", self.random.below(8));
    }

    fn condition(&mut self) -> String {
        self.depth += 1;
        let width = self.width();
        let (one, other) = (self.expression(width), self.expression(width));
        let text = match self.below(if self.depth < DEEPEST { 9 } else { 7 }) {
            0 => "h.b.isValid()".to_owned(),
            1 => "h.s[1].isValid()".to_owned(),
            2 if width > 1 => format!("(int<{width}>){one} < (int<{width}>){other}"),
            3 => format!("{one} >= {other}"),
            4 => format!("{one} < {other}"),
            5 => format!("{one} != {other}"),
            6 => format!("{one} == {other}"),
            7 => format!("({} && {})", self.condition(), self.condition()),
            _ => format!("(!({}) || {})", self.condition(), self.condition()),
        };
        self.depth -= 1;
        format!("({text})")
    }

    /// An expression of type `bit<width>`.
    fn expression(&mut self, width: u32) -> String {
        self.depth += 1;
        let text = match self.below(if self.depth <= DEEPEST { 14 } else { 3 }) {
            0 => format!("{width}w{}", self.random.next_u64() & u64::MAX >> (64 - width.min(64))),
            1 | 2 => {
                let field = self.field();
                cast(&field.name, field.width, width)
            }
            3 => {
                let (op, a) = (["~", "-"][self.below(2) as usize], self.expression(width));
                format!("({op}{a})")
            }
            4 => format!("({} << {})", self.expression(width), self.expression(4)),
            5 => format!("({} >> {})", self.expression(width), self.expression(4)),
            6 => format!("({} ? {} : {})", self.condition(), self.expression(width), self.expression(width)),
            7 if width > 1 => {
                let low = 1 + self.below(u64::from(width) - 1) as u32;
                format!("({} ++ {})", self.expression(width - low), self.expression(low))
            }
            8 => {
                let low = self.below(5) as u32;
                let wide = self.expression(width + low + 1);
                format!("{wide}[{}:{low}]", low + width - 1)
            }
            9 if width > 1 => {
                let op = ["+", "-", "*", "|+|", "|-|"][self.below(5) as usize];
                let (a, b) = (self.expression(width), self.expression(width));
                format!("((bit<{width}>)((int<{width}>){a} {op} (int<{width}>){b}))")
            }
            10 if width > 1 => {
                let (a, by) = (self.expression(width), self.expression(4));
                format!("((bit<{width}>)((int<{width}>){a} >> {by}))")
            }
            _ => {
                let op = ["+", "-", "*", "&", "|", "^", "|+|", "|-|"][self.below(8) as usize];
                format!("({} {op} {})", self.expression(width), self.expression(width))
            }
        };
        self.depth -= 1;
        text
    }
}

/// A value of type `bit<from>` as one of type `bit<to>`.
fn cast(name: &str, from: u32, to: u32) -> String {
    if from == to { name.to_owned() } else { format!("((bit<{to}>){name})") }
}
