//! Bundles in registries: a real one, and ones that lie.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Files;
use millstream_bundle::{Bundle, PartRole};

/// Runs a command; returns its exit code and all that it printed.
fn run(files: &Files, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    for name in ["MILLSTREAM_STORE_KEY", "MILLSTREAM_REGISTRY_CREDENTIALS", "MILLSTREAM_REDIS"] {
        command.env_remove(name);
    }
    command.args(arguments).env("NO_COLOR", "1").env("NO_PROXY", "*").current_dir(&files.0);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code().unwrap(), said.concat())
}

fn bundle() -> Bundle {
    let parts = [
        (PartRole::Original, "a.o".to_owned(), b"original".to_vec()),
        (PartRole::Rules, "rules".to_owned(), vec![b'r'; 100_000]),
    ];
    Bundle::new("test", parts).unwrap().with_signature("hmac-sha256:00".to_owned())
}

/// Debian's registry, on a free port and in a folder of the test's own.
struct DockerRegistry {
    child: Child,
    host: String,
}

impl DockerRegistry {
    /// The registry; none, with the reason, if it is not installed.
    fn start(files: &Files) -> Option<DockerRegistry> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let host = format!("127.0.0.1:{port}");
        let config = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\n\
             http: {{ addr: \"{host}\" }}\n",
            files.path("storage")
        );
        std::fs::write(files.path("registry.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.args(["serve", &files.path("registry.yml")]).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            assert!(std::env::var("CI").is_err(), "no docker-registry: scripts/setup.sh installs it");
            println!("skipped: docker-registry is not installed");
            return None;
        };
        let registry = DockerRegistry { child, host };
        while TcpStream::connect(&registry.host).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(registry)
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_bundle_comes_back_from_a_registry_as_it_was() {
    let files = Files::new("registry-real");
    let Some(registry) = DockerRegistry::start(&files) else { return };
    bundle().write(Path::new(&files.path("b.tar"))).unwrap();
    let tagged = format!("{}/team/router:1.0", registry.host);
    let (code, pushed) = run(&files, &["bundle", "push", "b.tar", &tagged, "--plain-http"]);
    assert_eq!(code, 0, "{pushed}");
    // A second time: the blobs are there.
    assert_eq!(run(&files, &["bundle", "push", "b.tar", &tagged, "--plain-http"]), (0, pushed.clone()));
    let by_digest = format!("{}/team/router@{}", registry.host, pushed.trim());
    for (place, output) in [(&tagged, "tag.tar"), (&by_digest, "digest.tar")] {
        let (code, said) = run(&files, &["bundle", "pull", place, "-o", output, "--plain-http"]);
        assert_eq!(code, 0, "{said}");
        assert!(std::fs::read(files.path(output)).unwrap() == std::fs::read(files.path("b.tar")).unwrap());
    }
    let absent = format!("{}/team/router:2.0", registry.host);
    let (code, said) = run(&files, &["bundle", "pull", &absent, "-o", "no.tar", "--plain-http"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("404"), "{said}");
    // Without the flag, TLS is asked for.
    let (code, said) = run(&files, &["bundle", "pull", &tagged, "-o", "no.tar"]);
    assert_eq!(code, 2, "{said}");
    assert!(!Path::new(&files.path("no.tar")).exists());
}

/// A request as a server sees it: its first line and its headers.
type Answerer = dyn Fn(&str, &mut TcpStream) + Send + Sync;

/// A server that answers each request, one a connection.
fn serve(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let answer: Arc<Answerer> = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut head = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|n| n > 0) {}
                answer(&head, &mut stream);
            });
        }
    });
    host
}

fn reply(stream: &mut TcpStream, head: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// The blob or manifest that a request is about.
fn wanted(head: &str) -> Vec<u8> {
    let bundle = bundle();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let blob = bundle.blobs().into_iter().find(|(blob, _)| path.ends_with(&blob.digest.to_string()));
    blob.map_or_else(|| bundle.manifest().unwrap(), |(_, data)| data.to_vec())
}

fn is_blob(head: &str) -> bool {
    head.contains("/blobs/")
}

/// Pulls from a server; returns the exit code and all that was printed.
fn pull(files: &Files, host: &str, flags: &[&str]) -> (i32, String) {
    let place = format!("{host}/a/b:c");
    run(files, &[&["bundle", "pull", &place, "-o", "b.tar", "--plain-http"], flags].concat())
}

#[test]
fn a_registry_that_lies_is_refused() {
    let files = Files::new("registry-lies");
    let honest = serve(|head, stream| reply(stream, "200 OK", &wanted(head)));
    assert_eq!(pull(&files, &honest, &[]), (0, String::new()));
    std::fs::remove_file(files.path("b.tar")).unwrap();

    let other_bytes = serve(|head, stream| {
        let mut data = wanted(head);
        data[0] ^= u8::from(is_blob(head));
        reply(stream, "200 OK", &data);
    });
    let longer = serve(|head, stream| {
        let more: &[u8] = if is_blob(head) { b"more" } else { b"" };
        reply(stream, "200 OK", &[&wanted(head), more].concat());
    });
    let endless = serve(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
    });
    let cut = serve(|head, stream| {
        let data = wanted(head);
        let length = if is_blob(head) { data.len() / 2 } else { data.len() };
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", data.len());
        let _ = stream.write_all(&[head.as_bytes(), &data[..length]].concat());
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let no_json = serve(|_, stream| reply(stream, "200 OK", b"<html>"));
    let no_http = serve(|_, stream| drop(stream.write_all(&[0x1b; 1000])));
    let loops = serve(|head, stream| {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        reply(stream, &format!("302 Found\r\nLocation: {path}"), b"");
    });
    let elsewhere = serve(|_, stream| {
        let challenge = "401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://192.0.2.1/token\"";
        reply(stream, challenge, b"");
    });
    let cases = [
        (other_bytes, "other bytes than its digest"),
        (longer, "another length"),
        (endless, "too large"),
        (cut, ""),
        (no_json, "another form"),
        (no_http, ""),
        (loops, "redirect"),
        (elsewhere, "token service is elsewhere"),
    ];
    for (host, reason) in cases {
        let (code, said) = pull(&files, &host, &[]);
        assert_eq!(code, 2, "{reason}: {said}");
        assert!(said.contains(reason) && !said.contains('\u{1b}'), "{reason}: {said}");
        assert!(!Path::new(&files.path("b.tar")).exists(), "{reason}");
    }
}

#[test]
fn a_registry_that_trickles_holds_nobody_beyond_the_deadline() {
    let files = Files::new("registry-trickles");
    let host = serve(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let start = Instant::now();
    let (code, said) = pull(&files, &host, &["--time", "1"]);
    assert_eq!(code, 2, "{said}");
    // The answer alone would take 100 s.
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// `user:secret` as a header has it.
const BASIC: &str = "Basic dXNlcjpzZWNyZXQ=";

#[test]
fn credentials_go_to_the_registry_that_asks_for_them_only() {
    let files = Files::new("registry-login");
    std::fs::write(files.path("login"), "user:secret\n").unwrap();
    let set = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(files.path("login"), mode).unwrap();
    };
    set(0o600);
    let stranger = serve(|head, stream| {
        let leaked = head.to_ascii_lowercase().contains("authorization");
        reply(stream, "200 OK", if leaked { b"leaked" } else { b"original" });
    });
    // Wants the credentials for a token, and the token for the rest; the original object is elsewhere.
    let registry = serve(move |head, stream| {
        let host =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("host: ").map(str::to_owned));
        let (host, has) = (host.unwrap_or_default(), |value: &str| head.contains(value));
        match () {
            () if has("GET /token?") && has(BASIC) => reply(stream, "200 OK", br#"{"token":"T"}"#),
            () if has("Bearer T") && wanted(head) == b"original" => {
                reply(stream, &format!("307 Elsewhere\r\nLocation: http://{stranger}/blob"), b"");
            }
            () if has("Bearer T") => reply(stream, "200 OK", &wanted(head)),
            () => {
                let realm =
                    format!("Bearer realm=\"http://{host}/token\",scope=\"repository:a/b:pull,push\"");
                reply(stream, &format!("401 Unauthorized\r\nWWW-Authenticate: {realm}"), b"");
            }
        }
    });
    let (code, said) = pull(&files, &registry, &["--credentials", "login"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = pull(&files, &registry, &[]);
    assert_eq!(code, 2, "{said}");
    set(0o644);
    let (code, said) = pull(&files, &registry, &["--credentials", "login"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("chmod"), "{said}");
}
