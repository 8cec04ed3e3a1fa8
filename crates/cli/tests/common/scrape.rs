//! Metrics of a running command, as Prometheus reads them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// An address that nobody listens at.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The answer at an address, once somebody listens there.
pub(crate) fn scrape(address: &str) -> String {
    let until = Instant::now() + Duration::from_secs(60);
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(e) => assert!(Instant::now() < until, "nobody answers: {e}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with('\n'), "{text}");
    text
}

/// Value of the metric of this name.
pub(crate) fn value(text: &str, name: &str) -> f64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value).unwrap_or_else(|| panic!("{name} is not in {text}"))
}
