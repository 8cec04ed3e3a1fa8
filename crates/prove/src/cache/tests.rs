use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Cache, Entry, Key, Said, line, parsed};

fn entry(said: Said) -> Entry {
    Entry { said, solver: "z3 5.4.0".into(), time: Duration::from_millis(7) }
}

fn key(n: u8) -> Key {
    Key([n; 32])
}

/// A directory of one test.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("millstream-cache-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

#[test]
fn lines_are_read_as_they_were_written() {
    for said in [Said::Valid, Said::Refuted(vec![]), Said::Refuted(vec![(0, 5), (7, u64::MAX)])] {
        let written = line(&key(3), &entry(said.clone())).expect("a line");
        assert_eq!(parsed(&written), Some((key(3), entry(said))));
    }
}

#[test]
fn no_changed_line_is_taken() {
    let written = line(&key(3), &entry(Said::Refuted(vec![(1, 2)]))).expect("a line");
    for at in 0..written.len() {
        let mut bytes = written.clone().into_bytes();
        bytes[at] ^= 1;
        assert_eq!(parsed(&String::from_utf8_lossy(&bytes)), None, "byte {at} of {written}");
        assert_eq!(parsed(&written[..at]), None);
    }
}

#[test]
fn a_file_outlives_the_process_and_damage() {
    let directory = directory("file");
    let cache = Cache::in_directory(&directory).expect("a cache");
    cache.put(key(1), entry(Said::Valid));
    cache.put(key(2), entry(Said::Refuted(vec![(4, 9)])));
    cache.put(key(3), Entry { time: Duration::ZERO, ..entry(Said::Valid) });
    assert_eq!(cache.get(&key(1)), Some(entry(Said::Valid)));
    assert_eq!(cache.stats().memory, 1);

    // One answer is made a lie, and the end is cut off.
    let file = directory.join("proofs.txt");
    let text = std::fs::read_to_string(&file).expect("the file");
    let lie = text.replacen(" refuted 7 4=9", " valid 7 -", 1) + "0123";
    assert_ne!(lie, text);
    std::fs::write(&file, lie).expect("written");

    let again = Cache::in_directory(&directory).expect("a cache");
    assert_eq!(again.stats().damaged, 2);
    assert_eq!(again.get(&key(1)), Some(entry(Said::Valid)));
    assert_eq!(again.get(&key(2)), None);
    // What was answered at once is not worth a line.
    assert_eq!(again.get(&key(3)), None);
    again.put(key(2), entry(Said::Refuted(vec![(4, 9)])));
    let stats = again.stats();
    assert_eq!((stats.asked, stats.file, stats.memory), (3, 1, 0));

    let third = Cache::in_directory(&directory).expect("a cache");
    assert_eq!(third.get(&key(2)), Some(entry(Said::Refuted(vec![(4, 9)]))));
    std::fs::remove_dir_all(&directory).expect("gone");
}

#[test]
fn what_is_no_directory_is_an_error() {
    let path = directory("none");
    std::fs::write(&path, "a file").expect("written");
    assert!(Cache::in_directory(&path).is_err());
    std::fs::remove_file(&path).expect("gone");
}

/// A server of our own, if there is one to start.
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
    let machine = || Cache::in_memory().on_redis(&url).expect("an address");
    let (one, two) = (machine(), machine());
    let old = Entry { solver: "z3 4.8.12".into(), ..entry(Said::Valid) };
    one.put(key(1), old.clone());
    one.put(key(2), entry(Said::Refuted(vec![(1, 2)])));
    // Another machine, with another solver: it learns whose answer it is.
    assert_eq!(two.get(&key(1)), Some(old.clone()));
    assert_eq!(two.get(&key(2)), Some(entry(Said::Refuted(vec![(1, 2)]))));
    assert_eq!(two.get(&key(3)), None);
    assert_eq!(two.get(&key(1)), Some(old));
    let stats = two.stats();
    assert_eq!((stats.asked, stats.redis, stats.memory), (4, 2, 1));

    // What somebody else wrote there is no answer: neither an answer to another question nor a word.
    let stolen = line(&key(1), &entry(Said::Valid)).expect("a line");
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    let set = |key: Key, text: &str| {
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
    let three = machine();
    assert_eq!((three.get(&key(4)), three.get(&key(5))), (None, None));
    assert_eq!(three.stats().damaged, 2);
}

#[test]
fn a_server_that_goes_away_is_done_without() {
    let Some(server) = server(None) else { return };
    let cache =
        Cache::in_memory().on_redis(&format!("redis://127.0.0.1:{}", server.port)).expect("an address");
    cache.put(key(1), entry(Said::Valid));
    drop(server);
    cache.put(key(2), entry(Said::Valid));
    assert_eq!(cache.get(&key(1)), Some(entry(Said::Valid)));
    assert_eq!(cache.get(&key(2)), Some(entry(Said::Valid)));
    assert_eq!(cache.get(&key(3)), None);
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let cache = Cache::in_memory().on_redis(&format!("redis://127.0.0.1:{port}")).expect("an address");
    let start = std::time::Instant::now();
    for n in 0..20 {
        assert_eq!(cache.get(&key(n)), None);
    }
    // Once its patience, not twenty times.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn addresses_are_read() {
    for url in ["redis://host", "redis://host:1/3", "redis://:p@host/", "redis://u:p@[::1]:6379/0"] {
        assert!(Cache::in_memory().on_redis(url).is_ok(), "{url}");
    }
    for url in ["http://host", "redis://", "redis://host/x", "redis://p@host", "host:6379", "redis://:70"] {
        assert!(Cache::in_memory().on_redis(url).is_err(), "{url}");
    }
}
