//! Chromium, driven by the WebDriver protocol (w3.org/TR/webdriver2) through chromedriver, in a namespace.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_kernel::Namespace;
use serde_json::{Value, json};

/// Address of chromedriver in the namespace.
const DRIVER: &str = "127.0.0.1:9515";
/// Time for a page to come to what a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys of WebDriver that are no characters.
pub(super) const TAB: char = '\u{e004}';
pub(super) const ENTER: char = '\u{e007}';

/// A browser with one tab. It ends when dropped.
pub(super) struct Browser<'n> {
    namespace: &'n Namespace,
    driver: Child,
    session: String,
}

impl<'n> Browser<'n> {
    /// Starts one with a window of this size in CSS pixels; `None` if Chromium or its driver is not installed.
    pub(super) fn start(namespace: &'n Namespace, (width, height): (u32, u32)) -> Option<Browser<'n>> {
        if Command::new("chromium").arg("--version").output().is_err() {
            return None;
        }
        let port = DRIVER.rsplit(':').next()?;
        let start =
            || Command::new("chromedriver").arg(format!("--port={port}")).stdout(Stdio::piped()).spawn();
        let mut driver = namespace.enter(start).unwrap().ok()?;
        let mut lines = BufReader::new(driver.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("started successfully")), "chromedriver does not start");
        let mut browser = Browser { namespace, driver, session: String::new() };
        let args = ["--headless=new", "--no-sandbox", "--disable-gpu"];
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": args } } } });
        let session = browser.ask("POST", "", &wanted);
        browser.session = format!("/{}", session["sessionId"].as_str().expect("a session"));
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        browser.devtools("Emulation.setDeviceMetricsOverride", &size);
        Some(browser)
    }

    /// Sends a command of the session; returns its value.
    fn ask(&self, verb: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let exchange = || {
            let mut stream = TcpStream::connect(DRIVER).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let (session, length) = (&self.session, body.len());
            write!(
                stream,
                "{verb} /session{session}{path} HTTP/1.1\r\nHost: {DRIVER}\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .unwrap();
            // chromedriver keeps the connection, so the length tells the end.
            let mut reader = BufReader::new(stream);
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                assert!(reader.read_line(&mut head).unwrap() > 0, "half an answer: {head}");
                if let Some((name, value)) = head[start..].split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            (head, body)
        };
        let (head, body) = self.namespace.enter(exchange).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{verb} {path}: {}", String::from_utf8_lossy(&body));
        let mut answer: Value = serde_json::from_slice(&body).expect("JSON");
        answer["value"].take()
    }

    /// Sends a command of the Chrome DevTools protocol.
    pub(super) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.ask("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Opens an address.
    pub(super) fn open(&self, url: &str) {
        self.ask("POST", "/url", &json!({ "url": url }));
    }

    /// Value of an expression in the page.
    pub(super) fn value(&self, expression: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({ "script": format!("return {expression};"), "args": [] }))
    }

    /// Waits until an expression in the page is true.
    #[track_caller]
    pub(super) fn until(&self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != Value::Bool(true) {
            let page = || self.value("document.body.innerText");
            assert!(start.elapsed() < PATIENCE, "{expression} is not true on this page: {}", page());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Types keys, as they come from a keyboard.
    pub(super) fn press(&self, keys: &str) {
        let press = |key: char| {
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        };
        let keys: Vec<Value> = keys.chars().flat_map(press).collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys }] });
        self.ask("POST", "/actions", &actions);
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        // A test that failed in the middle of an exchange must not fail again here.
        if !std::thread::panicking() {
            self.ask("DELETE", "", &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
