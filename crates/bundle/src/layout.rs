//! OCI image layouts: `oci-layout`, `index.json` and `blobs/sha256/DIGITS`, in a folder or a tar file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::manifest::{MANIFEST_TYPE, checked};
use crate::{
    BlobDigest, BlobSource, Bundle, BundleError, Descriptor, LARGEST_BLOB, LARGEST_BUNDLE, LARGEST_DOCUMENT,
};

/// Contents of `oci-layout`.
const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
/// Media type of `index.json`.
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// Bytes of a tar file beyond its blobs: headers and padding of more entries than a bundle has.
const TAR_FRAME: u64 = 1 << 20;
/// `O_NONBLOCK` of Linux on all our machines: a pipe in place of a file does not block the reader.
const NONBLOCKING: i32 = 0o4000;

/// Contents of `index.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    manifests: Vec<Descriptor>,
}

impl Bundle {
    /// Reads a bundle from a folder or a tar file.
    ///
    /// # Errors
    /// If it cannot be read, is no bundle, damaged, incomplete or too large.
    pub fn read(path: &Path) -> Result<Bundle, BundleError> {
        if path.is_dir() {
            let mut folder = Folder(path.to_owned());
            let index = folder.file("index.json", LARGEST_DOCUMENT)?;
            return from_index(&index, &mut folder);
        }
        let mut files = TarFiles::read(path)?;
        let index = files.take("index.json")?;
        if index.len() as u64 > LARGEST_DOCUMENT {
            return Err(BundleError::TooLarge("index.json".to_owned()));
        }
        from_index(&index, &mut files)
    }

    /// Writes the bundle to a new folder, or to a tar file if the name ends in `.tar`; the same bundle gives the
    /// same bytes. A tar file is replaced as a whole.
    ///
    /// # Errors
    /// If the folder exists, or something cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), BundleError> {
        let files = self.files()?;
        if path.extension().is_some_and(|ending| ending == "tar") {
            return write_tar(path, &files).map_err(|source| io_error(path, source));
        }
        fs::create_dir(path).map_err(|source| io_error(path, source))?;
        fs::create_dir_all(path.join("blobs/sha256")).map_err(|source| io_error(path, source))?;
        for (name, data) in &files {
            let file = path.join(name);
            fs::write(&file, data).map_err(|source| io_error(&file, source))?;
        }
        Ok(())
    }

    /// The files of the layout by name.
    fn files(&self) -> Result<BTreeMap<String, Vec<u8>>, BundleError> {
        let manifest = self.manifest()?;
        let index = Index {
            schema_version: 2,
            media_type: INDEX_TYPE.to_owned(),
            manifests: vec![Descriptor::of(MANIFEST_TYPE, &manifest)],
        };
        let index = serde_json::to_vec(&index).map_err(BundleError::Document)?;
        let blobs = self.blobs().into_iter().map(|(_, data)| data.to_vec()).chain([manifest]);
        let blobs = blobs.map(|data| (blob_name(&BlobDigest::of(&data)), data));
        let frame = [("oci-layout".to_owned(), LAYOUT.into()), ("index.json".to_owned(), index)];
        Ok(frame.into_iter().chain(blobs).collect())
    }
}

fn from_index(index: &[u8], source: &mut dyn BlobSource) -> Result<Bundle, BundleError> {
    let index: Index = serde_json::from_slice(index).map_err(BundleError::Document)?;
    let [manifest] = index.manifests.as_slice() else {
        return Err(BundleError::OtherArtifact(format!("it has {} manifests", index.manifests.len())));
    };
    let manifest = checked(source, manifest, LARGEST_DOCUMENT)?;
    Bundle::from_manifest(&manifest, source)
}

fn blob_name(digest: &BlobDigest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn io_error(path: &Path, source: io::Error) -> BundleError {
    BundleError::Io { place: path.display().to_string(), source }
}

/// A layout in a folder.
struct Folder(PathBuf);

impl Folder {
    /// The bytes of a file, at most one more than `most`.
    fn file(&self, name: &str, most: u64) -> Result<Vec<u8>, BundleError> {
        let path = self.0.join(name);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => BundleError::Missing(path.display().to_string()),
            _ => io_error(&path, source),
        };
        let file = open(&path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > most {
            return Err(BundleError::TooLarge(path.display().to_string()));
        }
        Ok(bytes)
    }
}

impl BlobSource for Folder {
    fn blob(&mut self, wanted: &Descriptor) -> Result<Vec<u8>, BundleError> {
        self.file(&blob_name(&wanted.digest), wanted.size)
    }
}

/// A regular file, opened for reading.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCKING).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
    }
}

/// The regular files of a tar file, by name.
struct TarFiles(BTreeMap<String, Vec<u8>>);

impl TarFiles {
    fn read(path: &Path) -> Result<TarFiles, BundleError> {
        let failed = |source| io_error(path, source);
        let too_large = || BundleError::TooLarge(path.display().to_string());
        let file = open(path).map_err(failed)?;
        let most = LARGEST_BUNDLE + TAR_FRAME;
        if file.metadata().map_err(failed)?.len() > most {
            return Err(too_large());
        }
        let mut archive = tar::Archive::new(file.take(most));
        let (mut files, mut total) = (BTreeMap::new(), 0);
        for entry in archive.entries().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            total += entry.size().min(LARGEST_BUNDLE + 1);
            if entry.size() > LARGEST_BLOB || total > LARGEST_BUNDLE {
                return Err(too_large());
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let mut data = Vec::new();
            entry.take(LARGEST_BLOB).read_to_end(&mut data).map_err(failed)?;
            if files.insert(name, data).is_some() {
                return Err(BundleError::Inconsistent("a name is in the tar file twice".to_owned()));
            }
        }
        Ok(TarFiles(files))
    }

    /// A file, under its name or that behind `./`, as some programs write it.
    fn take(&mut self, name: &str) -> Result<Vec<u8>, BundleError> {
        let found = self.0.remove(name).or_else(|| self.0.remove(&format!("./{name}")));
        found.ok_or_else(|| BundleError::Missing(name.to_owned()))
    }
}

impl BlobSource for TarFiles {
    fn blob(&mut self, wanted: &Descriptor) -> Result<Vec<u8>, BundleError> {
        self.take(&blob_name(&wanted.digest))
    }
}

/// Writes a tar file without times and owners.
fn write_tar(path: &Path, files: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    let mut archive = tar::Builder::new(builder.permissions(permissions).tempfile_in(folder)?);
    for (name, data) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, data.as_slice())?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}
