//! Bundles in registries, by the distribution protocol of OCI
//! (<https://github.com/opencontainers/distribution-spec>, `spec.md`).
//!
//! One deadline holds for all requests of a command together, so that a registry that trickles cannot hold it.

use std::io::Read as _;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use ureq::http::{HeaderMap, Method, Request, StatusCode, header};

use crate::manifest::MANIFEST_TYPE;
use crate::reference::ReferenceVersion;
use crate::{BlobDigest, BlobSource, Bundle, BundleError, Descriptor, LARGEST_DOCUMENT, RegistryReference};

/// Largest answer of a token service, in bytes.
const LARGEST_TOKEN: u64 = 64 << 10;

/// Access to a registry.
#[derive(Clone, Debug)]
pub struct RegistryAccess {
    /// Time for all requests together.
    pub time: Duration,
    /// HTTP without TLS.
    pub plain_http: bool,
    /// `USER:PASSWORD`, if the registry asks for it.
    pub credentials: Option<String>,
}

impl RegistryAccess {
    /// Reads a bundle from a registry.
    ///
    /// # Errors
    /// If the registry cannot be reached or refuses, or for reasons of [`Bundle::from_manifest`].
    pub fn pull(&self, from: &RegistryReference) -> Result<Bundle, BundleError> {
        let mut registry = Registry::new(from, self)?;
        let url = registry.url(&format!("manifests/{}", from.version));
        let accept = [(header::ACCEPT, MANIFEST_TYPE)];
        let manifest = registry.get(&url, &accept, LARGEST_DOCUMENT)?;
        if let ReferenceVersion::Digest(digest) = from.version
            && BlobDigest::of(&manifest) != digest
        {
            return Err(BundleError::Damaged(digest));
        }
        Bundle::from_manifest(&manifest, &mut registry)
    }

    /// Writes a bundle to a registry, without the blobs that it has; returns the digest of the manifest.
    ///
    /// # Errors
    /// If the registry cannot be reached or refuses, or the reference is a digest of something else.
    pub fn push(&self, bundle: &Bundle, to: &RegistryReference) -> Result<BlobDigest, BundleError> {
        let mut registry = Registry::new(to, self)?;
        let manifest = bundle.manifest()?;
        let digest = BlobDigest::of(&manifest);
        if let ReferenceVersion::Digest(other) = to.version
            && other != digest
        {
            return Err(BundleError::Inconsistent(format!("the bundle is {digest}, not {other}")));
        }
        for (descriptor, data) in bundle.blobs() {
            registry.upload(&descriptor, data)?;
        }
        let url = registry.url(&format!("manifests/{}", to.version));
        registry.put(&url, MANIFEST_TYPE, &manifest)?;
        Ok(digest)
    }
}

/// Answer to a request.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// A repository of a registry.
struct Registry {
    agent: ureq::Agent,
    /// Scheme and host.
    base: String,
    name: String,
    credentials: Option<String>,
    /// Value of the header `Authorization`, once the registry has asked for one.
    authorization: Option<String>,
    deadline: Instant,
}

impl Registry {
    fn new(reference: &RegistryReference, access: &RegistryAccess) -> Result<Registry, BundleError> {
        let mut config =
            ureq::Agent::config_builder().http_status_as_error(false).https_only(!access.plain_http);
        if !access.plain_http {
            let tls = millstream_service::tls::client_config();
            config = config.tls_config(tls.map_err(|reason| refused(&reference.host, &reason))?);
        }
        let scheme = if access.plain_http { "http" } else { "https" };
        Ok(Registry {
            agent: config.build().new_agent(),
            base: format!("{scheme}://{}", reference.host),
            name: reference.name.clone(),
            credentials: access.credentials.clone(),
            authorization: None,
            deadline: Instant::now() + access.time,
        })
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/v2/{}/{rest}", self.base, self.name)
    }

    /// The body of an answer, at most one byte more than `most`.
    fn get(
        &mut self,
        url: &str,
        headers: &[(header::HeaderName, &str)],
        most: u64,
    ) -> Result<Vec<u8>, BundleError> {
        let answer = self.ask(&Method::GET, url, headers, None, most)?;
        expect(url, &answer, &[StatusCode::OK])?;
        Ok(answer.body)
    }

    fn put(&mut self, url: &str, media_type: &str, data: &[u8]) -> Result<(), BundleError> {
        let headers = [(header::CONTENT_TYPE, media_type)];
        let answer = self.ask(&Method::PUT, url, &headers, Some(data), LARGEST_DOCUMENT)?;
        expect(url, &answer, &[StatusCode::CREATED, StatusCode::OK])
    }

    /// Uploads a blob in one piece, if the registry lacks it.
    fn upload(&mut self, blob: &Descriptor, data: &[u8]) -> Result<(), BundleError> {
        let url = self.url(&format!("blobs/{}", blob.digest));
        if self.ask(&Method::HEAD, &url, &[], None, 0)?.status == StatusCode::OK {
            return Ok(());
        }
        let url = self.url("blobs/uploads/");
        let answer = self.ask(&Method::POST, &url, &[], Some(&[]), LARGEST_DOCUMENT)?;
        expect(&url, &answer, &[StatusCode::ACCEPTED])?;
        let location = answer.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| refused(&url, "it names no place for the blob"))?;
        let place =
            if location.starts_with('/') { format!("{}{location}", self.base) } else { location.to_owned() };
        let separator = if place.contains('?') { '&' } else { '?' };
        let place = format!("{place}{separator}digest={}", blob.digest);
        self.put(&place, "application/octet-stream", data)
    }

    /// Sends a request; once more with an authorization if the registry asks for one.
    fn ask(
        &mut self,
        method: &Method,
        url: &str,
        headers: &[(header::HeaderName, &str)],
        body: Option<&[u8]>,
        most: u64,
    ) -> Result<Answer, BundleError> {
        let answer = self.send(method, url, headers, body, most)?;
        let challenge = answer.headers.get(header::WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        match challenge {
            Some(challenge) if answer.status == StatusCode::UNAUTHORIZED && self.is_ours(url) => {
                self.authorization = Some(self.authorize(url, challenge)?);
                self.send(method, url, headers, body, most)
            }
            _ => Ok(answer),
        }
    }

    fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &[(header::HeaderName, &str)],
        body: Option<&[u8]>,
        most: u64,
    ) -> Result<Answer, BundleError> {
        let failed = |source| BundleError::Unreachable { url: url.to_owned(), source: Box::new(source) };
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        if let Some(authorization) = self.authorization.as_ref().filter(|_| self.is_ours(url)) {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let wrong = |e: ureq::http::Error| failed(e.into());
        let mut response = match body {
            Some(body) => {
                let request = request.body(body).map_err(wrong)?;
                let request = self.agent.configure_request(request).timeout_global(Some(left)).build();
                self.agent.run(request)
            }
            None => {
                let request = request.body(()).map_err(wrong)?;
                let request = self.agent.configure_request(request).timeout_global(Some(left)).build();
                self.agent.run(request)
            }
        }
        .map_err(failed)?;
        let mut body = Vec::new();
        let reader = response.body_mut().as_reader();
        reader.take(most + 1).read_to_end(&mut body).map_err(|e| failed(e.into()))?;
        Ok(Answer { status: response.status(), headers: response.headers().clone(), body })
    }

    /// Returns true if an address is the registry's own, which gets the authorization.
    fn is_ours(&self, url: &str) -> bool {
        url.strip_prefix(&self.base).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Answers a challenge: with the credentials, or with a token of the service that the registry names.
    fn authorize(&self, url: &str, challenge: &str) -> Result<String, BundleError> {
        let basic = self.credentials.as_ref().map(|text| format!("Basic {}", STANDARD.encode(text)));
        let Some(parameters) = challenge.strip_prefix("Bearer ") else {
            return basic.ok_or_else(|| refused(url, "it wants credentials: --credentials FILE"));
        };
        let realm =
            parameter(parameters, "realm").ok_or_else(|| refused(url, "it names no token service"))?;
        if !realm.starts_with("https://") && !self.is_ours(realm) {
            return Err(refused(url, "its token service is elsewhere and without TLS"));
        }
        #[derive(Deserialize)]
        struct Token {
            #[serde(alias = "access_token")]
            token: String,
        }
        let failed = |source| BundleError::Unreachable { url: realm.to_owned(), source: Box::new(source) };
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut request = self.agent.get(realm).config().timeout_global(Some(left)).build();
        for name in ["service", "scope"] {
            if let Some(value) = parameter(parameters, name) {
                request = request.query(name, value);
            }
        }
        if let Some(basic) = basic {
            request = request.header(header::AUTHORIZATION, basic);
        }
        let mut response = request.call().map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(refused(realm, &format!("status {}", response.status())));
        }
        let mut body = Vec::new();
        let reader = response.body_mut().as_reader();
        reader.take(LARGEST_TOKEN).read_to_end(&mut body).map_err(|e| failed(e.into()))?;
        let token: Token = serde_json::from_slice(&body).map_err(BundleError::Document)?;
        Ok(format!("Bearer {}", token.token))
    }
}

impl BlobSource for Registry {
    fn blob(&mut self, wanted: &Descriptor) -> Result<Vec<u8>, BundleError> {
        let url = self.url(&format!("blobs/{}", wanted.digest));
        self.get(&url, &[], wanted.size)
    }
}

/// A parameter of a challenge, `NAME="VALUE"`.
fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    // A value may contain commas: it ends at its quote.
    let mut rest = parameters;
    loop {
        let (key, behind) = rest.split_once("=\"")?;
        let (value, behind) = behind.split_once('"')?;
        if key.trim_start_matches([',', ' ']) == name {
            return Some(value);
        }
        rest = behind;
    }
}

fn refused(url: &str, reason: &str) -> BundleError {
    BundleError::Registry { url: url.to_owned(), reason: reason.to_owned() }
}

fn expect(url: &str, answer: &Answer, statuses: &[StatusCode]) -> Result<(), BundleError> {
    if statuses.contains(&answer.status) {
        return Ok(());
    }
    Err(refused(url, &format!("status {}", answer.status)))
}
