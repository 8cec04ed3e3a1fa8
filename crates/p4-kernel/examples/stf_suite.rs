use std::path::Path;
use std::sync::Arc;
use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4_kernel::{KernelExecutor, KernelHook, build_program, lower_options};
use millstream_p4_lower::lower_with;
use millstream_p4_switch::Switch;
use millstream_p4_switch::stf::{parse_stf, run_stf};

struct Files;
impl SourceLoader for Files {
    fn load(&mut self, path: &str) -> Option<String> {
        std::fs::read(path).ok().map(|b| String::from_utf8_lossy(&b).into_owned())
    }
}

fn one(stf: &Path, hook: KernelHook) -> Result<(), String> {
    let stem = stf.file_stem().unwrap().to_string_lossy().into_owned();
    let names = [&*stem, stem.trim_end_matches("-bmv2"), stem.trim_end_matches("_ubpf")];
    let p4 = names.iter().map(|n| stf.with_file_name(format!("{n}.p4"))).find(|p| p.is_file()).ok_or("unusable")?;
    let commands = parse_stf(&std::fs::read_to_string(stf).unwrap()).map_err(|e| format!("unusable {e}"))?;
    let checked = compile(&p4.to_string_lossy(), &mut Files, &CompileOptions::default());
    let lowered = lower_with(&checked, lower_options()).map_err(|e| format!("refused: {}", e.render(&checked.sources)))?;
    let object = build_program(&lowered, &stem, hook).map_err(|e| format!("refused: {e}"))?;
    let _ = std::fs::write(format!("/tmp/p4kernel/{stem}.{}.o", hook.section()), &object.bytes);
    let executor = KernelExecutor::load(object, &lowered.pipeline).map_err(|e| {
        let text = format!("{e} {e:?}");
        let _ = std::fs::write(format!("/tmp/p4kernel/{stem}.{}.err", hook.section()), text.replace("\\n", "\n"));
        format!("LOAD: {}", e.to_string().chars().take(300).collect::<String>())
    })?;
    let lowered = Arc::new(lowered);
    let mut switch = Switch::new(lowered, executor).map_err(|e| format!("SWITCH: {e}"))?;
    run_stf(&mut switch, &commands).map_err(|e| format!("FAILED: {e}"))
}

fn main() {
    std::fs::create_dir_all("/tmp/p4kernel").unwrap();
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let hook = if args.remove(0) == "tc" { KernelHook::Tc } else { KernelHook::Xdp };
    for file in args {
        let path = Path::new(&file);
        let out = std::panic::catch_unwind(|| one(path, hook)).unwrap_or(Err("PANIC".into()));
        println!("{}: {}", path.file_name().unwrap().to_string_lossy(), match out { Ok(()) => "passed".into(), Err(e) => e });
    }
}
