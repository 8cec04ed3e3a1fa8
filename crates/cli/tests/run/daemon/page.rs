//! The page of `daemon --web`: its data as any client gets them, and what Chromium shows, where it is installed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use millstream_kernel::{Namespace, interface_index, set_up, testing};
use millstream_programs::router;
use millstream_programs::traffic::FlowLocality;
use serde_json::{Value, json};

use super::browser::{Browser, ENTER, TAB};
use super::{Daemon, fill, namespace, router_on, under_load};
use crate::messages::says;
use crate::session::Place;

/// Address of the page in the daemon's namespace.
const ADDRESS: &str = "127.0.0.1:9472";
/// Token of the page.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Gives the daemon of a router with this page, and its namespace, to `act`.
fn with_page(name: &str, interface: &str, act: impl FnOnce(&Namespace, &Daemon<'_>, &Place)) {
    let namespace = namespace(&[interface]);
    namespace.enter(|| set_up(interface_index("lo").unwrap()).unwrap()).unwrap();
    let place = Place::new(name);
    let token = written_token(&place);
    let config = format!("web = {ADDRESS:?}\n{}", router_on("core", &[interface]));
    let daemon = Daemon::with(&namespace, &place, &config, &["--web-token", &token]);
    daemon.until_state("core", "running");
    act(&namespace, &daemon, &place);
}

/// Path of a file with the token, which only its owner may read.
fn written_token(place: &Place) -> String {
    let token = place.files.join("token");
    std::fs::write(&token, TOKEN).unwrap();
    says(&Command::new("chmod").arg("600").arg(&token).output().unwrap(), 0, &[]);
    token.display().to_string()
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
    with_page("page_events", "pg0", |namespace, daemon, _| {
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

/// A document of the page.
fn document(namespace: &Namespace, path: &str) -> Value {
    let read = || {
        let mut stream = TcpStream::connect(ADDRESS).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains("application/json"), "{head}");
        serde_json::from_str(body).expect("JSON")
    };
    namespace.enter(read).unwrap()
}

#[test]
fn the_code_of_a_program_is_a_document() {
    if !testing::require() {
        return;
    }
    with_page("page_code", "pgc", |namespace, _, _| {
        let code = document(namespace, "/data/code?core");
        assert_eq!((&code["schema"], &code["code"]["generation"]), (&json!(2), &json!(0)));
        let lines = code["code"]["lines"].as_array().expect("lines");
        assert!(
            lines.iter().any(|line| line["source"].as_str().is_some_and(|s| s.starts_with("router.bpf.c:")))
        );
        let calls_map = |text: &Value| text.as_str().is_some_and(|text| text.contains("map[routes]"));
        assert!(
            lines.iter().any(|line| line["original"].as_array().unwrap().iter().any(calls_map)),
            "{code}"
        );
        assert!(lines.iter().all(|line| line["variant"].as_array().unwrap().is_empty()), "{code}");
        assert_eq!(document(namespace, "/data/code?co%20re")["answer"], "refused");
    });
}

/// Gives a browser with the page of a router to `act`, if Chromium is installed.
fn with_browser(
    name: &str,
    interface: &str,
    size: (u32, u32),
    act: impl FnOnce(&Browser<'_>, &Daemon<'_>, &Place),
) {
    if !testing::require() {
        return;
    }
    with_page(name, interface, |namespace, daemon, place| {
        let Some(browser) = Browser::start(namespace, size) else {
            return eprintln!("skipped: Chromium and chromedriver are not installed");
        };
        browser.open(&format!("http://{ADDRESS}/#{TOKEN}"));
        browser.until("document.getElementById('connection').textContent === 'live'");
        browser.until("document.querySelectorAll('#programs tbody tr').length > 0");
        act(&browser, daemon, place);
    });
}

/// Size of a screen on a desk, and of one in a hand, in CSS pixels.
const WIDE: (u32, u32) = (1920, 1080);
const NARROW: (u32, u32) = (360, 740);

/// Condition that a text is in an element.
fn shows(element: &str, text: &str) -> String {
    format!("document.querySelector({element:?}).innerText.includes({text:?})")
}

#[test]
fn the_page_shows_a_program_and_its_interface() {
    with_browser("page_shown", "pg1", WIDE, |browser, _, _| {
        for text in ["core", "running", "pg1 (native)"] {
            browser.until(&shows("#programs", text));
        }
        browser.until(&shows("#events", "attached to pg1"));
        browser.until(&shows("#lookups", "routes"));
        browser.until(&shows("#facts", "router"));
    });
}

#[test]
fn the_token_leaves_the_address_and_stays_in_the_tab() {
    with_browser("page_token", "pg2", WIDE, |browser, _, _| {
        assert_eq!(browser.value("location.hash"), "");
        browser.open(&format!("http://{ADDRESS}/"));
        browser.until(&shows("#programs", "running"));
    });
}

#[test]
fn a_token_that_is_wrong_is_asked_for_again() {
    with_browser("page_asked", "pg3", WIDE, |browser, _, _| {
        browser.open("about:blank");
        browser.open(&format!("http://{ADDRESS}/#wrong"));
        browser.until(&shows("#connection", "a token is needed"));
        assert_eq!(browser.value("document.querySelectorAll('#programs tbody tr').length"), 0);
        // The field has the focus.
        browser.press("wrong again");
        browser.press(&ENTER.to_string());
        browser
            .until("!document.getElementById('ask').hidden && document.getElementById('token').value === ''");
        browser.press(TOKEN);
        browser.press(&ENTER.to_string());
        browser.until(&shows("#programs", "running"));
    });
}

#[test]
fn orders_from_elsewhere_are_seen_on_the_page() {
    with_browser("page_orders", "pg4", WIDE, |browser, daemon, _| {
        for (order, state) in [("pause", "paused"), ("resume", "running"), ("rollback", "rolled back")] {
            says(&daemon.ask(&[order]), 0, &[]);
            browser.until(&shows("#programs", state));
        }
        // The newest stands first.
        browser.until("document.querySelector('#events li').innerText.includes('state: rolled back')");
    });
}

#[test]
fn traffic_is_shown_with_generations_and_specialized_lookups() {
    with_browser("page_traffic", "pg5", WIDE, |browser, daemon, place| {
        let port = daemon.namespace.enter(|| interface_index("pg5").unwrap()).unwrap();
        let config = router::generate(100, &[port], 4, 1);
        fill(place, "core", &config);
        let flows = router::flows(&config, 50, FlowLocality::HIGH, 1);
        under_load(daemon.namespace, "pg5x", &flows, || {
            browser.until(&shows("#events", "generation 1 runs"));
            // A lookup that is no longer answered by its map.
            browser.until("document.querySelectorAll('#lookups td.good').length > 0");
            browser.until("document.querySelectorAll('#time-line circle.installed').length > 0");
            browser.until("document.querySelectorAll('#rate polyline').length > 0");
            browser.value("document.querySelector('#code summary').click() ?? true");
            browser
                .until("/^Generation [0-9]+: [1-9]/.test(document.getElementById('code-note').textContent)");
            browser.until("document.querySelectorAll('#code-lines tbody tr').length > 0");
            browser.until(&shows("#code-lines", "router.bpf.c:"));
        });
    });
}

#[test]
fn nothing_sticks_out_of_a_narrow_screen() {
    with_browser("page_narrow", "pg6", NARROW, |browser, _, _| {
        browser.until(&shows("#lookups", "routes"));
        let fits = "document.documentElement.scrollWidth <= window.innerWidth";
        assert_eq!(browser.value(fits), true);
        let size = json!({ "width": WIDE.0, "height": WIDE.1, "deviceScaleFactor": 1, "mobile": false });
        browser.devtools("Emulation.setDeviceMetricsOverride", &size);
        assert_eq!(browser.value(fits), true);
        // Tables that are wide scroll for themselves, also by keyboard.
        let by_keyboard = "[...document.querySelectorAll('.scroll, #events')].every((e) => e.tabIndex === 0)";
        assert_eq!(browser.value(by_keyboard), true);
    });
}

#[test]
fn colours_are_those_of_the_scheme_that_the_user_prefers() {
    with_browser("page_colours", "pg7", WIDE, |browser, _, _| {
        let lightness = |scheme: &str| {
            let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            browser.devtools("Emulation.setEmulatedMedia", &features);
            let colour = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)";
            let sum = format!("{colour}.reduce((sum, part) => sum + Number(part), 0)");
            browser.value(&sum).as_u64().expect("a number")
        };
        let (light, dark) = (lightness("light"), lightness("dark"));
        assert!(light > 600 && dark < 200, "{light} {dark}");
    });
}

#[test]
fn the_page_is_used_with_the_keyboard_alone() {
    with_browser("page_keyboard", "pg8", WIDE, |browser, _, _| {
        browser.press(&TAB.to_string());
        assert_eq!(browser.value("document.activeElement.className"), "skip");
        browser.press(&ENTER.to_string());
        browser.until("document.activeElement.id === 'main'");
        for _ in 0..20 {
            browser.press(&TAB.to_string());
            if browser.value("document.activeElement.dataset.program") == "core" {
                break;
            }
        }
        assert_eq!(browser.value("document.activeElement.dataset.program"), "core");
        browser.press(&ENTER.to_string());
        browser.until("document.activeElement.getAttribute('aria-pressed') === 'true'");
        // The table is made anew each second, and the focus stays.
        browser.until(
            "(window.rows ??= document.querySelector('#programs tbody tr')) && !window.rows.isConnected",
        );
        assert_eq!(browser.value("document.activeElement.dataset.program"), "core");
    });
}

#[test]
fn the_page_comes_back_with_the_daemon() {
    if !testing::require() {
        return;
    }
    let interface = "pg9";
    let namespace = namespace(&[interface]);
    namespace.enter(|| set_up(interface_index("lo").unwrap()).unwrap()).unwrap();
    let place = Place::new("page_restart");
    let Some(browser) = Browser::start(&namespace, WIDE) else {
        return eprintln!("skipped: Chromium and chromedriver are not installed");
    };
    let token = written_token(&place);
    let config = format!("web = {ADDRESS:?}\n{}", router_on("core", &[interface]));
    let start = || Daemon::with(&namespace, &place, &config, &["--web-token", &token]);
    let first = start();
    browser.open(&format!("http://{ADDRESS}/#{TOKEN}"));
    browser.until(&shows("#connection", "live"));
    drop(first);
    browser.until(&shows("#connection", "the daemon does not answer"));
    let _second = start();
    browser.until(&shows("#connection", "live"));
    browser.until(&shows("#programs", "running"));
}

#[test]
fn names_from_outside_are_text_and_nothing_else() {
    let name = "<img src=x onerror=document.title=1>";
    if !testing::require() {
        return;
    }
    let namespace = namespace(&["pga"]);
    namespace.enter(|| set_up(interface_index("lo").unwrap()).unwrap()).unwrap();
    let place = Place::new("page_names");
    let token = written_token(&place);
    let config = format!("web = {ADDRESS:?}\n{}", router_on(name, &["pga"]));
    let _daemon = Daemon::with(&namespace, &place, &config, &["--web-token", &token]);
    let Some(browser) = Browser::start(&namespace, WIDE) else {
        return eprintln!("skipped: Chromium and chromedriver are not installed");
    };
    browser.open(&format!("http://{ADDRESS}/#{TOKEN}"));
    browser.until(&shows("#programs", name));
    browser.until(&shows("#selected-title", name));
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.value("document.title"), "Millstream");
}

#[test]
fn everything_comes_from_the_daemon_and_is_small() {
    with_browser("page_small", "pgb", WIDE, |browser, _, _| {
        let resources = "performance.getEntriesByType('resource')";
        let elsewhere =
            format!("{resources}.filter((r) => new URL(r.name).origin !== location.origin).length");
        assert_eq!(browser.value(&elsewhere), 0);
        let files = format!("{resources}.concat(performance.getEntriesByType('navigation'))");
        let bytes = format!("{files}.reduce((sum, r) => sum + (r.transferSize || 0), 0)");
        assert!(browser.value(&bytes).as_u64().is_some_and(|bytes| bytes > 0 && bytes < 200_000));
    });
}
