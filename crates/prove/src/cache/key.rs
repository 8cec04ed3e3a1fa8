//! Keys for signing answers: the user's own, which nobody else has, and one that a team shares.
//!
//! A tag is an HMAC-SHA256 of a text that begins with its purpose, so that a tag for one purpose is never
//! valid for another.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use hmac::{Hmac, Mac as _};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

use super::QueryDigest;

/// Name of the file of a user's own key.
const NAME: &str = "answers.key";
/// Least number of bytes in a key.
const SHORTEST: usize = 32;
/// Largest file of a key, in bytes.
const LONGEST: u64 = 4096;
/// Permission bits of others than the owner.
const OTHERS: u32 = 0o077;
/// Permission bits that let others than the owner write.
pub(super) const WRITABLE: u32 = 0o022;

/// A secret key for signing answers.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreKey([u8; 32]);

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKey")
    }
}

/// Reason why a file holds no usable key.
#[derive(Debug, thiserror::Error)]
pub enum StoreKeyError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Somebody else may read or write the file.
    #[error(
        "{path}: a key must be a regular file of yours (or root's) that nobody else may read: chmod 0600 it"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The key is too short to be secret.
    #[error("{path}: a key has at least {SHORTEST} bytes; `openssl rand -hex 32` makes one")]
    Short {
        /// The file.
        path: PathBuf,
    },
}

impl StoreKey {
    /// Key in a file of at least 32 bytes that only its owner, this user or root, may read. White space
    /// around it does not count.
    ///
    /// # Errors
    /// If the file cannot be read, others may read it, or it is too short.
    pub fn read(path: &Path) -> Result<StoreKey, StoreKeyError> {
        let failed = |source| StoreKeyError::Io { path: path.to_owned(), source };
        let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let ours = [geteuid().as_raw(), 0].contains(&about.uid());
        if !about.is_file() || !ours || about.mode() & OTHERS != 0 {
            return Err(StoreKeyError::Exposed { path: path.to_owned() });
        }
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
        let secret = bytes.trim_ascii();
        if secret.len() < SHORTEST {
            return Err(StoreKeyError::Short { path: path.to_owned() });
        }
        Ok(StoreKey(Sha256::digest(secret).into()))
    }

    /// The user's own key, made at first use: `$XDG_STATE_HOME/millstream/answers.key`, or below
    /// `~/.local/state`.
    ///
    /// # Errors
    /// If there is no such place, others may write to it, or the key cannot be read.
    pub fn of_user() -> Result<StoreKey, StoreKeyError> {
        let named = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")));
        let absent = || StoreKeyError::Io {
            path: PathBuf::from("$HOME"),
            source: io::Error::new(io::ErrorKind::NotFound, "it is not set"),
        };
        StoreKey::load_or_create(&base.ok_or_else(absent)?.join("millstream"))
    }

    /// The key of a folder of this user's, made at first use.
    ///
    /// # Errors
    /// If others may write to the folder, or the key cannot be made or read.
    pub fn load_or_create(folder: &Path) -> Result<StoreKey, StoreKeyError> {
        let path = folder.join(NAME);
        let failed = |source| StoreKeyError::Io { path: path.clone(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        if !is_private(&std::fs::metadata(folder).map_err(failed)?) {
            return Err(StoreKeyError::Exposed { path });
        }
        if !path.exists() {
            make(folder, &path).map_err(failed)?;
        }
        StoreKey::read(&path)
    }

    /// Tag of a text, as hexadecimal digits. The text must begin with its purpose.
    pub fn tag(&self, text: &str) -> String {
        hex::encode(self.mac(text).finalize().into_bytes())
    }

    /// Returns true if a tag is the text's, in a time that does not depend on the tag.
    pub fn signed(&self, tag: &str, text: &str) -> bool {
        let Ok(QueryDigest(bytes)) = tag.parse() else { return false };
        self.mac(text).verify_slice(&bytes).is_ok()
    }

    fn mac(&self, text: &str) -> Hmac<Sha256> {
        // A key shorter than the hash's block is filled up with zeros.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(text.as_bytes());
        mac
    }
}

/// Returns true if only this user may change a file or the entries of a folder.
pub(super) fn is_private(about: &std::fs::Metadata) -> bool {
    about.uid() == geteuid().as_raw() && about.mode() & WRITABLE == 0
}

/// Makes a key. Of two processes that do so at once the first one's key stays.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    // Made with mode 0600 by the crate.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{}", QueryDigest(bytes))?;
    match file.persist_noclobber(path) {
        Err(e) if e.error.kind() != io::ErrorKind::AlreadyExists => Err(e.error),
        _ => Ok(()),
    }
}
