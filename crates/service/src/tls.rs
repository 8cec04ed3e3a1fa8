//! TLS of HTTP clients.

use std::sync::Arc;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// TLS with the system's certificates, or those in `SSL_CERT_FILE`.
///
/// # Errors
/// If there are none: a message with advice.
pub fn client_config() -> Result<TlsConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    let certificates: Vec<_> = found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    if certificates.is_empty() {
        return Err("this system has no certificates for https; install ca-certificates".to_owned());
    }
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::Specific(Arc::new(certificates)))
        .build())
}
