//! A registry of bundles in memory: what `bundle push` and `bundle pull` ask for.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use super::http::{HttpRequest, answer, serve};

#[derive(Default)]
struct Registry {
    /// Manifests and blobs, by the last part of their path.
    contents: Mutex<BTreeMap<String, Vec<u8>>>,
}

/// Starts a registry.
pub(crate) fn start() -> SocketAddr {
    serve(Arc::new(Registry::default()), |registry, request, to| registry.handle(request, to))
}

impl Registry {
    fn handle(&self, request: &HttpRequest, to: &mut TcpStream) -> io::Result<()> {
        let name = request.path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut contents = self.contents.lock().unwrap();
        match request.method.as_str() {
            "POST" => answer(to, 202, "Location: /v2/upload\r\n", b""),
            "PUT" => {
                let digest = request.query.get("digest").map(|digest| digest.replace("%3A", ":"));
                contents.insert(digest.unwrap_or(name), request.body.clone());
                answer(to, 201, "", b"")
            }
            "GET" => match contents.get(&name) {
                Some(data) => answer(to, 200, "", data),
                None => answer(to, 404, "", b""),
            },
            _ => answer(to, 404, "", b""),
        }
    }
}
