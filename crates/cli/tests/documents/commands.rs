//! Shell commands of the documentation run, or say why they are not run; the command line knows all flags that
//! they name.
//!
//! A page is run from its first to its last block, in a folder with the repository's `docs` and some files that
//! examples name. A line `<!-- not run: REASON -->` in front of a block keeps it from being run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::error::ErrorKind;

use crate::blocks::{CodeBlock, code_blocks};
use crate::{all_files, documents, root};

/// Limit of a block, far above what any needs.
const LIMIT: Duration = Duration::from_secs(600);

/// Makes the files that examples name.
const FILES: &str = "
millstream control router object program.o
millstream opt program.o -o faster.o 2>/dev/null
cp docs/examples/router.click router.click
millstream click docs/examples/packets.click >/dev/null 2>&1
cp in.pcap a.pcap
cp in.pcap c.pcap
head -c 64 /dev/zero >frame.bin
mkdir include src tests
cp docs/examples/router.p4 docs/examples/router.stf .
cp router.p4 src
cp router.p4 router.stf tests
printf '\\xb7\\0\\0\\0\\2\\0\\0\\0\\x95\\0\\0\\0\\0\\0\\0\\0' >X.insns
printf '{ pgm_input_type = 2, }' >X.desc
millstream opt X.insns -o Y.o 2>/dev/null
";

/// A folder for the commands of one page.
struct Workplace {
    folder: PathBuf,
    programs: PathBuf,
}

impl Workplace {
    fn new(page: &Path) -> Workplace {
        let name = page.to_string_lossy().replace(['/', '.'], "-");
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink(root().join("docs"), folder.join("docs")).unwrap();
        let programs = Path::new(env!("CARGO_BIN_EXE_millstream")).parent().unwrap().to_owned();
        Workplace { folder, programs }
    }

    /// Runs shell commands; returns what they print and how they end if they fail.
    fn run(&self, script: &str) -> Result<(), String> {
        let output = self.folder.join("output.txt");
        let file = fs::File::create(&output).unwrap();
        let path = format!("{}:{}", self.programs.display(), std::env::var("PATH").unwrap_or_default());
        let mut child = Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(&self.folder)
            .env("PATH", path)
            .env("XDG_CACHE_HOME", self.folder.join("cache"))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status.to_string();
            }
            if start.elapsed() > LIMIT {
                let _ = (child.kill(), child.wait());
                break format!("not done after {} s", LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        if status == "exit status: 0" {
            return Ok(());
        }
        Err(format!("{status}\n{}", fs::read_to_string(output).unwrap_or_default()))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs the blocks of a page in their order; returns the first fault.
fn run_page(page: &Path, blocks: &[CodeBlock]) -> Option<String> {
    let is_run = |block: &&CodeBlock| block.is_shell() && block.reason().is_none();
    blocks.iter().find(is_run)?;
    let place = Workplace::new(page);
    if let Err(output) = place.run(FILES) {
        return Some(format!("files for {}: {output}", page.display()));
    }
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| is_run(block)) {
        if let Some(name) = block.file() {
            fs::write(place.folder.join(name), &blocks[index - 1].text).unwrap();
        }
        if let Err(output) = place.run(&block.text) {
            return Some(format!("{}:{}: {}\n{output}", page.display(), block.line, block.text));
        }
    }
    None
}

#[test]
fn commands_of_the_documentation_run() {
    if !millstream_kernel::testing::require() {
        return;
    }
    let files = all_files();
    let mut faults = Vec::new();
    for (page, text) in
        documents(&files).filter(|(page, _)| page.starts_with("docs") || page.ends_with("README.md"))
    {
        let start = Instant::now();
        faults.extend(run_page(page, &code_blocks(&text)));
        println!("{}: {:.1} s", page.display(), start.elapsed().as_secs_f64());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_command_line_knows_every_command_of_the_documentation() {
    let files = all_files();
    let mut faults = Vec::new();
    let mut count = 0;
    for (page, text) in documents(&files) {
        // The flags of some builds are not in this one.
        let is_for_all = |block: &&CodeBlock| block.reason().is_none_or(|why| !why.contains("a build with"));
        for block in code_blocks(&text).iter().filter(|block| block.is_shell()).filter(is_for_all) {
            for words in block.command_lines() {
                count += 1;
                let parsed = millstream_cli::definition().try_get_matches_from(&words);
                // A value may be the name of a file that is not there.
                let is_fault = |e: &clap::Error| e.use_stderr() && e.kind() != ErrorKind::ValueValidation;
                let fault = parsed.err().filter(is_fault);
                faults.extend(fault.map(|e| format!("{}:{}: {words:?}\n{e}", page.display(), block.line)));
            }
        }
    }
    assert!(count > 50, "{count} commands");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
