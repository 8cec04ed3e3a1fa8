//! A client of the Kubernetes API for one kind of resource: list, watch, create and patch, over HTTP.
//!
//! Kubernetes API concepts: <https://kubernetes.io/docs/reference/using-api/api-concepts/>. Answers are hostile:
//! their sizes are bounded, and each request has a deadline.

use std::io::{BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::http::{Method, Request, Response, StatusCode, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};

use crate::resource::{GROUP, NodeResource, NodeSpec, NodeStatus, PLURAL, VERSION};

/// Largest answer, in bytes: a page of nodes.
const LARGEST_ANSWER: u64 = 64 << 20;
/// Largest line of a watch, in bytes. An object has at most 1.5 MiB.
const LARGEST_LINE: u64 = 4 << 20;
/// Objects per page of a list.
const PAGE: usize = 500;
/// Time limit of a request that is no watch.
const PATIENCE: Duration = Duration::from_secs(10);
/// Length of a watch, after which the server ends it. A connection that died is noticed after this time.
const WATCH: Duration = Duration::from_secs(20);

/// Place of an API server, and the credentials for it.
#[derive(Clone, Debug, Default)]
pub struct ApiAccess {
    /// Base URL.
    pub server: String,
    /// File with a bearer token. It is read for each request, since Kubernetes renews it.
    pub token: Option<PathBuf>,
    /// File with the certificates of the server's authority, as PEM; without it, the system's.
    pub authority: Option<PathBuf>,
}

/// Reasons why a request has failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The server does not answer, or is overloaded. The request may succeed later.
    #[error("{url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The object has another generation than expected.
    #[error("{0} was changed by somebody else")]
    Conflict(String),
    /// There is no such object, or no such resource.
    #[error("{0}: not found")]
    NotFound(String),
    /// The version to watch from is too old.
    #[error("the version to watch from is too old")]
    Expired,
    /// The server refuses the request.
    #[error("{url}: status {status}: {message}")]
    Refused {
        /// The address.
        url: String,
        /// Status of the answer.
        status: u16,
        /// The server's reason.
        message: String,
    },
    /// The credentials or certificates cannot be read.
    #[error("{path}: {reason}")]
    Credentials {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

impl ApiError {
    /// True if the server may answer later.
    pub fn is_transient(&self) -> bool {
        matches!(self, ApiError::Unreachable { .. })
    }
}

/// Nodes at a version.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct NodeList {
    /// The nodes.
    pub nodes: Vec<NodeResource>,
    /// Version of the list, to watch from.
    pub version: String,
}

/// Change that a watch has seen.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeChange {
    /// A node was added or changed.
    Changed(Box<NodeResource>),
    /// A node was removed.
    Removed(Box<NodeResource>),
}

/// Object of a list or a watch: only its version matters.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Debug, Deserialize)]
struct ListAnswer {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default)]
    items: Vec<NodeResource>,
}

#[derive(Debug, Deserialize)]
struct WatchLine {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// Client of an API server.
#[derive(Clone, Debug)]
pub struct ApiClient {
    agent: ureq::Agent,
    access: ApiAccess,
}

impl ApiClient {
    /// A client. It connects with its first request.
    ///
    /// # Errors
    /// If certificates cannot be read.
    pub fn new(access: ApiAccess) -> Result<ApiClient, ApiError> {
        let mut config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0);
        if access.server.starts_with("https:") {
            config = config.tls_config(tls(&access)?);
        }
        let server = access.server.trim_end_matches('/').to_owned();
        Ok(ApiClient { agent: config.build().new_agent(), access: ApiAccess { server, ..access } })
    }

    /// All nodes, or the one of this name.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn list(&self, name: Option<&str>) -> Result<NodeList, ApiError> {
        let mut list = NodeList::default();
        let mut next = String::new();
        loop {
            let query = format!("?limit={PAGE}{}{}", selector(name), parameter("continue", &next));
            let answer: ListAnswer = self.call(&Method::GET, &query, None)?;
            list.nodes.extend(answer.items);
            list.version = answer.metadata.resource_version;
            next = answer.metadata.next;
            if next.is_empty() {
                return Ok(list);
            }
        }
    }

    /// A node.
    ///
    /// # Errors
    /// If there is none, or the server does not answer, or refuses.
    pub fn get(&self, name: &str) -> Result<NodeResource, ApiError> {
        self.call(&Method::GET, &format!("/{name}"), None)
    }

    /// Makes a node.
    ///
    /// # Errors
    /// If there is one, or the server does not answer, or refuses.
    pub fn create(&self, node: &NodeResource) -> Result<NodeResource, ApiError> {
        let body = serde_json::to_value(node).unwrap_or_default();
        self.call(&Method::POST, "", Some(("application/json", &body)))
    }

    /// Changes the wanted state of a node of this generation.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if it has another generation; or if the server does not answer, or refuses.
    pub fn change_spec(
        &self,
        name: &str,
        generation: i64,
        spec: &NodeSpec,
    ) -> Result<NodeResource, ApiError> {
        let patch = json!([
            {"op": "test", "path": "/metadata/generation", "value": generation},
            {"op": "add", "path": "/spec", "value": spec},
        ]);
        self.patch(&format!("/{name}"), &patch)
    }

    /// Writes the actual state of a node.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn write_status(&self, name: &str, status: &NodeStatus) -> Result<NodeResource, ApiError> {
        let patch = json!([{"op": "add", "path": "/status", "value": status}]);
        self.patch(&format!("/{name}/status"), &patch)
    }

    fn patch(&self, path: &str, patch: &Value) -> Result<NodeResource, ApiError> {
        self.call(&Method::PATCH, path, Some(("application/json-patch+json", patch)))
    }

    /// Changes behind a version, one after the other, until the server ends the watch.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn watch(&self, name: Option<&str>, version: &str) -> Result<NodeWatch, ApiError> {
        let seconds = WATCH.as_secs();
        let query = format!(
            "?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{}{}",
            parameter("resourceVersion", version),
            selector(name)
        );
        let limit = WATCH + PATIENCE;
        let response = self.send(&Method::GET, &query, None, limit)?;
        let response = self.checked(&query, response)?;
        let reader = BufReader::new(response.into_body().into_with_config().limit(u64::MAX).reader());
        Ok(NodeWatch { reader: Box::new(reader), version: version.to_owned(), url: self.url(&query) })
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/apis/{GROUP}/{VERSION}/{PLURAL}{rest}", self.access.server)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &Method,
        rest: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<T, ApiError> {
        let response = self.checked(rest, self.send(method, rest, body, PATIENCE)?)?;
        let text = self.body(rest, response)?;
        serde_json::from_slice(&text).map_err(|error| self.unreachable(rest, &error))
    }

    fn send(
        &self,
        method: &Method,
        rest: &str,
        body: Option<(&str, &Value)>,
        limit: Duration,
    ) -> Result<Response<ureq::Body>, ApiError> {
        let mut request = Request::builder().method(method).uri(self.url(rest));
        if let Some(path) = &self.access.token {
            let token = std::fs::read_to_string(path)
                .map_err(|e| ApiError::Credentials { path: path.clone(), reason: e.to_string() })?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let wrong = |error: ureq::http::Error| self.unreachable(rest, &error);
        let sent = match body {
            Some((media_type, body)) => {
                let request = request.header(header::CONTENT_TYPE, media_type);
                let request = request.body(body.to_string()).map_err(wrong)?;
                self.agent.run(self.agent.configure_request(request).timeout_global(Some(limit)).build())
            }
            None => {
                let request = request.body(()).map_err(wrong)?;
                self.agent.run(self.agent.configure_request(request).timeout_global(Some(limit)).build())
            }
        };
        sent.map_err(|error| self.unreachable(rest, &error))
    }

    fn body(&self, rest: &str, response: Response<ureq::Body>) -> Result<Vec<u8>, ApiError> {
        let mut text = Vec::new();
        let reader = response.into_body().into_with_config().limit(LARGEST_ANSWER).reader();
        reader.take(LARGEST_ANSWER).read_to_end(&mut text).map_err(|error| self.unreachable(rest, &error))?;
        Ok(text)
    }

    /// The response, if its status is one of success.
    fn checked(&self, rest: &str, response: Response<ureq::Body>) -> Result<Response<ureq::Body>, ApiError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        #[derive(Deserialize, Default)]
        struct Answer {
            #[serde(default)]
            message: String,
            #[serde(default)]
            details: Value,
        }
        let answer: Answer = serde_json::from_slice(&self.body(rest, response)?).unwrap_or_default();
        let Answer { message, details } = answer;
        Err(match status {
            StatusCode::NOT_FOUND => ApiError::NotFound(self.url(rest)),
            StatusCode::CONFLICT => ApiError::Conflict(self.url(rest)),
            // A patch whose test has failed. An invalid object has causes.
            StatusCode::UNPROCESSABLE_ENTITY if details["causes"].is_null() => {
                ApiError::Conflict(self.url(rest))
            }
            StatusCode::GONE => ApiError::Expired,
            StatusCode::TOO_MANY_REQUESTS => self.unreachable(rest, &"too many requests"),
            status if status.is_server_error() => {
                self.unreachable(rest, &format!("status {status}: {message}"))
            }
            status => ApiError::Refused { url: self.url(rest), status: status.as_u16(), message },
        })
    }

    fn unreachable(&self, rest: &str, reason: &dyn std::fmt::Display) -> ApiError {
        ApiError::Unreachable { url: self.url(rest), reason: reason.to_string() }
    }
}

/// A watch.
pub struct NodeWatch {
    reader: Box<dyn BufRead + Send>,
    version: String,
    url: String,
}

impl NodeWatch {
    /// Version of the last change, to go on from.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The next change; none at the end of the watch.
    ///
    /// # Errors
    /// [`ApiError::Expired`] if the version is too old; or if the connection breaks.
    #[expect(clippy::should_implement_trait, reason = "an iterator would go on after an error")]
    pub fn next(&mut self) -> Result<Option<NodeChange>, ApiError> {
        loop {
            let mut line = Vec::new();
            let broken = |reason: String| ApiError::Unreachable { url: self.url.clone(), reason };
            let read = (&mut self.reader).take(LARGEST_LINE).read_until(b'\n', &mut line);
            if read.map_err(|error| broken(error.to_string()))? == 0 {
                return Ok(None);
            }
            let line: WatchLine = serde_json::from_slice(&line).map_err(|error| broken(error.to_string()))?;
            if line.kind == "ERROR" {
                let is_gone = line.object["code"].as_u64() == Some(410);
                return Err(if is_gone { ApiError::Expired } else { broken(line.object.to_string()) });
            }
            if let Some(version) = line.object["metadata"]["resourceVersion"].as_str() {
                version.clone_into(&mut self.version);
            }
            if line.kind == "BOOKMARK" {
                continue;
            }
            let node: NodeResource =
                serde_json::from_value(line.object).map_err(|error| broken(error.to_string()))?;
            let node = Box::new(node);
            let is_removed = line.kind == "DELETED";
            return Ok(Some(if is_removed { NodeChange::Removed(node) } else { NodeChange::Changed(node) }));
        }
    }
}

/// The part of a query that selects a node by name.
fn selector(name: Option<&str>) -> String {
    name.map_or(String::new(), |name| parameter("fieldSelector", &format!("metadata.name={name}")))
}

/// A further parameter of a query; nothing for an empty value.
fn parameter(name: &str, value: &str) -> String {
    if value.is_empty() {
        return String::new();
    }
    format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))
}

/// TLS with the authority of the cluster, or the system's.
fn tls(access: &ApiAccess) -> Result<TlsConfig, ApiError> {
    let Some(path) = &access.authority else {
        let failed = |reason| ApiError::Unreachable { url: access.server.clone(), reason };
        return millstream_service::tls::client_config().map_err(failed);
    };
    let failed = |reason: String| ApiError::Credentials { path: path.clone(), reason };
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let certificates: Vec<Certificate<'static>> = ureq::tls::parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(failed("it has no certificate".to_owned()));
    }
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::Specific(Arc::new(certificates)))
        .build())
}
