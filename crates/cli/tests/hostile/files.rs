//! A folder with files of every kind that commands read: usable ones, broken copies of these, and others.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_programs::{BALANCER, FIREWALL, NAT, ROUTER, SWITCH};
use millstream_rng::Rng;

use crate::commands::pick;

/// The folder, which is removed on drop.
pub(crate) struct Files {
    folder: PathBuf,
    usable: Vec<(OsString, Vec<u8>)>,
    hostile: Vec<OsString>,
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

const CLICK: &str = "FromDump(capture.pcap, STOP true) -> c :: Classifier(12/0800, -);
c[0] -> Strip(14) -> CheckIPHeader -> rt :: RadixIPLookup(0.0.0.0/0 0, 10.0.0.0/8 1) -> Discard;
rt[1] -> DecIPTTL -> Print(x) -> q :: Queue(10) -> Unqueue -> ToDump(out.pcap);
c[1] -> Discard; Script(print c.name, wait 0.01, stop)";

const DAEMON: &str = "socket = \"daemon.sock\"\n[[program]]\nname = \"edge\"\nobject = \"router.o\"\n\
    interfaces = [\"none0\"]\n";

const CONTROL: &str = r#"{"interfaces": ["none0"],
"routes": [{"prefix": "10.0.0.0/8", "via": "10.0.0.1", "dev": "none0"}],
"addresses": ["10.0.0.1/24"], "rules": [{"protocol": "tcp", "action": "drop"}]}"#;

const RULES: &str = "(add.64 x #0) => x\n(mul.64 x #2) => (shl.64 x #1)\n";

/// A capture file (draft-ietf-opsawg-pcap) of Ethernet frames.
fn capture() -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = words(&[0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1]);
    for length in [14, 60, 64, 200, 1514] {
        let mut packet = vec![0x45; length as usize];
        packet[12..14].copy_from_slice(&[8, 0]);
        file.extend(words(&[length, 0, length, length]));
        file.extend(packet);
    }
    file
}

impl Files {
    /// A new folder whose name begins with `name`.
    pub(crate) fn new(name: &str) -> Files {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let mut files = Files { folder, usable: Vec::new(), hostile: Vec::new() };
        for program in [ROUTER, SWITCH, FIREWALL, NAT, BALANCER] {
            files.put(format!("{}.o", program.name), program.object.to_vec());
        }
        let capture = capture();
        files.put("capture.pcap", capture.clone());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&capture).unwrap();
        files.put("capture.pcap.gz", gzip.finish().unwrap());
        files.put("frame.bin", vec![0x45; 64]);
        files.put("graph.click", CLICK.into());
        files.put("daemon.toml", DAEMON.into());
        files.put("control.json", CONTROL.into());
        files.put("rules.txt", RULES.into());
        files.put("prog.insns", [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0].to_vec());
        files.put("exec.hex", b"b700000001000000 9500000000000000".to_vec());
        files.make_hostile();
        files
    }

    fn put(&mut self, name: impl Into<OsString>, bytes: Vec<u8>) {
        let name = name.into();
        fs::write(self.folder.join(&name), &bytes).unwrap();
        self.usable.push((name, bytes));
    }

    fn bad(&mut self, name: impl AsRef<OsStr>, bytes: &[u8]) {
        fs::write(self.folder.join(name.as_ref()), bytes).unwrap();
        self.hostile.push(name.as_ref().to_owned());
    }

    fn make_hostile(&mut self) {
        self.bad("empty", b"");
        self.bad("empty.o", b"");
        self.bad("bracket.click", b"a :: {");
        self.bad("bracket2.click", b"FromDump(x, ");
        self.bad("quote.click", b"Script(print \"");
        let mut long = "x".repeat(70_000);
        self.bad("long.click", format!("Idle -> {long}(1, 2 -> Discard;").as_bytes());
        self.bad("longer.click", format!("define($a {long}); Idle -> Print($b) -> Discard(;").as_bytes());
        self.bad("deep.click", "{".repeat(100_000).as_bytes());
        self.bad("deeper.click", "a :: { b :: ".repeat(3000).as_bytes());
        self.bad("elementclass.click", b"elementclass A { A } a :: A;");
        self.bad("deep.json", "[".repeat(100_000).as_bytes());
        self.bad("deep2.json", "{\"a\":".repeat(100_000).as_bytes());
        self.bad("deep.toml", format!("a = {}", "[".repeat(100_000)).as_bytes());
        self.bad("deep.txt", "(add.64 ".repeat(20_000).as_bytes());
        self.bad("latin1.click", b"// \xe9\xff\nIdle -> Discard;");
        self.bad("nul", &[0; 4096]);
        self.bad("ones", &[0xff; 4096]);
        self.bad("elf.o", b"\x7fELF\x02\x01\x01");
        self.bad("gzip.gz", b"\x1f\x8b\x08\0\0\0\0\0");
        self.bad("odd.hex", b"b7 0");
        self.bad("lines.click", "\n".repeat(70_000).as_bytes());
        long.push('"');
        self.bad("long.json", format!("{{\"{long}: 1").as_bytes());
        let strange = OsString::from_vec(b"\xff\xfe \x1b[31m\n.click".to_vec());
        self.bad(&strange, CLICK.as_bytes());
        let strange = OsString::from_vec(b"\xff.o".to_vec());
        self.bad(&strange, ROUTER.object);
        fs::create_dir(self.folder.join("folder.o")).unwrap();
        // Without a writer: a command that opens it to read waits, and is killed.
        let _ = Command::new("mkfifo").arg(self.folder.join("fifo.pcap")).status();
        let _ = std::os::unix::fs::symlink("loop.o", self.folder.join("loop.o"));
        for name in [
            "folder.o",
            "fifo.pcap",
            "loop.o",
            "missing.o",
            "missing/x",
            "/dev/full",
            "/dev/null",
            "/proc/self/mem",
        ] {
            self.hostile.push(name.into());
        }
    }

    /// Working directory of commands, so that files they write by name stay here.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The name of a usable file.
    pub(crate) fn usable(&self, name: &str) -> OsString {
        assert!(self.folder.join(name).exists(), "{name}");
        name.into()
    }

    /// Name of a random file: usable, a broken copy, or something else.
    pub(crate) fn drawn(&self, rng: &mut Rng) -> OsString {
        match rng.below(10) {
            0..5 => pick(rng, &self.usable).0,
            5..8 => self.broken(rng),
            _ => pick(rng, &self.hostile),
        }
    }

    /// A copy of a usable file that is cut short, or has some bytes changed.
    fn broken(&self, rng: &mut Rng) -> OsString {
        let (name, mut bytes) = pick(rng, &self.usable);
        let length = bytes.len() as u64;
        match rng.below(4) {
            0 => bytes.truncate(rng.below(length) as usize),
            1 => {
                let (at, more) = (rng.below(length) as usize, rng.below(300) as usize);
                let piece: Vec<u8> = bytes[at..].iter().copied().take(more).collect();
                bytes.splice(at..at, piece);
            }
            _ => {
                // Headers are read first: half of the changes are there.
                for _ in 0..1 + rng.below(8) {
                    let within = if rng.below(2) == 0 { length.min(256) } else { length };
                    let values = [0, 1, 0x7f, 0x80, 0xff, rng.below(256) as u8];
                    bytes[rng.below(within) as usize] = pick(rng, &values);
                }
            }
        }
        let mut broken = OsString::from(format!("broken{}-", rng.below(8)));
        broken.push(OsStr::from_bytes(name.as_bytes()));
        fs::write(self.folder.join(&broken), bytes).unwrap();
        broken
    }
}
