use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::record::{CacheRecord, RecordError, RecordSigner, SigningKeys, checksum};
use super::{
    CacheHit, CachedAnswer, CachedVerdict, ProofCache, QueryDigest, StoreKey, StoreKeyError, TrustLevel,
};

fn entry(said: CachedVerdict) -> CachedAnswer {
    CachedAnswer { said, solver: "z3 5.4.0".into(), time: Duration::from_millis(7) }
}

fn key(n: u8) -> QueryDigest {
    QueryDigest([n; 32])
}

/// A directory of one test.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("millstream-cache-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// An answer of this process or this user.
fn own(entry: CachedAnswer) -> Option<CacheHit> {
    Some(CacheHit { entry, standing: TrustLevel::Own })
}

/// An answer that proves nothing.
fn hint(entry: CachedAnswer) -> Option<CacheHit> {
    Some(CacheHit { entry, standing: TrustLevel::Hint })
}

/// A key in a folder of its own.
fn secret(name: &str) -> StoreKey {
    let folder = directory(name);
    let key = StoreKey::load_or_create(&folder).expect("a key");
    std::fs::remove_dir_all(&folder).expect("gone");
    key
}

fn in_directory(directory: &Path, key: &StoreKey) -> ProofCache {
    ProofCache::in_memory().in_directory(directory, Some(key.clone())).expect("a cache")
}

#[test]
fn lines_are_read_as_they_were_written_and_their_author_is_known() {
    let (mine, team, other) = (secret("mine"), secret("team"), secret("other"));
    let keys = SigningKeys { user: Some(mine.clone()), team: Some(team.clone()), trust: true };
    for said in [
        CachedVerdict::Valid,
        CachedVerdict::Refuted(vec![]),
        CachedVerdict::Refuted(vec![(0, 5), (7, u64::MAX)]),
    ] {
        let signers = [
            (Some(&mine), RecordSigner::User),
            (Some(&team), RecordSigner::Team),
            (Some(&other), RecordSigner::Unknown),
            (None, RecordSigner::Unknown),
        ];
        for (with, signer) in signers {
            let written = CacheRecord::text(&key(3), &entry(said.clone()), with).expect("a line");
            let line = CacheRecord { key: key(3), entry: entry(said.clone()), signer };
            assert_eq!(CacheRecord::parse(&written, &keys), Ok(line));
        }
    }
}

#[test]
fn no_changed_line_is_taken() {
    let keys = SigningKeys::default();
    let written =
        CacheRecord::text(&key(3), &entry(CachedVerdict::Refuted(vec![(1, 2)])), None).expect("a line");
    for at in 0..written.len() {
        let mut bytes = written.clone().into_bytes();
        bytes[at] ^= 1;
        assert_eq!(
            CacheRecord::parse(&String::from_utf8_lossy(&bytes), &keys),
            Err(RecordError::Damaged),
            "byte {at} of {written}"
        );
        assert_eq!(CacheRecord::parse(&written[..at], &keys), Err(RecordError::Damaged));
    }
}

/// Anybody who can write to the store knows the checksum but no key: no change to a signed line keeps its
/// author.
#[test]
fn a_signature_is_over_question_answer_solver_and_version() {
    let team = secret("signed");
    let keys = SigningKeys { user: None, team: Some(team.clone()), trust: true };
    let written = CacheRecord::text(&key(3), &entry(CachedVerdict::Valid), Some(&team)).expect("a line");
    let (_, summed) = written.split_once(' ').expect("a checksum");
    let version = env!("CARGO_PKG_VERSION");
    let question = key(3).to_string();
    let other = key(4).to_string();
    for (from, to) in [
        (question.as_str(), other.as_str()),
        (" valid ", " refuted "),
        ("z3 5.4.0", "z3 5.4.1"),
        (version, "9.9.9"),
    ] {
        let changed = summed.replacen(from, to, 1);
        assert_ne!(changed, summed);
        let line =
            CacheRecord::parse(&format!("{} {changed}", checksum(&changed)), &keys).expect("a whole line");
        assert_eq!(line.signer, RecordSigner::Unknown, "{changed}");
    }
}

#[test]
fn lines_of_older_versions_are_ignored_and_are_no_damage() {
    let (directory, mine) = (directory("older"), secret("older-key"));
    // The first format had neither version nor tag.
    let first = format!("1 {} valid 144 - cvc5 1.0.3", key(1));
    let line = format!("{} {first}", checksum(&first));
    assert_eq!(CacheRecord::parse(&line, &SigningKeys::default()), Err(RecordError::OtherFormat));
    drop(in_directory(&directory, &mine));
    std::fs::write(directory.join("proofs.txt"), line + "\n").expect("written");
    let cache = in_directory(&directory, &mine);
    assert_eq!((cache.get(&key(1)), cache.stats().damaged), (None, 0));
}

#[test]
fn a_file_outlives_the_process_and_damage() {
    let (directory, mine) = (directory("file"), secret("file-key"));
    let cache = in_directory(&directory, &mine);
    cache.put(key(1), entry(CachedVerdict::Valid));
    cache.put(key(2), entry(CachedVerdict::Refuted(vec![(4, 9)])));
    cache.put(key(3), CachedAnswer { time: Duration::ZERO, ..entry(CachedVerdict::Valid) });
    assert_eq!(cache.get(&key(1)), own(entry(CachedVerdict::Valid)));
    assert_eq!(cache.stats().memory, 1);

    // One answer is made a lie, and the end is truncated.
    let file = directory.join("proofs.txt");
    let text = std::fs::read_to_string(&file).expect("the file");
    let lie = text.replacen(" refuted 7 4=9", " valid 7 -", 1) + "0123";
    assert_ne!(lie, text);
    std::fs::write(&file, lie).expect("written");

    let again = in_directory(&directory, &mine);
    assert_eq!(again.stats().damaged, 2);
    assert_eq!(again.get(&key(1)), own(entry(CachedVerdict::Valid)));
    assert_eq!(again.get(&key(2)), None);
    // An answer that took no time is not worth a line.
    assert_eq!(again.get(&key(3)), None);
    again.put(key(2), entry(CachedVerdict::Refuted(vec![(4, 9)])));
    let stats = again.stats();
    assert_eq!((stats.asked, stats.file, stats.memory), (3, 1, 0));

    let third = in_directory(&directory, &mine);
    assert_eq!(third.get(&key(2)), own(entry(CachedVerdict::Refuted(vec![(4, 9)]))));
    std::fs::remove_dir_all(&directory).expect("gone");
}

#[test]
fn what_others_wrote_or_could_have_written_into_the_folder_is_a_hint() {
    let (directory, mine) = (directory("elsewhere"), secret("elsewhere-key"));
    in_directory(&directory, &mine).put(key(1), entry(CachedVerdict::Valid));
    let file = directory.join("proofs.txt");
    // A whole line of somebody without the key, in front of the user's own and behind it.
    let forged = |n| CacheRecord::text(&key(n), &entry(CachedVerdict::Valid), None).expect("a line");
    let text = std::fs::read_to_string(&file).expect("the file");
    std::fs::write(&file, format!("{}\n{text}{}\n{}\n", forged(1), forged(1), forged(2))).expect("written");
    let cache = in_directory(&directory, &mine);
    assert_eq!(cache.get(&key(1)), own(entry(CachedVerdict::Valid)));
    assert_eq!(cache.get(&key(2)), hint(entry(CachedVerdict::Valid)));
    assert_eq!((cache.stats().file, cache.stats().hints), (1, 1));
    // Another user's key, and none.
    for key_of in [Some(secret("elsewhere-other")), None] {
        let cache = ProofCache::in_memory().in_directory(&directory, key_of).expect("a cache");
        assert_eq!(cache.get(&key(1)), hint(entry(CachedVerdict::Valid)));
    }
    // A folder, or a file, that others may write to.
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    };
    for path in [&directory, &file] {
        let before = std::fs::metadata(path).expect("there").permissions().mode();
        for open in [0o020, 0o002] {
            mode(path, before | open);
            let cache = in_directory(&directory, &mine);
            assert_eq!(cache.get(&key(1)), hint(entry(CachedVerdict::Valid)), "{path:?} {open:o}");
        }
        mode(path, before);
    }
    assert_eq!(in_directory(&directory, &mine).get(&key(1)), own(entry(CachedVerdict::Valid)));
    std::fs::remove_dir_all(&directory).expect("gone");
}

#[test]
fn links_and_pipes_in_the_place_of_the_file_are_refused() {
    let (directory, mine) = (directory("links"), secret("links-key"));
    std::fs::create_dir_all(&directory).expect("made");
    let (file, aim) = (directory.join("proofs.txt"), directory.join("aim"));
    std::fs::write(&aim, "precious").expect("written");
    let refused = || ProofCache::in_memory().in_directory(&directory, Some(mine.clone())).is_err();
    std::os::unix::fs::symlink(&aim, &file).expect("a link");
    assert!(refused(), "a symbolic link");
    std::fs::remove_file(&file).expect("gone");
    std::fs::hard_link(&aim, &file).expect("a link");
    assert!(refused(), "a hard link");
    std::fs::remove_file(&file).expect("gone");
    let made = Command::new("mkfifo").arg(&file).status().expect("mkfifo");
    assert!(made.success() && refused(), "a pipe");
    assert_eq!(std::fs::read_to_string(&aim).expect("it stays"), "precious");
    std::fs::remove_dir_all(&directory).expect("gone");
}

#[test]
fn a_key_is_a_long_secret_that_only_its_owner_may_read() {
    let folder = directory("keys");
    let made = StoreKey::load_or_create(&folder).expect("a key");
    assert_eq!(StoreKey::load_or_create(&folder).expect("the same"), made);
    let file = folder.join("answers.key");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    for mode in [0o640, 0o604, 0o620, 0o602] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changed");
        assert!(matches!(StoreKey::read(&file), Err(StoreKeyError::Exposed { .. })), "{mode:o}");
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("changed");
    std::fs::write(&file, "short\n").expect("written");
    assert!(matches!(StoreKey::read(&file), Err(StoreKeyError::Short { .. })));
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).expect("changed");
    assert!(matches!(StoreKey::load_or_create(&folder), Err(StoreKeyError::Exposed { .. })));
    std::fs::remove_dir_all(&folder).expect("gone");
}

#[test]
fn what_is_no_directory_is_an_error() {
    let path = directory("none");
    std::fs::write(&path, "a file").expect("written");
    assert!(ProofCache::in_memory().in_directory(&path, None).is_err());
    std::fs::remove_file(&path).expect("gone");
}

/// A server of our own, if one can be started.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn server(password: Option<&str>) -> Option<Server> {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    if let Some(password) = password {
        command.args(["--requirepass", password]);
    }
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = match child {
        Ok(child) => child,
        Err(e) => {
            assert!(std::env::var("CI").is_err(), "redis-server: {e}");
            eprintln!("skipped: redis-server: {e}");
            return None;
        }
    };
    let server = Server { child, port };
    for _ in 0..500 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Some(server);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("redis-server does not listen");
}

#[test]
fn machines_share_answers_over_redis() {
    let Some(server) = server(Some("secret")) else { return };
    let url = format!("redis://:secret@127.0.0.1:{}/2", server.port);
    let (team, other) = (secret("redis-team"), secret("redis-other"));
    let machine = |key: Option<(&StoreKey, bool)>| {
        let cache = ProofCache::in_memory();
        let cache = key.map_or(cache.clone(), |(key, trust)| cache.signed_by_team(key.clone(), trust));
        cache.on_redis(&url).expect("an address")
    };
    let one = machine(Some((&team, false)));
    let old = CachedAnswer { solver: "z3 4.8.12".into(), ..entry(CachedVerdict::Valid) };
    one.put(key(1), old.clone());
    one.put(key(2), entry(CachedVerdict::Refuted(vec![(1, 2)])));
    let trusted = |entry: CachedAnswer| Some(CacheHit { entry, standing: TrustLevel::Trusted });
    // Another machine, with another solver: it learns which solver gave the answer.
    let two = machine(Some((&team, true)));
    assert_eq!(two.get(&key(1)), trusted(old.clone()));
    assert_eq!(two.get(&key(2)), trusted(entry(CachedVerdict::Refuted(vec![(1, 2)]))));
    assert_eq!(two.get(&key(3)), None);
    assert_eq!(two.get(&key(1)), trusted(old.clone()));
    let stats = two.stats();
    assert_eq!((stats.asked, stats.redis, stats.memory, stats.trusted, stats.hints), (4, 2, 1, 3, 0));
    // Without the key, with another one, or without trust it is a hint.
    for key_of in [None, Some((&other, true)), Some((&team, false))] {
        let three = machine(key_of);
        assert_eq!(three.get(&key(1)), hint(old.clone()), "{key_of:?}");
        let stats = three.stats();
        assert_eq!((stats.redis, stats.trusted, stats.hints), (0, 0, 1), "{key_of:?}");
        // An answer of a solver here then counts.
        three.put(key(1), entry(CachedVerdict::Valid));
        assert_eq!(three.get(&key(1)), own(entry(CachedVerdict::Valid)));
        one.put(key(1), old.clone());
    }

    // An entry that somebody else wrote there is no answer: neither an answer to another question nor a word.
    let stolen = CacheRecord::text(&key(1), &entry(CachedVerdict::Valid), Some(&team)).expect("a line");
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    let set = |key: QueryDigest, text: &str| {
        let name = format!("millstream:proof:{key}");
        format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n{text}\r\n", name.len(), text.len())
    };
    let script = format!(
        "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n2\r\n{}{}",
        set(key(4), &stolen),
        set(key(5), "valid")
    );
    raw.write_all(script.as_bytes()).expect("told");
    let mut answers = [0; 20];
    std::io::Read::read_exact(&mut raw, &mut answers).expect("four times OK");
    let three = machine(Some((&team, true)));
    assert_eq!((three.get(&key(4)), three.get(&key(5))), (None, None));
    assert_eq!(three.stats().damaged, 2);
}

#[test]
fn a_server_that_goes_away_is_done_without() {
    let Some(server) = server(None) else { return };
    let cache =
        ProofCache::in_memory().on_redis(&format!("redis://127.0.0.1:{}", server.port)).expect("an address");
    cache.put(key(1), entry(CachedVerdict::Valid));
    drop(server);
    cache.put(key(2), entry(CachedVerdict::Valid));
    assert_eq!(cache.get(&key(1)), own(entry(CachedVerdict::Valid)));
    assert_eq!(cache.get(&key(2)), own(entry(CachedVerdict::Valid)));
    assert_eq!(cache.get(&key(3)), None);
}

/// A server that handles each connection with this function.
fn speaker(speak: impl Fn(std::net::TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(speak));
    format!("redis://127.0.0.1:{port}")
}

/// A server is given up after the patience is over, in whatever way it fails to answer: one deadline holds
/// for a whole exchange. It is not asked again. (The bound is many times the limit, for busy machines.)
fn is_given_up(url: &str) {
    let cache = ProofCache::in_memory().on_redis(url).expect("an address");
    let start = std::time::Instant::now();
    for n in 0..20 {
        assert_eq!(cache.get(&key(n)), None);
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for() {
    // Connected, since the system accepts for it, but nobody reads.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    is_given_up(&format!("redis://127.0.0.1:{port}"));
    is_given_up(&format!("rediss://127.0.0.1:{port}"));
}

#[test]
fn a_server_that_trickles_is_given_up() {
    let url = speaker(|mut stream| {
        let text = "$100000\r\n".bytes().chain(std::iter::repeat(b'x'));
        for byte in text {
            if stream.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    is_given_up(&url);
    // Whole answers, each a little before the deadline.
    let url = speaker(|mut stream| {
        let mut asked = [0; 4096];
        while std::io::Read::read(&mut stream, &mut asked).is_ok_and(|n| n > 0) {
            std::thread::sleep(Duration::from_millis(700));
            let _ = stream.write_all(b"$-1\r\n");
        }
    });
    is_given_up(&url);
}

#[test]
fn a_server_that_floods_is_given_up_in_bounded_memory() {
    for head in ["$1000000000\r\n", "*1000000\r\n", "+"] {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let url = speaker(move |mut stream| {
            let _ = stream.write_all(head.as_bytes());
            let chunk = [b'x'; 1 << 16];
            while stream.write_all(&chunk).is_ok() {
                count.fetch_add(chunk.len(), Ordering::Relaxed);
            }
        });
        is_given_up(&url);
        // The bytes read, and those that the system buffers for both sides.
        let taken = sent.load(Ordering::Relaxed);
        assert!(taken < 64 << 20, "{head:?}: {taken} bytes were taken");
    }
}

#[test]
fn addresses_are_read() {
    for url in
        ["redis://host", "redis://host:1/3", "redis://:p@host/", "redis://u:p@[::1]:6379/0", "rediss://host"]
    {
        assert!(ProofCache::in_memory().on_redis(url).is_ok(), "{url}");
    }
    for url in [
        "http://host",
        "redis://",
        "redis://host/x",
        "redis://p@host",
        "host:6379",
        "redis://:70",
        "unix:///there",
        // Would be accepted by the crate and ignored here.
        "rediss://host/#insecure",
        "redis://host?protocol=resp3",
    ] {
        assert!(ProofCache::in_memory().on_redis(url).is_err(), "{url}");
    }
    let error =
        ProofCache::in_memory().on_redis("redis://:hidden@host/x").expect_err("no database").to_string();
    assert!(error.contains("host/x") && !error.contains("hidden"), "{error}");
    for (url, private) in [
        ("redis://host", false),
        ("redis://127.0.0.1", true),
        ("redis://[::1]:7", true),
        ("redis://localhost", true),
        ("redis://127.0.0.1.example.org", false),
        ("rediss://host", true),
    ] {
        assert_eq!(ProofCache::is_private_address(url), Ok(private), "{url}");
    }
}
