//! The page of `daemon --web`: its data as any client gets them, and what Chromium shows, where it is installed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;

use millstream_kernel::{Namespace, interface_index, set_up, testing};
use serde_json::Value;

use super::{Daemon, namespace, router_on};
use crate::messages::says;
use crate::session::Place;

/// Address of the page in the daemon's namespace.
const ADDRESS: &str = "127.0.0.1:9472";
/// Token of the page.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Gives the daemon of a router with this page, and its namespace, to `act`.
fn with_page(name: &str, interface: &str, act: impl FnOnce(&Namespace, &Daemon<'_>)) {
    let namespace = namespace(&[interface]);
    namespace.enter(|| set_up(interface_index("lo").unwrap()).unwrap()).unwrap();
    let place = Place::new(name);
    let token = place.files.join("token");
    std::fs::write(&token, TOKEN).unwrap();
    says(&Command::new("chmod").arg("600").arg(&token).output().unwrap(), 0, &[]);
    let config = format!("web = {ADDRESS:?}\n{}", router_on("core", &[interface]));
    let daemon = Daemon::with(&namespace, &place, &config, &["--web-token", token.to_str().unwrap()]);
    daemon.until_state("core", "running");
    act(&namespace, &daemon);
}

/// The first event of this name that meets a condition.
fn event(namespace: &Namespace, name: &str, wanted: impl Fn(&Value) -> bool + Sync) -> Value {
    let read = || {
        let mut stream = TcpStream::connect(ADDRESS).unwrap();
        write!(stream, "GET /events HTTP/1.1\r\nHost: {ADDRESS}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n")
            .unwrap();
        let mut lines = BufReader::new(stream).lines().map(|line| line.unwrap());
        loop {
            assert!(lines.any(|line| line == format!("event: {name}")), "no event {name}");
            let data = lines.next().expect("its data");
            let data = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            if wanted(&data) {
                return data;
            }
        }
    };
    namespace.enter(read).unwrap()
}

#[test]
fn events_have_status_lookups_and_history() {
    if !testing::require() {
        return;
    }
    with_page("page_events", "pg0", |namespace, daemon| {
        let status = event(namespace, "status", |_| true);
        assert_eq!(status["schema"], 2);
        assert_eq!(status["programs"][0]["name"], "core");
        let details = event(namespace, "details", |_| true);
        let lookups = details["details"]["lookups"].as_array().unwrap();
        assert!(lookups.iter().any(|lookup| lookup["map"] == "routes"), "{details}");
        let history = event(namespace, "history", |_| true);
        assert!(history["records"].as_array().is_some_and(|records| !records.is_empty()), "{history}");
        // Orders by the socket are seen.
        says(&daemon.ask(&["pause"]), 0, &[]);
        event(namespace, "status", |status| status["programs"][0]["state"] == "paused");
    });
}

/// The page's elements as Chromium has them after some seconds.
fn shown(namespace: &Namespace, fragment: &str) -> Option<String> {
    let mut chromium = Command::new("chromium");
    chromium.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=8000",
        "--dump-dom",
    ]);
    chromium.arg(format!("http://{ADDRESS}/{fragment}"));
    match namespace.enter(|| chromium.output()).unwrap() {
        Ok(out) => Some(String::from_utf8_lossy(&out.stdout).into_owned()),
        Err(_) => None,
    }
}

#[test]
fn chromium_shows_the_program_and_asks_for_a_token() {
    if !testing::require() {
        return;
    }
    with_page("page_shown", "pg1", |namespace, _| {
        let Some(page) = shown(namespace, &format!("#{TOKEN}")) else {
            return eprintln!("skipped: Chromium is not installed");
        };
        for text in [">live<", ">running<", "pg1 (native)", "attached to pg1"] {
            assert!(page.contains(text), "{text} is not in {page}");
        }
        for fragment in ["", "#wrong"] {
            let page = shown(namespace, fragment).unwrap();
            assert!(page.contains("a token is needed") && !page.contains(">running<"), "{page}");
        }
    });
}
