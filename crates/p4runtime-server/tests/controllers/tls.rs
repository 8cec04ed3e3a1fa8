//! Controllers over TLS. The keys of `tests/tls` are for these tests alone.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use millstream_p4runtime::proto::v1::CapabilitiesRequest;
use millstream_p4runtime_server::{ServerOptions, TlsFiles, serve_p4runtime};
use tokio::sync::oneshot;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use crate::{Client, PROGRAM, TestSwitch, run};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

fn authority() -> ClientTlsConfig {
    ClientTlsConfig::new()
        .domain_name("localhost")
        .ca_certificate(Certificate::from_pem(read("authority.pem")))
}

/// Asks the server for its version.
async fn version(address: &str, tls: ClientTlsConfig) -> Result<String, String> {
    let endpoint = Channel::from_shared(address.to_owned()).map_err(|error| error.to_string())?;
    let endpoint = endpoint.tls_config(tls).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
    let answer = Client::new(channel).capabilities(CapabilitiesRequest::default()).await;
    answer.map(|answer| answer.into_inner().p4runtime_api_version).map_err(|error| error.to_string())
}

/// Serves with these files, and gives the address.
fn serve(switch: &TestSwitch, files: TlsFiles) -> (String, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel();
    let (handle, options) = (switch.handle.clone(), ServerOptions { tls: Some(files) });
    std::thread::spawn(move || serve_p4runtime(listener, &handle, &options, stopped));
    (address, stop)
}

#[test]
fn controllers_are_served_over_tls_and_need_a_certificate_where_an_authority_is_named() {
    run(async {
        let switch = TestSwitch::start(Some(PROGRAM));
        let files =
            TlsFiles { certificate: path("server.pem"), key: path("server.key"), client_authorities: None };
        let (address, _stop) = serve(&switch, files.clone());
        assert_eq!(version(&address, authority()).await.unwrap(), "1.4.1");
        version(&address, ClientTlsConfig::new().domain_name("localhost")).await.unwrap_err();
        version(&address, authority().domain_name("elsewhere")).await.unwrap_err();

        let files = TlsFiles { client_authorities: Some(path("authority.pem")), ..files };
        let (address, _stop) = serve(&switch, files);
        let identity = Identity::from_pem(read("controller.pem"), read("controller.key"));
        assert_eq!(version(&address, authority().identity(identity)).await.unwrap(), "1.4.1");
        version(&address, authority()).await.unwrap_err();
    });
}

#[test]
fn a_server_without_its_key_says_which_file_is_missing() {
    let switch = TestSwitch::start(None);
    let (_stop, stopped) = oneshot::channel();
    let files = TlsFiles { certificate: path("server.pem"), key: path("none.key"), client_authorities: None };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ServerOptions { tls: Some(files) };
    let error = serve_p4runtime(listener, &switch.handle, &options, stopped).unwrap_err();
    assert!(error.to_string().contains("none.key"), "{error}");
}
