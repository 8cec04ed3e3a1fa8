//! Classifiers of many rules, which are match tables: each template sends every packet to the same output as
//! a chain of elements with one rule each, which are control flow, in the interpreter; and so does the
//! interpreter with the table. Filters of real size are compared with the firewall's model, too.

use millstream_click::{ClickProgram, flatten, parse};
use millstream_click_elements::compile;
use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, MachineState};
use millstream_native::{ClassifierTemplate, NativeEngine, NativeError, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};
use millstream_programs::firewall::{self, FirewallRule, PortRange, RuleAction, RuleSetKind};
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;

const TEMPLATES: [Option<ClassifierTemplate>; 4] = [
    None,
    Some(ClassifierTemplate::Linear),
    Some(ClassifierTemplate::Tree),
    Some(ClassifierTemplate::Tuples),
];
/// Outputs of elements.
const OUTPUTS: u64 = 4;

type Sent = Vec<(usize, Vec<u8>)>;

fn program(text: &str) -> ClickProgram {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
    program
}

fn interpreted(program: &ClickProgram, frames: &[Vec<u8>]) -> Sent {
    let mut machine = MachineState::new(ContextKind::Xdp);
    let interpreter = IrInterpreter::new(&program.code.module, &mut machine);
    let sent = crate::common::sent(program, &interpreter, &mut machine, frames);
    sent.into_iter().map(|(port, data)| (port as usize, data)).collect()
}

/// Packets that native code with the template for the element `f` sends.
fn native(
    program: &ClickProgram,
    template: Option<ClassifierTemplate>,
    frames: &[Vec<u8>],
) -> Result<Sent, NativeError> {
    let classifiers = template.map(|template| ("f".to_owned(), template)).into_iter().collect();
    let options = NativeOptions { classifiers, ..NativeOptions::default() };
    let mut engine = NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options)?;
    let mut sent = Vec::new();
    let feeds = [SourceFrames { frames, count: frames.len() as u64 }];
    run_graph(&mut engine, &feeds, program.targets.len(), 32, |p| {
        sent.push((p.output, p.bytes.to_vec()));
        Ok(())
    })
    .expect("memory");
    Ok(sent)
}

/// Connections of the outputs of `f`.
fn sinks(element: &str) -> String {
    (0..OUTPUTS).map(|n| format!("{element}[{n}] -> d{n};")).collect()
}

fn targets() -> String {
    (0..OUTPUTS).map(|n| format!("Idle -> d{n} :: ToDump({n});")).collect()
}

/// All rules in one element, and the first of them in a chain of elements with one each.
fn both(front: &str, rules: &[(Option<u64>, String)]) -> (ClickProgram, ClickProgram) {
    let rule = |(output, rule): &(Option<u64>, String)| match output {
        Some(output) => format!("{output} {rule}"),
        None => format!("deny {rule}"),
    };
    let all: Vec<String> = rules.iter().map(rule).collect();
    let one =
        format!("{} FromDump(a) -> {front} f :: IPFilter({}); {}", targets(), all.join(",\n"), sinks("f"));
    let chained = |(at, (output, rule)): (usize, &(Option<u64>, String))| {
        let to = output.map_or("Discard".to_owned(), |output| format!("d{output}"));
        format!("c{at} :: IPClassifier({rule}, -); c{at}[0] -> {to}; c{at}[1] -> c{};\n", at + 1)
    };
    let chain: String = rules.iter().enumerate().map(chained).collect();
    let chain = format!("{} FromDump(a) -> {front} c0; {chain} c{} :: Discard;", targets(), rules.len());
    (program(&one), program(&chain))
}

/// Checks that all templates send the same as the chain. Gives the number of packets.
fn agree(one: &ClickProgram, chain: &ClickProgram, frames: &[Vec<u8>]) -> usize {
    let expected = interpreted(chain, frames);
    assert_eq!(interpreted(one, frames), expected, "the table itself");
    for template in TEMPLATES {
        match native(one, template, frames) {
            Ok(sent) => assert_eq!(sent, expected, "{template:?}"),
            Err(NativeError::Choose(why)) if template == Some(ClassifierTemplate::Tuples) => {
                assert!(why.starts_with("classifier \"f\": its rules have more than"), "{why}");
            }
            Err(e) => panic!("{e}"),
        }
    }
    expected.len()
}

struct Random(Rng);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len() as u64) as usize]
    }

    fn address(&mut self) -> String {
        format!("10.{}.{}.{}", self.below(2), self.below(2), self.below(3))
    }

    fn port(&mut self) -> u64 {
        [0, 1, 80, 443, 1023, 1024, 5000, 0xffff][self.below(8) as usize]
    }

    fn primitive(&mut self) -> String {
        let side = self.pick(&["src ", "dst ", "", "src or dst ", "src and dst "]);
        let compare = self.pick(&["", "!= ", "< ", "> ", "<= ", ">= "]);
        match self.below(14) {
            0..3 => format!("{side}host {}", self.address()),
            3..5 => format!("{side}net {}/{}", self.address(), 8 * self.below(4) + self.below(8) + 1),
            5 => self.pick(&["tcp", "udp", "icmp", "ip proto 6", "ip frag", "ip unfrag"]).to_owned(),
            6..8 => format!("{side}port {compare}{}", self.port()),
            8 => format!("{side}{}port {compare}{}", self.pick(&["tcp ", "udp "]), self.port()),
            9 => format!(
                "{side}port & 0x{:x} {} {}",
                self.below(0xffff) + 1,
                self.pick(&["==", ">", "!="]),
                self.port()
            ),
            10 => format!("tcp opt {}", self.pick(&["syn", "ack", "fin"])),
            11 => format!("ip {} {compare}{}", self.pick(&["ttl", "tos", "id", "len", "hl"]), self.below(70)),
            12 => format!("icmp type {compare}{}", self.pick(&["echo", "echo-reply", "3"])),
            _ => format!(
                "{}[{}] & 7 {} {}",
                self.pick(&["ip", "transp", "udp"]),
                self.below(9),
                self.pick(&["==", "!="]),
                self.below(8)
            ),
        }
    }

    fn rule(&mut self, depth: u32) -> String {
        match self.below(6 + u64::from(depth)) {
            0..2 if depth > 0 => format!("({} and {})", self.rule(depth - 1), self.rule(depth - 1)),
            2 if depth > 0 => format!("({} or {})", self.rule(depth - 1), self.rule(depth - 1)),
            3 if depth > 0 => format!("not ({})", self.rule(depth - 1)),
            _ => self.primitive(),
        }
    }

    /// A packet with an IP header, in most cases with all that rules look at.
    fn packet(&mut self) -> Vec<u8> {
        let address =
            |random: &mut Random| [10, random.below(2) as u8, random.below(2) as u8, random.below(3) as u8];
        let (source, destination) = (address(self), address(self));
        let protocol = [6, 6, 17, 17, 1, 4][self.below(6) as usize];
        let words = if self.below(8) == 0 { 5 + self.below(4) as usize } else { 5 };
        let fragment = [0, 0, 0, 0x2000, 0x0007][self.below(5) as usize] as u16;
        let mut packet = vec![0x40 | words as u8, self.below(8) as u8, 0, 0, 0, self.below(70) as u8];
        packet.extend(fragment.to_be_bytes());
        packet.extend([self.below(70) as u8, protocol, 0, 0]);
        packet.extend([source, destination].concat());
        packet.resize(4 * words, 1);
        match protocol {
            1 => packet.extend([[0, 3, 8, 9][self.below(4) as usize], 0, 0, 0, 0, 0, 0, 0]),
            _ => {
                packet.extend((self.port() as u16).to_be_bytes());
                packet.extend((self.port() as u16).to_be_bytes());
                packet.extend([0; 9]);
                packet.extend([self.below(64) as u8, 0, 0, 0, 0, 0, 0]);
            }
        }
        if self.below(4) == 0 {
            packet.truncate(20 + self.below(packet.len() as u64 - 19) as usize);
        }
        packet
    }

    fn action(&mut self) -> Option<u64> {
        Some(self.below(OUTPUTS + 1)).filter(|output| *output < OUTPUTS)
    }
}

#[test]
fn random_filters_send_what_a_chain_of_single_rules_sends() {
    let mut random = Random(Rng::new(5));
    let (mut sent, mut all) = (0, 0);
    for round in 0..10 {
        let count = [17, 24, 40][round % 3];
        let rules: Vec<_> =
            (0..count).map(|_| (random.action(), random.rule(1 + round as u32 % 3))).collect();
        let (one, chain) = both("MarkIPHeader(0) ->", &rules);
        assert!(!one.code.module.tables.is_empty(), "no table of {rules:?}");
        let frames: Vec<Vec<u8>> = (0..300).map(|_| random.packet()).collect();
        sent += agree(&one, &chain, &frames);
        all += frames.len();
    }
    assert!(sent > all / 3, "{sent} of {all} packets met rules that let them pass");
}

#[test]
fn rules_without_few_alternatives_stay_between_tables() {
    let mut rules: Vec<(Option<u64>, String)> = (0..60)
        .map(|n| {
            (
                Some(n % OUTPUTS),
                format!("src host 10.0.{}.{} and dst port {}", n % 2, n % 3, [80, 443][n as usize % 2]),
            )
        })
        .collect();
    // Twenty bits that may each differ, of two fields at once.
    rules.insert(
        30,
        (
            Some(3),
            "ip[12:4] & 0x05550555 != 0 and ip[16:4] & 0x05550555 != 0 and src port & 0x5555 != 0 and tcp"
                .into(),
        ),
    );
    let (one, chain) = both("MarkIPHeader(0) ->", &rules);
    let names: Vec<&str> = one.code.module.tables.values().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["f", "f.2"]);
    let mut random = Random(Rng::new(9));
    let frames: Vec<Vec<u8>> = (0..500).map(|_| random.packet()).collect();
    assert!(agree(&one, &chain, &frames) > 20);
}

#[test]
fn random_patterns_of_bytes_send_what_a_chain_sends() {
    let mut random = Random(Rng::new(6));
    let mut sent = 0;
    for round in 0..8 {
        let clause = |random: &mut Random| {
            let negated = ["", "", "", "!"][random.below(4) as usize];
            let offset = [0, 3, 12, 14, 23, 26, 30, 33, 34][random.below(9) as usize];
            let value = random.pick(&[
                "00",
                "08",
                "0800",
                "0a00",
                "0a00000?",
                "06",
                "11",
                "?1",
                "0a000001%ffff00ff",
                "0050%00ff",
                "??",
                "0000000000",
            ]);
            format!("{negated}{offset}/{value}")
        };
        let pattern = |random: &mut Random| {
            (0..1 + random.below(3)).map(|_| clause(random)).collect::<Vec<_>>().join(" ")
        };
        let patterns: Vec<String> = (0..[17, 24][round % 2]).map(|_| pattern(&mut random)).collect();
        let to: Vec<u64> = patterns.iter().map(|_| random.below(OUTPUTS)).collect();
        let outputs: String = to.iter().enumerate().map(|(at, to)| format!("f[{at}] -> d{to};")).collect();
        let one = program(&format!(
            "{} FromDump(a) -> f :: Classifier({}); {outputs}",
            targets(),
            patterns.join(", ")
        ));
        assert!(!one.code.module.tables.is_empty(), "no table of {patterns:?}");
        let chained = |(at, pattern): (usize, &String)| {
            format!("c{at} :: Classifier({pattern}, -); c{at}[0] -> d{}; c{at}[1] -> c{};", to[at], at + 1)
        };
        let chain: String = patterns.iter().enumerate().map(chained).collect();
        let chain =
            program(&format!("{} FromDump(a) -> c0; {chain} c{} :: Discard;", targets(), patterns.len()));
        let frame = |random: &mut Random| {
            let mut frame: Vec<u8> = (0..random.below(64))
                .map(|_| [0, 0, 8, 10, 1, 6, 17, 80][random.below(8) as usize])
                .collect();
            for (at, byte) in [(12, 8), (13, 0), (23, 6), (26, 10), (30, 10)] {
                if let Some(place) = frame.get_mut(at).filter(|_| random.below(2) == 0) {
                    *place = byte;
                }
            }
            frame
        };
        let frames: Vec<Vec<u8>> = (0..300).map(|_| frame(&mut random)).collect();
        sent += agree(&one, &chain, &frames);
    }
    assert!((800..2_300).contains(&sent), "{sent} of 2400 packets have a pattern: too few of one kind");
}

/// A rule in Click's words.
fn rule(rule: &FirewallRule) -> (Option<u64>, String) {
    let mut words = vec![format!("src net {} and dst net {}", rule.src, rule.dst)];
    words.extend(rule.protocol.map(|protocol| format!("ip proto {protocol}")));
    for (side, ports) in [("src", rule.src_ports), ("dst", rule.dst_ports)] {
        if ports != PortRange::ANY {
            words.push(format!("{side} port >= {} and {side} port <= {}", ports.first, ports.last));
        }
    }
    let output = match rule.action {
        RuleAction::Accept => Some(0),
        RuleAction::Reject => Some(1),
        RuleAction::Drop => None,
    };
    (output, words.join(" and "))
}

#[test]
fn filters_of_real_size_decide_as_the_model_does() {
    for (flavour, count) in [(RuleSetKind::AccessList, 600), (RuleSetKind::Firewall, 200)] {
        let config = firewall::generate(flavour, count, 1);
        let model = firewall::FirewallModel::new(&config);
        let frames = firewall::flows(&config, 2_000, FlowLocality::NONE, 2, |_| true).packets;
        let rules: Vec<_> = config.rules.iter().map(rule).collect();
        let (one, _) = both("MarkIPHeader(14) ->", &rules);
        let action =
            |frame: &Vec<u8>| match model.process(frame).rule.map(|at| config.rules[at as usize].action) {
                Some(RuleAction::Accept) => Some((0, frame.clone())),
                Some(RuleAction::Reject) => Some((1, frame.clone())),
                _ => None,
            };
        let expected: Sent = frames.iter().filter_map(action).collect();
        assert!(expected.len() > 1_000);
        for template in [None, Some(ClassifierTemplate::Tree)] {
            assert_eq!(native(&one, template, &frames).expect("compiled"), expected, "{template:?}");
        }
    }
}
