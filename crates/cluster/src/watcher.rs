//! A thread that follows nodes: a list, then changes, then a list again when the watch cannot go on.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::api::{ApiClient, ApiError, NodeChange, NodeList};

/// Delay after an error: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// News of a watcher.
#[derive(Debug)]
pub enum WatchNews {
    /// All nodes that there are.
    Listed(NodeList),
    /// A change.
    Changed(NodeChange),
    /// The server does not answer, or refuses.
    Lost(ApiError),
}

/// Follows nodes, or one of them, until `end` is set or nobody receives the news.
pub fn follow(client: &ApiClient, name: Option<&str>, news: &SyncSender<WatchNews>, end: &Arc<AtomicBool>) {
    let mut retry = RETRY.0;
    while !end.load(Ordering::Relaxed) {
        let followed = client.list(name).and_then(|list| {
            let version = list.version.clone();
            if news.send(WatchNews::Listed(list)).is_err() {
                return Ok(ControlFlow::Break(()));
            }
            retry = RETRY.0;
            follow_from(client, name, version, news, end)
        });
        match followed {
            Ok(ControlFlow::Break(())) => return,
            Ok(ControlFlow::Continue(())) | Err(ApiError::Expired) => {}
            Err(error) => {
                if news.send(WatchNews::Lost(error)).is_err() {
                    return;
                }
                std::thread::sleep(retry);
                retry = (2 * retry).min(RETRY.1);
            }
        }
    }
}

/// Follows changes behind a version, over as many watches as it takes.
fn follow_from(
    client: &ApiClient,
    name: Option<&str>,
    mut version: String,
    news: &SyncSender<WatchNews>,
    end: &Arc<AtomicBool>,
) -> Result<ControlFlow<()>, ApiError> {
    while !end.load(Ordering::Relaxed) {
        let mut watch = client.watch(name, &version)?;
        while let Some(change) = watch.next()? {
            if news.send(WatchNews::Changed(change)).is_err() || end.load(Ordering::Relaxed) {
                return Ok(ControlFlow::Break(()));
            }
        }
        watch.version().clone_into(&mut version);
    }
    Ok(ControlFlow::Break(()))
}
