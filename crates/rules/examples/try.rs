//! Search and reduction without a command line.
use std::io::Write;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let t = std::time::Instant::now();
    if a[1] == "reduce" {
        let text = std::fs::read_to_string(&a[2]).unwrap();
        let store = millstream_passes::rules::Store::parse_unsealed("c", &text).unwrap();
        let solver = millstream_prove::Solver::new("z3");
        let written = millstream_passes::rules::RuleSet::written();
        let kept = millstream_rules::learn::reduce(&written, store.entries, |i, n| if i % 100 == 0 { eprintln!("{i}/{n} {:?}", t.elapsed()) });
        eprintln!("{} kept {:?}", kept.len(), t.elapsed());
        let limits = millstream_prove::Limits { time: std::time::Duration::from_secs(20), ..Default::default() };
        let done = std::sync::atomic::AtomicUsize::new(0);
        let ad = millstream_rules::admit(kept, Some(&solver), &limits, 4, || { let n = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed); if n % 100 == 0 { eprintln!("proven {n}"); } }).unwrap();
        for (r, o) in &ad.refused { eprintln!("REFUSED {r} {o}"); }
        let s = millstream_passes::rules::Store { isa: "bpf v4".into(), made: "2026-11-21".into(), entries: ad.entries };
        std::fs::write(&a[3], s.text()).unwrap();
        eprintln!("{} in the store {:?}", s.entries.len(), t.elapsed());
        return;
    }
    let n = |i: usize| a[i].parse::<u64>().unwrap();
    let s = millstream_rules::learn::Search {
        seed: n(5),
        jobs: n(1) as usize,
        depth: n(2) as usize,
        stride: n(3) as usize,
        budget: std::time::Duration::from_secs(n(4)),
        proof: std::time::Duration::from_secs(2),
        done: Default::default(),
    };
    let h = millstream_rules::learn::Harvest::default();
    let solver = millstream_prove::Solver::new("z3");
    millstream_rules::learn::search(&s, &h, &solver, &Default::default(), |s| {
        let mut out = std::io::stdout().lock();
        for rule in s.rules {
            let _ = writeln!(out, "{} {rule}", s.origin);
        }
        let _ = out.flush();
        if s.done % 20 == 0 {
            eprintln!("{}/{} {:?}", s.done, s.groups, t.elapsed());
        }
    })
    .unwrap();
}
