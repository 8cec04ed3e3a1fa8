//! Scripts, executed at times that the tests set.

use std::time::Duration;

use millstream_built::script::{IdleOutcome, ScriptEnvironment, ScriptRunner};
use millstream_click::{ClickProgram, flatten, parse};
use millstream_click_elements::compile;
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};

/// A configuration with its scripts and their output.
struct Bed {
    program: ClickProgram,
    engine: NativeEngine,
    scripts: ScriptRunner,
    out: Vec<u8>,
    errors: Vec<u8>,
}

impl Bed {
    fn new(text: &str) -> Bed {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        let program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
        let engine = NativeEngine::of_module(
            program.code.module.clone(),
            program.code.entry,
            &NativeOptions::default(),
        );
        let scripts = ScriptRunner::new(&program);
        Bed { program, engine: engine.expect("compiled"), scripts, out: Vec::new(), errors: Vec::new() }
    }

    fn around<T>(
        &mut self,
        milliseconds: u64,
        what: impl FnOnce(&mut ScriptRunner, &mut ScriptEnvironment<'_>) -> std::io::Result<T>,
    ) -> T {
        let now = Duration::from_millis(milliseconds);
        let Bed { program, engine, scripts, out, errors } = self;
        let mut around = ScriptEnvironment { program, engine, now, out, errors };
        what(scripts, &mut around).expect("written to memory")
    }

    /// Output at a time, and `true` if the run goes on.
    fn at(&mut self, milliseconds: u64) -> (String, bool) {
        let on = self.around(milliseconds, ScriptRunner::run_due);
        (self.said(), on)
    }

    fn finish(&mut self) -> String {
        self.around(0, ScriptRunner::finish);
        self.said()
    }

    /// Output if nothing but scripts can go on.
    fn idle(&mut self) -> String {
        while self.around(0, |scripts, around| scripts.idle(around, true)) == IdleOutcome::Again {}
        self.said()
    }

    fn said(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.out)).expect("text")
    }

    fn complaints(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.errors)).expect("text")
    }

    /// Sends so many packets through the first source.
    fn packets(&mut self, count: u64) {
        self.frames(&[vec![0; 64]], count);
    }

    /// Sends so many of these frames, in turns, through the first source.
    fn frames(&mut self, frames: &[Vec<u8>], count: u64) {
        let feeds = [SourceFrames { frames, count }];
        run_graph(&mut self.engine, &feeds, self.program.targets.len(), 8, |_| Ok(())).expect("memory");
    }
}

/// A test bed with a counter that packets pass.
fn counted(script: &str) -> Bed {
    Bed::new(&format!("FromDevice(a) -> c :: Counter -> Discard; {script}"))
}

#[test]
fn an_active_script_begins_at_once_and_waits_for_its_time() {
    let mut bed = counted(
        "s :: Script(init x 7, print \"$x ${x} '$x' $y\", label again, wait 0.5s, print c.count, write c.reset,
            set x $(add $x 1), print 'all $x', print \"of $x at $(now)\", goto again)",
    );
    assert_eq!(bed.at(1000), ("7 7 '$x' $y\n".into(), true));
    bed.packets(20);
    assert_eq!(bed.at(1499), (String::new(), true), "not yet");
    assert_eq!(bed.at(1500), ("20\nall $x\nof 8 at 1.500000\n".into(), true));
    bed.packets(3);
    assert_eq!(bed.at(2100), ("3\nall $x\nof 9 at 2.100000\n".into(), true));
    assert_eq!((bed.finish(), bed.complaints()), (String::new(), String::new()));
}

#[test]
fn scripts_of_the_documentation_say_what_it_says() {
    let loops = "s :: Script(set x 0, label begin_loop, printn $x, set x $(s.add $x 1), \
        goto begin_loop $(lt $x 5), stop)";
    assert_eq!(counted(loops).at(0), ("01234".into(), false));
    let quotes =
        "Script(set x $(c.count), print $x, set x \"$(c.count)\", printn $x, setq x \"$(c.count)\", print $x,
        print c.count, print \"c.count\", print '\"c.count\"', set x c.count, print $x, print $($x))";
    assert_eq!(counted(quotes).at(0).0, "0\n00\n0\nc.count\n\"c.count\"\nc.count\n0\n");
    let sum = "s :: Script(TYPE PASSIVE, return $(add $(c.count) $1 $#)); Script(print s.run 0, print $(s.run 40 1))";
    assert_eq!(counted(sum).at(0).0, "1\n42\n");
}

#[test]
fn sketches_are_asked_about_flows_and_begin_anew() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> s :: CountMinSketch(TOP 1) -> Discard;
         Script(label l, print \"$(s.count) $(s.estimate 1.2.3.4 5 6.7.8.9 10 tcp) \
             $(s.estimate 1.2.3.4 6.7.8.9 udp)\", printn $(s.top), wait 1, goto l);
         Script(TYPE PASSIVE, return $(s.estimate 1.2.3.4)); Script(wait 2.5, write s.reset)",
    );
    assert_eq!(bed.at(0).0, "0 0 0\n");
    let segment =
        [&[0x45, 0, 0, 40, 0, 0, 0, 0, 9, 6, 0, 0, 1, 2, 3, 4, 6, 7, 8, 9, 0, 5, 0, 10][..], &[0; 16]]
            .concat();
    bed.frames(&[segment], 7);
    assert_eq!(bed.at(1000).0, "7 7 0\n7 1.2.3.4 5 6.7.8.9 10 tcp\n");
    assert_eq!(bed.at(2500).0, "7 7 0\n7 1.2.3.4 5 6.7.8.9 10 tcp\n");
    assert_eq!(bed.at(4000).0, "0 0 0\n");
    assert_eq!(bed.complaints(), "");
    let said = millstream_built::handlers::read(&bed.program, &mut bed.engine, "s.estimate 1.2.3.4");
    assert!(said.expect_err("no flow").to_string().contains("takes a flow like"));
}

#[test]
fn a_driver_script_decides_when_the_run_ends() {
    let mut bed = counted(
        "Script(wait 1, stop); DriverManager(print a, print \"begins\", wait, print \"stopped\", \
         wait 2s, print \"ends\")",
    );
    assert_eq!(bed.at(0), ("begins\n".into(), true));
    assert_eq!(bed.complaints(), "DriverManager@5: there is no handler `a` to read\n");
    assert_eq!(bed.at(999), (String::new(), true), "nobody has asked for the end");
    assert_eq!(bed.at(1000), ("stopped\n".into(), true));
    assert_eq!(bed.at(3000), ("ends\n".into(), false));
    // Without more packets, time jumps.
    let mut bed = counted(
        "DriverManager(wait, wait 5s, printn \"$(c.count) \", label l, printn \"once \", wait 1s, \
         goto l, print \"never\")",
    );
    assert_eq!(bed.at(0), (String::new(), true));
    bed.packets(9);
    assert_eq!(bed.finish(), "9 once ");
}

#[test]
fn passive_scripts_are_run_and_pauses_stepped_over_by_others() {
    let mut bed = Bed::new(
        "elementclass G { input -> c :: Counter -> output; p :: Script(TYPE PASSIVE, print \"in $args: $(c.count)\") }
            FromDevice(a) -> g :: G -> Discard; w :: Script(pause 2, print \"woken\");
            Script(write g/p.run x y, print \"status $?\", write w.step, wait 1, write w.step, write g/c.reset)",
    );
    assert_eq!(bed.at(0), ("in x y: 0\nstatus 0\n".into(), true));
    bed.packets(5);
    assert_eq!(bed.at(1000), (String::new(), true));
    assert_eq!(bed.at(1001), ("woken\n".into(), true));
    assert_eq!(bed.complaints(), "");
}

#[test]
fn mistakes_are_told_once_and_endless_loops_end() {
    let mut bed = counted("s :: Script(label l, write nobody.rate 5, printn \"$? \", wait 1, goto l)");
    for second in 0..3 {
        assert_eq!(bed.at(1000 * second), ("1 ".into(), true));
    }
    assert_eq!(bed.complaints(), "s: there is no handler `nobody.rate` to write\n");
    let mut bed = counted(
        "s :: Script(set x 0, label l, set x $(add $x 1), goto l); \
        t :: Script(TYPE PASSIVE, write t.run, write u.run);
        u :: Script(TYPE PASSIVE, write t.run); Script(write t.run, error \"as said\")",
    );
    assert_eq!(bed.at(0), (String::new(), true));
    let complaints = bed.complaints();
    assert!(complaints.starts_with("s :: Script: too many jumps, giving up\n"), "{complaints}");
    assert!(complaints.ends_with(": as said\n"), "{complaints}");
}

#[test]
fn where_nothing_else_goes_on_time_leaps_and_loops_end() {
    let loops = "set n 0, label l, wait 1, set n $(add $n 1), printn \"$n \", ";
    for (more, expected) in [
        ("goto l $(lt $n 4), print \"done\"", "1 2 3 4 done\n"),
        ("goto out $(ge $n 3), goto l, label out, print \"out\"", "1 2 3 out\n"),
        ("goto l", "1 "),
        ("goto l $(c.count)", "1 "),
        ("goto l true", ""),
    ] {
        let mut bed = counted(&format!("Script({loops}{more})"));
        assert_eq!(bed.at(0), (String::new(), true));
        let said = bed.idle();
        match expected {
            "" => assert_eq!(said.split_whitespace().count(), 1000, "{more}"),
            _ => assert_eq!(said, expected, "{more}"),
        }
    }
    let mut bed = counted(
        "Script(wait 9, print \"late\", stop); Script(wait 3, print $(now)); DriverManager(pause, print \"end\")",
    );
    assert_eq!(bed.at(0), (String::new(), true));
    assert_eq!(bed.idle(), "3.000000\nlate\nend\n");
    let mut bed = counted("Script(wait 1, stop); Script(wait 2, print \"never\")");
    assert_eq!((bed.at(0), bed.idle()), ((String::new(), true), String::new()));
}

#[test]
fn scripts_print_to_files_and_lines_have_one_end() {
    let folder = std::env::temp_dir().join(format!("millstream-script-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("said").display().to_string();
    let mut bed = counted(&format!(
        "Script(print >{file} \"gone\", print >{file} \"one\", print >>{file} c.count, \
         append c.class {file}, print c.handlers, print > - \"two\")"
    ));
    let (said, _) = bed.at(0);
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "one\n0\nCounter\n");
    assert!(said.ends_with("\ntwo\n") && !said.contains("\n\n"), "{said}");
    std::fs::remove_dir_all(&folder).expect("removed");
}
