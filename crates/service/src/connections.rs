//! Connections of a server: a task for each, so many at a time.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// The task of a connection, once it has begun.
pub(crate) type Connection = Arc<OnceLock<AbortHandle>>;

/// Runs `serve` for each connection, for at most so many at a time; others wait until one of these ends.
///
/// # Errors
/// If the listener cannot be waited for.
pub(crate) async fn serve_each<F>(
    listener: TcpListener,
    most: usize,
    serve: impl Fn(TcpStream, Connection) -> F,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(most));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // For example, too many open files; that may pass.
                tracing::debug!("a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let connection = Connection::default();
        let served = serve(stream, Arc::clone(&connection));
        let task = tokio::spawn(async move {
            served.await;
            drop(place);
        });
        // The task has not begun yet: this thread runs it.
        let _ = connection.set(task.abort_handle());
    }
}
