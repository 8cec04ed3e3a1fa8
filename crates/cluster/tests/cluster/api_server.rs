//! A small API server for one kind of resource, as Kubernetes answers: list, get, create, JSON patches with tests,
//! the subresource `status`, generations, watches from a version, and faults on request.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{HttpRequest, answer, serve};

/// Path of the resource.
const PATH: &str = "/apis/millstream.dev/v1alpha1/millstreamnodes";

#[derive(Default)]
struct ServerState {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Changes: version, kind, object.
    changes: Vec<(u64, &'static str, Value)>,
    /// Versions up to this one cannot be watched from.
    forgotten: u64,
    is_away: bool,
    /// Counts orders to break all watches.
    breaks: u64,
    /// Requests that changed a node's wanted state.
    spec_changes: u64,
}

/// The server.
#[derive(Default)]
pub(crate) struct ApiServer {
    state: Mutex<ServerState>,
    changed: Condvar,
}

impl ApiServer {
    /// Starts a server.
    pub(crate) fn start() -> (Arc<ApiServer>, SocketAddr) {
        let server = Arc::new(ApiServer::default());
        let address = serve(Arc::clone(&server), |server, request, to| server.handle(request, to));
        (server, address)
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap()
    }

    /// Makes the server close all connections without an answer, or answer again.
    pub(crate) fn set_away(&self, is_away: bool) {
        let mut state = self.state();
        state.is_away = is_away;
        state.breaks += 1;
        self.changed.notify_all();
    }

    /// Breaks all watches in the middle of a line, and forgets all versions before this one.
    pub(crate) fn break_watches(&self) {
        let mut state = self.state();
        state.breaks += 1;
        state.forgotten = state.version;
        state.changes.clear();
        self.changed.notify_all();
    }

    /// Begins with this version; older ones are forgotten.
    pub(crate) fn begin_at(&self, version: u64) {
        let mut state = self.state();
        (state.version, state.forgotten) = (version, version);
    }

    /// Number of changes of wanted states so far.
    pub(crate) fn spec_changes(&self) -> u64 {
        self.state().spec_changes
    }

    /// Removes a node.
    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.state();
        if let Some(object) = state.objects.remove(name) {
            state.version += 1;
            let version = state.version;
            state.changes.push((version, "DELETED", object));
            self.changed.notify_all();
        }
    }

    fn handle(&self, request: &HttpRequest, to: &mut TcpStream) -> io::Result<()> {
        if self.state().is_away {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let Some(rest) = request.path.strip_prefix(PATH) else { return refuse(to, 404, "no such path") };
        let name = rest.trim_start_matches('/');
        match (request.method.as_str(), name.split_once('/')) {
            ("GET", None) if name.is_empty() && request.query.contains_key("watch") => {
                self.watch(request, to)
            }
            ("GET", None) if name.is_empty() => self.list(request, to),
            ("GET", None) => match self.state().objects.get(name) {
                Some(object) => reply(to, object),
                None => refuse(to, 404, "not found"),
            },
            ("POST", None) => self.create(request, to),
            ("PATCH", None) => self.patch(name, request, false, to),
            ("PATCH", Some((name, "status"))) => self.patch(name, request, true, to),
            _ => refuse(to, 405, "no such method"),
        }
    }

    fn list(&self, request: &HttpRequest, to: &mut TcpStream) -> io::Result<()> {
        let state = self.state();
        let items: Vec<&Value> =
            state.objects.values().filter(|object| is_selected(request, object)).collect();
        let metadata = json!({"resourceVersion": state.version.to_string()});
        reply(to, &json!({"kind": "MillstreamNodeList", "metadata": metadata, "items": items}))
    }

    fn create(&self, request: &HttpRequest, to: &mut TcpStream) -> io::Result<()> {
        let mut object: Value = serde_json::from_slice(&request.body)?;
        let mut state = self.state();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if state.objects.contains_key(&name) {
            return refuse(to, 409, "already exists");
        }
        object["metadata"]["generation"] = 1.into();
        if let Some(members) = object.as_object_mut() {
            members.remove("status");
        }
        let object = self.store(&mut state, &name, "ADDED", object);
        reply(to, &object)
    }

    fn patch(
        &self,
        name: &str,
        request: &HttpRequest,
        is_status: bool,
        to: &mut TcpStream,
    ) -> io::Result<()> {
        let operations: Vec<Value> = serde_json::from_slice(&request.body)?;
        let mut state = self.state();
        let Some(before) = state.objects.get(name).cloned() else { return refuse(to, 404, "not found") };
        let mut object = before.clone();
        for operation in &operations {
            let path = operation["path"].as_str().unwrap_or_default();
            if operation["op"] == "test" {
                if object.pointer(path) != Some(&operation["value"]) {
                    return refuse(to, 422, "the server rejected our request due to an error in our request");
                }
                continue;
            }
            let Some(member) = path.strip_prefix('/') else { return refuse(to, 400, "no path") };
            object[member] = operation["value"].clone();
        }
        // Each of the two endpoints ignores the other's part.
        let other = if is_status { "spec" } else { "status" };
        match before.get(other) {
            Some(value) => object[other] = value.clone(),
            None => drop(object.as_object_mut().and_then(|members| members.remove(other))),
        }
        if !has_digests(&object) {
            let causes = json!([{"reason": "FieldValueInvalid", "field": "spec.bundles[0].reference"}]);
            let body = json!({"kind": "Status", "message": "it is invalid", "details": {"causes": causes}});
            return answer(to, 422, "Content-Type: application/json\r\n", body.to_string().as_bytes());
        }
        if object == before {
            return reply(to, &before);
        }
        if object["spec"] != before["spec"] {
            object["metadata"]["generation"] =
                (before["metadata"]["generation"].as_i64().unwrap() + 1).into();
            state.spec_changes += 1;
        }
        let object = self.store(&mut state, name, "MODIFIED", object);
        reply(to, &object)
    }

    fn store(&self, state: &mut ServerState, name: &str, kind: &'static str, mut object: Value) -> Value {
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.objects.insert(name.to_owned(), object.clone());
        state.changes.push((state.version, kind, object.clone()));
        self.changed.notify_all();
        object
    }

    fn watch(&self, request: &HttpRequest, to: &mut TcpStream) -> io::Result<()> {
        let number = |name: &str| request.query.get(name).and_then(|text| text.parse::<u64>().ok());
        let mut version = number("resourceVersion").unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(30));
        let breaks = self.state().breaks;
        to.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        if version < self.state().forgotten {
            chunk(to, &json!({"type": "ERROR", "object": {"kind": "Status", "code": 410}}))?;
            return to.write_all(b"0\r\n\r\n");
        }
        loop {
            let mut state = self.state();
            let is_new = |state: &ServerState| state.changes.last().is_some_and(|(last, ..)| *last > version);
            while !is_new(&state) && state.breaks == breaks {
                let Some(left) = end.checked_duration_since(Instant::now()) else {
                    drop(state);
                    let metadata = json!({"resourceVersion": version.to_string()});
                    chunk(to, &json!({"type": "BOOKMARK", "object": {"metadata": metadata}}))?;
                    return to.write_all(b"0\r\n\r\n");
                };
                state = self.changed.wait_timeout(state, left).unwrap().0;
            }
            if state.breaks != breaks {
                to.write_all(b"20\r\n{\"type\": \"MODI")?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let first = state.changes.partition_point(|(changed, ..)| *changed <= version);
            let changes = state.changes[first..].to_vec();
            drop(state);
            for (changed, kind, object) in changes {
                version = changed;
                if is_selected(request, &object) {
                    chunk(to, &json!({"type": kind, "object": object}))?;
                }
            }
        }
    }
}

/// Returns true if all bundles are named by digests, as the definition of the resource demands.
fn has_digests(object: &Value) -> bool {
    let bundles = object["spec"]["bundles"].as_array().map_or(&[][..], Vec::as_slice);
    bundles.iter().all(|bundle| bundle["reference"].as_str().is_some_and(|text| text.contains("@sha256:")))
}

fn is_selected(request: &HttpRequest, object: &Value) -> bool {
    let name =
        request.query.get("fieldSelector").and_then(|selector| selector.strip_prefix("metadata.name="));
    name.is_none_or(|name| object["metadata"]["name"] == name)
}

fn reply(to: &mut TcpStream, body: &Value) -> io::Result<()> {
    answer(to, 200, "Content-Type: application/json\r\n", body.to_string().as_bytes())
}

fn refuse(to: &mut TcpStream, status: u16, message: &str) -> io::Result<()> {
    let body = json!({"kind": "Status", "status": "Failure", "message": message, "code": status});
    answer(to, status, "Content-Type: application/json\r\n", body.to_string().as_bytes())
}

fn chunk(to: &mut TcpStream, line: &Value) -> io::Result<()> {
    let line = format!("{line}\n");
    write!(to, "{:x}\r\n{line}\r\n", line.len())
}
