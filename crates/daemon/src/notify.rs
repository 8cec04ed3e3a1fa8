//! Notifications to systemd (`Type=notify`): sd_notify(3), without its library.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Notifies systemd, if it asks for that.
pub(super) fn sd_notify(what: &str) {
    if let Some(to) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(to.as_bytes(), what)
    {
        tracing::warn!("telling the service manager {what}: {error}");
    }
}

fn send(to: &[u8], what: &str) -> io::Result<()> {
    let address = match to.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(to))?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_addresses_are_told() {
        let path = std::env::temp_dir().join(format!("millstream_notify_{}", std::process::id()));
        let file = UnixDatagram::bind(&path).unwrap();
        let name = format!("millstream_notify_{}", std::process::id());
        let hidden = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        let mut text = [0; 16];
        let n = file.recv(&mut text).unwrap();
        assert_eq!(&text[..n], b"READY=1");
        let n = hidden.recv(&mut text).unwrap();
        assert_eq!(&text[..n], b"STOPPING=1");
        std::fs::remove_file(path).unwrap();
        assert!(send(b"/nowhere", "").is_err());
    }
}
