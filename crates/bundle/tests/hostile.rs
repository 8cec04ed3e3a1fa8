//! Bundles that somebody has changed: each is refused with a reason, and takes neither memory nor time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millstream_bundle::{BlobDigest, BlobSource, Bundle, BundleError, Descriptor, PartRole};
use serde_json::{Value, json};

fn bundle() -> Bundle {
    let form = PartRole::Optimized { kernel: "6.1".to_owned() };
    let parts = [
        (PartRole::Original, "a/../b.o".to_owned(), b"original".to_vec()),
        (form, "b.o".to_owned(), b"optimized".to_vec()),
        (PartRole::Rules, "one".to_owned(), b"rules".to_vec()),
        (PartRole::Rules, "two".to_owned(), b"rules".to_vec()),
    ];
    Bundle::new("test", parts).unwrap().with_signature("hmac-sha256:00".to_owned())
}

/// Blobs in memory.
struct Blobs(BTreeMap<BlobDigest, Vec<u8>>);

impl BlobSource for Blobs {
    fn blob(&mut self, wanted: &Descriptor) -> Result<Vec<u8>, BundleError> {
        self.0.get(&wanted.digest).cloned().ok_or(BundleError::Missing("it".to_owned()))
    }
}

/// The manifest and the blobs of the bundle, as somebody can change them.
fn parts_of(bundle: &Bundle) -> (Value, Blobs) {
    let manifest = serde_json::from_slice(&bundle.manifest().unwrap()).unwrap();
    let blobs = bundle.blobs().into_iter().map(|(descriptor, data)| (descriptor.digest, data.to_vec()));
    (manifest, Blobs(blobs.collect()))
}

/// The reason why a manifest is refused.
fn refusal(manifest: &Value, blobs: &mut Blobs) -> String {
    Bundle::from_manifest(&serde_json::to_vec(manifest).unwrap(), blobs).unwrap_err().to_string()
}

/// The same manifest with another list of parts.
fn with_list(change: impl Fn(&mut Value)) -> (Value, Blobs) {
    let (mut manifest, mut blobs) = parts_of(&bundle());
    let digest: BlobDigest = manifest["config"]["digest"].as_str().unwrap().parse().unwrap();
    let mut list: Value = serde_json::from_slice(&blobs.0[&digest]).unwrap();
    change(&mut list);
    let list = serde_json::to_vec(&list).unwrap();
    manifest["config"]["digest"] = json!(BlobDigest::of(&list));
    manifest["config"]["size"] = json!(list.len());
    blobs.0.insert(BlobDigest::of(&list), list);
    (manifest, blobs)
}

fn folder(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

fn blob(layout: &Path, data: &[u8]) -> PathBuf {
    layout.join("blobs/sha256").join(BlobDigest::of(data).hex())
}

#[test]
fn a_folder_and_a_tar_file_give_back_what_was_written_and_the_same_bytes_each_time() {
    for name in ["layout", "layout.tar"] {
        let (_folder, path) = folder(name);
        bundle().write(&path).unwrap();
        assert_eq!(Bundle::read(&path).unwrap(), bundle(), "{name}");
    }
    let (_folder, path) = folder("layout.tar");
    bundle().write(&path).unwrap();
    let first = std::fs::read(&path).unwrap();
    Bundle::read(&path).unwrap().write(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), first);
}

#[test]
fn an_existing_folder_is_not_written_to() {
    let (_folder, path) = folder("layout");
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(bundle().write(&path), Err(BundleError::Io { .. })));
}

#[test]
fn other_bytes_than_the_digest_says_are_refused_in_each_blob() {
    for (descriptor, data) in bundle().blobs() {
        let (_folder, path) = folder("layout");
        bundle().write(&path).unwrap();
        let file = blob(&path, data);
        let mut changed = data.to_vec();
        changed[0] ^= 1;
        std::fs::write(&file, &changed).unwrap();
        let damaged = Bundle::read(&path).unwrap_err();
        assert!(matches!(damaged, BundleError::Damaged(digest) if digest == descriptor.digest), "{damaged}");
        for (size, refused) in [(changed.len() - 1, "another length"), (changed.len() + 1, "too large")] {
            changed.resize(size, 0);
            std::fs::write(&file, &changed).unwrap();
            let why = Bundle::read(&path).unwrap_err().to_string();
            assert!(why.contains(refused), "{why}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(Bundle::read(&path), Err(BundleError::Missing(_))));
    }
}

#[test]
fn a_pipe_in_place_of_a_blob_does_not_block() {
    let (_folder, path) = folder("layout");
    bundle().write(&path).unwrap();
    let file = blob(&path, b"original");
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let why = Bundle::read(&path).unwrap_err().to_string();
    assert!(why.contains("no regular file"), "{why}");
}

#[test]
fn a_tar_file_cut_anywhere_is_refused() {
    let (_folder, path) = folder("layout.tar");
    bundle().write(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let last_blob = whole.len() - 1024 - 512;
    for length in (0..last_blob).step_by(97) {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(Bundle::read(&path).is_err(), "{length} bytes");
    }
}

#[test]
fn a_name_that_is_in_a_tar_file_twice_is_refused() {
    let (_folder, path) = folder("layout.tar");
    bundle().write(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let end = whole.len() - 1024;
    std::fs::write(&path, [&whole[..end], &whole].concat()).unwrap();
    assert!(matches!(Bundle::read(&path), Err(BundleError::Inconsistent(_))));
}

#[test]
fn sizes_are_refused_before_anything_is_read() {
    let (mut manifest, mut blobs) = parts_of(&bundle());
    manifest["config"]["size"] = json!(u64::MAX);
    assert!(refusal(&manifest, &mut blobs).contains("too large"));
    let (manifest, mut blobs) = with_list(|list| list["parts"][0]["size"] = json!(u64::MAX));
    assert!(refusal(&manifest, &mut blobs).contains("too large"));
    let (manifest, mut blobs) = with_list(|list| {
        let mut rules = list["parts"][2].clone();
        rules["size"] = json!(128_u64 << 20);
        list["parts"].as_array_mut().unwrap().extend(vec![rules; 5]);
    });
    assert_eq!(
        refusal(&manifest, &mut blobs),
        "the bundle is too large: a blob has at most 128 MiB, a bundle 512 MiB"
    );
}

#[test]
fn a_digest_is_no_path() {
    for digest in
        ["sha256:../../../../etc/passwd", "sha512:00", "sha256:", &format!("sha256:{}", "A".repeat(64))]
    {
        let (mut manifest, mut blobs) = parts_of(&bundle());
        manifest["config"]["digest"] = json!(digest);
        assert!(refusal(&manifest, &mut blobs).contains("sha256"), "{digest}");
    }
}

#[test]
fn a_list_that_contradicts_itself_is_refused() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 7] = [
        (|list| list["schema"] = json!(2), "version 2"),
        (|list| list["parts"][0]["role"] = json!("rules"), "no original"),
        (|list| list["parts"][1]["role"] = json!("original"), "two have the role"),
        (|list| list["parts"][1]["role"] = json!("unheard of"), "unknown variant"),
        (|list| list["parts"][0]["name"] = json!("n".repeat(256)), "too long"),
        (|list| list["parts"][1]["digest"] = json!(BlobDigest::of(b"elsewhere")), "is no layer"),
        (|list| list["parts"] = json!(vec![list["parts"][2].clone(); 300]), "more than"),
    ];
    for (change, expected) in changes {
        let (manifest, mut blobs) = with_list(change);
        let why = refusal(&manifest, &mut blobs);
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn another_artifact_is_named() {
    let (mut manifest, mut blobs) = parts_of(&bundle());
    manifest["config"]["mediaType"] = json!("application/vnd.oci.image.config.v1+json");
    assert!(refusal(&manifest, &mut blobs).contains("it is no bundle"));
}

#[test]
fn the_signed_text_changes_with_each_part_and_its_use() {
    let text = |role: PartRole, name: &str, data: &[u8]| {
        let parts = [
            (PartRole::Original, "a.o".to_owned(), b"original".to_vec()),
            (role, name.to_owned(), data.to_vec()),
        ];
        Bundle::new("test", parts).unwrap().signed_text()
    };
    let texts = [
        text(PartRole::Rules, "x", b"1"),
        text(PartRole::Costs, "x", b"1"),
        text(PartRole::Rules, "y", b"1"),
        text(PartRole::Rules, "x", b"2"),
        text(PartRole::Proof { kernel: "6.1".to_owned() }, "x", b"1"),
    ];
    let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
    assert_eq!(distinct.len(), texts.len());
}
