//! The server of P4Runtime: address, TLS, and the messages of streams.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use millstream_p4runtime::entities::{EntityError, ErrorKind};
use millstream_p4runtime::proto::v1::p4_runtime_server::P4RuntimeServer;
use millstream_p4runtime::proto::v1::{
    DigestListAckError, PacketOutError, StreamError, StreamMessageRequest, StreamOtherError, stream_error,
    stream_message_request, stream_message_response,
};
use tonic::Status;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::handle::SwitchHandle;
use crate::service::SwitchService;
use crate::streams::StreamId;

/// Bytes of a message of a controller, at most.
const LONGEST_MESSAGE: usize = 256 << 20;
/// Interval between looks for digests and idle entries.
const DUE: Duration = Duration::from_millis(10);
/// Stack of a thread that compiles programs.
const STACK: usize = 32 << 20;

/// Files in PEM for TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Certificate of the server, with its chain.
    pub certificate: PathBuf,
    /// Key of the certificate.
    pub key: PathBuf,
    /// Certificates of those that sign controllers' certificates; without them, controllers need none.
    pub client_authorities: Option<PathBuf>,
}

/// Options of the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerOptions {
    /// TLS.
    pub tls: Option<TlsFiles>,
}

/// Failure of the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The operating system refuses a thread or socket.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The transport failed, or a certificate is wrong.
    #[error("{0}")]
    Transport(String),
}

fn read(path: &PathBuf) -> Result<Vec<u8>, ServerError> {
    std::fs::read(path).map_err(|source| ServerError::File { path: path.clone(), source })
}

fn tls_config(files: &TlsFiles) -> Result<ServerTlsConfig, ServerError> {
    let identity = Identity::from_pem(read(&files.certificate)?, read(&files.key)?);
    let config = ServerTlsConfig::new().identity(identity);
    Ok(match &files.client_authorities {
        Some(path) => config.client_ca_root(Certificate::from_pem(read(path)?)),
        None => config,
    })
}

fn transport(error: tonic::transport::Error) -> ServerError {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    ServerError::Transport(message)
}

/// Serves P4Runtime until `stop` is done or dropped.
///
/// # Errors
/// [`ServerError`]: a certificate that cannot be used, or the end of the socket.
pub fn serve_p4runtime(
    listener: TcpListener,
    handle: &SwitchHandle,
    options: &ServerOptions,
    stop: tokio::sync::oneshot::Receiver<()>,
) -> Result<(), ServerError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().thread_stack_size(STACK).build()?;
    let mut server = Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)));
    if let Some(files) = &options.tls {
        server = server.tls_config(tls_config(files)?).map_err(transport)?;
    }
    let service = P4RuntimeServer::new(SwitchService { handle: handle.clone() })
        .max_decoding_message_size(LONGEST_MESSAGE)
        .max_encoding_message_size(usize::MAX);
    listener.set_nonblocking(true)?;
    let due = handle.clone();
    let served = runtime.block_on(async move {
        let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(DUE).await;
                due.send_due();
            }
        });
        // Streams of controllers have no end of their own, so nothing is waited for.
        tokio::select! {
            served = server.serve_with_incoming(service, incoming) => served.map_err(transport),
            _ = stop => Ok(()),
        }
    });
    runtime.shutdown_background();
    served
}

/// Answers a message of a controller's stream; an error ends the stream.
pub(crate) fn answer(
    handle: &SwitchHandle,
    id: StreamId,
    request: StreamMessageRequest,
) -> Result<(), Status> {
    use stream_message_request::Update;
    let refuse = |error: &EntityError, details: stream_error::Details| {
        let message = StreamError {
            canonical_code: error.kind as i32,
            message: error.message.clone(),
            space: "p4.org".to_owned(),
            code: error.kind as i32,
            details: Some(details),
        };
        handle.streams(|streams| streams.send(id, stream_message_response::Update::Error(message)));
    };
    let denied = || EntityError::new(ErrorKind::PermissionDenied, "only a primary controller may do this");
    match request.update {
        Some(Update::Arbitration(update)) => handle.streams(|streams| streams.arbitrate(id, &update)),
        Some(Update::Packet(packet)) => {
            let moved = match handle.streams(|streams| streams.is_primary(id)) {
                true => handle.control(|switch| switch.receive_from_controller(&packet)),
                false => Some(Err(denied())),
            };
            match moved {
                Some(Ok(moved)) => handle.deliver(moved),
                Some(Err(error)) => {
                    let details = PacketOutError { packet_out: Some(packet) };
                    refuse(&error, stream_error::Details::PacketOut(details));
                }
                None => {
                    let error = EntityError::new(ErrorKind::FailedPrecondition, "the switch has no program");
                    let details = PacketOutError { packet_out: Some(packet) };
                    refuse(&error, stream_error::Details::PacketOut(details));
                }
            }
            Ok(())
        }
        Some(Update::DigestAck(receipt)) => {
            let is_primary = handle.streams(|streams| streams.is_primary(id));
            let confirmed = is_primary
                && handle
                    .control(|switch| switch.digests.confirm(receipt.digest_id, receipt.list_id))
                    .unwrap_or(false);
            if !confirmed {
                let error = match is_primary {
                    true => EntityError::new(ErrorKind::NotFound, "no such list of digests was sent"),
                    false => denied(),
                };
                let details = DigestListAckError { digest_list_ack: Some(receipt) };
                refuse(&error, stream_error::Details::DigestListAck(details));
            }
            Ok(())
        }
        Some(Update::Other(other)) => {
            let error = EntityError::unimplemented("messages of other types are not supported");
            refuse(&error, stream_error::Details::Other(StreamOtherError { other: Some(other) }));
            Ok(())
        }
        None => Err(Status::invalid_argument("the message is empty")),
    }
}
