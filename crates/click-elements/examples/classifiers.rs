//! `IPFilter` of many rules by each template, beside the same rules as control flow. Figures for
//! `bench/README.md`.
//!
//!     cargo run --release -p millstream-click-elements --example classifiers -- access|firewall|exact RULES
//!     valgrind --tool=callgrind ... classifiers access|firewall|exact RULES VARIANT BATCHES
//!
//! Rules are those of the firewall's generator (`access`, `firewall`), or name addresses, ports and protocol
//! exactly; each packet matches a rule that is drawn evenly (`ns`), or belongs to one of few flows that make
//! up most (`skewed_ns`). Times are those of batches of 64 in the program; variants take turns, and the
//! medians of their rounds are printed as JSON, with the time to compile. With VARIANT and BATCHES, one
//! variant runs that many batches and nothing is printed: the difference between two such runs gives the
//! instructions per packet.

use std::process::ExitCode;
use std::time::Instant;

use millstream_click::{ClickProgram, flatten, parse};
use millstream_click_elements::compile;
use millstream_native::{ClassifierTemplate, NativeEngine, NativeOptions, PacketBatch};
use millstream_programs::firewall::{self, FirewallConfig, FirewallRule, PortRange, RuleAction, RuleSetKind};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_rng::Rng;

const BATCH: usize = 64;
const BATCHES: usize = 1_000;
const ROUNDS: usize = 9;
const FLOWS: usize = 20_000;
/// More rules than that take too long as control flow, one comparison after the other.
const MOST_LINEAR: usize = 1_000;

/// Code generated for the rules.
#[derive(Clone, Copy)]
enum ClassifierVariant {
    /// As they would without tables: a chain of elements.
    Chain,
    Table(Option<ClassifierTemplate>),
}

const VARIANTS: [(&str, ClassifierVariant); 6] = [
    ("control flow", ClassifierVariant::Chain),
    ("linear", ClassifierVariant::Table(Some(ClassifierTemplate::Linear))),
    ("tree", ClassifierVariant::Table(Some(ClassifierTemplate::Tree))),
    ("cuts", ClassifierVariant::Table(Some(ClassifierTemplate::Cuts))),
    ("tuples", ClassifierVariant::Table(Some(ClassifierTemplate::Tuples))),
    ("by default", ClassifierVariant::Table(None)),
];

/// A rule in Click's words.
fn rule(rule: &FirewallRule) -> String {
    let mut words = vec![format!("src net {} and dst net {}", rule.src, rule.dst)];
    words.extend(rule.protocol.map(|protocol| format!("ip proto {protocol}")));
    for (side, PortRange { first, last }) in [("src", rule.src_ports), ("dst", rule.dst_ports)] {
        if first == last {
            words.push(format!("{side} port {first}"));
        } else if (PortRange { first, last }) != PortRange::ANY {
            words.push(format!("{side} port >= {first} and {side} port <= {last}"));
        }
    }
    words.join(" and ")
}

/// Rules with one source, one destination, one protocol and two ports each.
fn exact(count: usize) -> Result<FirewallConfig, String> {
    let mut config = firewall::generate(RuleSetKind::AccessList, 1, 1);
    config.rules.clear();
    let mut rng = Rng::new(7);
    for _ in 0..count {
        let [a, b] = [rng.next_u32(), rng.next_u32()];
        let text = format!(
            "accept {} 10.{}.{}.{}/32 {} 192.168.{}.{}/32 {}",
            ["tcp", "udp"][(a & 1) as usize],
            a >> 8 & 255,
            a >> 16 & 255,
            a >> 24,
            1024 + (b & 0xfff),
            b >> 12 & 255,
            b >> 20 & 255,
            [80, 443, 53, 22][(a >> 1 & 3) as usize]
        );
        config.rules.push(text.parse().map_err(|e| format!("{text}: {e}"))?);
    }
    Ok(config)
}

fn program(config: &FirewallConfig, variant: ClassifierVariant) -> Result<ClickProgram, String> {
    let output = |rule: &FirewallRule| if rule.action == RuleAction::Accept { "allow" } else { "deny" };
    let text = match variant {
        ClassifierVariant::Table(_) => {
            let rules: Vec<String> =
                config.rules.iter().map(|r| format!("{} {}", output(r), rule(r))).collect();
            format!("FromDump(a) -> MarkIPHeader(14) -> f :: IPFilter({}) -> ToDump(b);", rules.join(",\n"))
        }
        ClassifierVariant::Chain => {
            let element = |(at, r): (usize, &FirewallRule)| {
                let to = if r.action == RuleAction::Accept { "o" } else { "Discard" };
                format!("c{at} :: IPClassifier({}, -); c{at}[0] -> {to}; c{at}[1] -> c{};\n", rule(r), at + 1)
            };
            let all: String = config.rules.iter().enumerate().map(element).collect();
            let last = config.rules.len();
            format!(
                "o :: ToDump(b); Idle -> o; FromDump(a) -> MarkIPHeader(14) -> c0; {all} c{last} :: Discard;"
            )
        }
    };
    let graph = parse(&text).and_then(|statements| flatten(&statements, &[])).map_err(|e| e.to_string())?;
    compile(&graph).map_err(|e| format!("{e:?}"))
}

fn engine(config: &FirewallConfig, variant: ClassifierVariant) -> Result<NativeEngine, String> {
    let classifiers = match variant {
        ClassifierVariant::Table(Some(template)) if config.rules.len() > 16 => {
            vec![("f".to_owned(), template)]
        }
        _ => Vec::new(),
    };
    let program = program(config, variant)?;
    let options = NativeOptions { classifiers, ..NativeOptions::default() };
    NativeEngine::of_module(program.code.module, program.code.entry, &options).map_err(|e| e.to_string())
}

/// Nanoseconds a packet: the median of the batches.
fn round(
    engine: &mut NativeEngine,
    batch: &mut PacketBatch,
    flows: &WeightedFlows,
    batches: usize,
    seed: u64,
) -> (f64, usize) {
    let (mut times, mut sent) = (Vec::with_capacity(batches), 0);
    for order in flows.sequence(seed, batches * BATCH).chunks(BATCH) {
        batch.clear();
        for &flow in order {
            batch.push_open(&flows.packets[flow as usize], 1);
        }
        let start = Instant::now();
        engine.run_graph(batch);
        times.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
        sent += batch.sent_len();
    }
    (median(&mut times), sent)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(config: &FirewallConfig, flows: &WeightedFlows) -> Result<(), String> {
    let mut batch = PacketBatch::with_copies(BATCH, BATCH).map_err(|e| e.to_string())?;
    let mut engines = Vec::new();
    for (name, variant) in VARIANTS {
        if config.rules.len() > MOST_LINEAR && matches!(name, "control flow" | "linear") {
            continue;
        }
        let start = Instant::now();
        match engine(config, variant) {
            Ok(engine) => {
                engines.push((name, start.elapsed().as_secs_f64() * 1e3, engine, [Vec::new(), Vec::new()]))
            }
            Err(why) => eprintln!("{name}: {why}"),
        }
    }
    let skewed = flows.reweighted(FlowLocality::HIGH, 3);
    for turn in 0..ROUNDS {
        let mut sent = [None; 2];
        for step in 0..engines.len() {
            let at = (turn + step) % engines.len();
            let (_, _, engine, times) = &mut engines[at];
            for ((flows, times), sent) in [flows, &skewed].into_iter().zip(times).zip(&mut sent) {
                let (ns, passed) = round(engine, &mut batch, flows, BATCHES, turn as u64 + 1);
                times.push(ns);
                assert_eq!(*sent.get_or_insert(passed), passed, "all variants decide alike");
            }
        }
    }
    println!("{{\n  \"rules\": {},", config.rules.len());
    let last = engines.len() - 1;
    for (at, (name, compiled, engine, times)) in engines.iter_mut().enumerate() {
        let comma = if at == last { "" } else { "," };
        let [ns, skewed] = times.each_mut().map(|times| median(times));
        let (bytes, maps) = (engine.timings.bytes, engine.maps().count() - 1);
        let found = engine.templates.iter().find(|chosen| chosen.table == "f");
        let template = found.map_or(*name, |chosen| chosen.template.as_str());
        println!(
            "  \"{name}\": {{\"template\": \"{template}\", \"ns\": {ns:.1}, \"skewed_ns\": {skewed:.1}, \
             \"compile_ms\": {compiled:.0}, \"object_bytes\": {bytes}, \"maps\": {maps}}}{comma}"
        );
    }
    println!("}}");
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), String> {
    let [kind, count, rest @ ..] = args else {
        return Err("expected `access`, `firewall` or `exact`, and how many rules".into());
    };
    let count: usize = count.parse().map_err(|e| format!("{count}: {e}"))?;
    let config = match kind.as_str() {
        "access" => firewall::generate(RuleSetKind::AccessList, count, 1),
        "firewall" => firewall::generate(RuleSetKind::Firewall, count, 1),
        "exact" => exact(count)?,
        other => return Err(format!("`{other}` is not access, firewall or exact")),
    };
    let flows = firewall::flows(&config, FLOWS, FlowLocality::NONE, 2, |_| true);
    let [variant, batches] = rest else { return measure(&config, &flows) };
    let found = VARIANTS.iter().find(|(name, _)| name == variant);
    let (_, variant) = found.ok_or_else(|| format!("there is no variant `{variant}`"))?;
    let batches = batches.parse().map_err(|e| format!("{batches}: {e}"))?;
    let mut engine = engine(&config, *variant)?;
    let mut batch = PacketBatch::with_copies(BATCH, BATCH).map_err(|e| e.to_string())?;
    round(&mut engine, &mut batch, &flows, batches, 1);
    Ok(())
}
