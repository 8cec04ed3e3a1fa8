//! Places for pins on a BPF file system in which strangers were before.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, MapSpec, PinDirError, check_pin, check_pin_dir, create_pin_dir, testing};

/// A user that does not exist here.
const STRANGER: u32 = 54_321;

/// A BPF file system of a test's own, as `mount -t bpf` makes it.
struct Mount(PathBuf);

impl Mount {
    fn new(name: &str) -> Option<Mount> {
        if !testing::require() {
            return None;
        }
        let at = std::env::temp_dir().join(format!("millstream-pinned-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&at).status().unwrap();
        assert!(mounted.success());
        assert_eq!(mode(&at), 0o1777);
        Some(Mount(at))
    }

    /// A directory with this owner and mode.
    fn directory(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn a_directory_that_a_stranger_made_first_is_refused_and_left_alone() {
    let Some(mount) = Mount::new("foreign") else { return };
    for (name, mode) in [("open", 0o777), ("closed", 0o755), ("sticky", 0o1777)] {
        let theirs = mount.directory(name, STRANGER, mode);
        for place in [theirs.clone(), theirs.join("millstream"), theirs.join("a/b")] {
            let refused = create_pin_dir(&place).unwrap_err();
            let advice = refused.hint();
            assert!(
                matches!(&refused, PinDirError::Foreign { path, owner: STRANGER } if *path == theirs),
                "{refused}"
            );
            assert!(advice.contains("mode=0700"), "{advice}");
            assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 0, "nothing was made there");
        }
        assert!(matches!(check_pin_dir(&theirs), Err(PinDirError::Foreign { .. })));
    }
    // Where the mount belongs to another user, nothing below is ours.
    chown(&mount.0, Some(STRANGER), None).unwrap();
    assert!(matches!(create_pin_dir(&mount.0.join("ours")), Err(PinDirError::Foreign { .. })));
}

#[test]
fn directories_are_made_for_their_owner_alone_and_what_is_ours_is_closed() {
    let Some(mount) = Mount::new("made") else { return };
    let place = mount.0.join("millstream/router/maps");
    create_pin_dir(&place).unwrap();
    for path in ["millstream", "millstream/router", "millstream/router/maps"] {
        assert_eq!(mode(&mount.0.join(path)), 0o700, "{path}");
    }
    // Made by a version that did not care.
    let ours = mount.directory("ours", 0, 0o777);
    assert!(matches!(check_pin_dir(&ours), Err(PinDirError::Writable { .. })));
    create_pin_dir(&ours).unwrap();
    assert_eq!(mode(&ours), 0o700);
    // A directory in which others may rename entries that they do not own is no way to ours.
    let loose = mount.directory("loose", 0, 0o777);
    assert!(
        matches!(create_pin_dir(&loose.join("pins")), Err(PinDirError::Writable { path, .. }) if path == loose)
    );
    std::fs::set_permissions(&mount.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = check_pin_dir(&place).unwrap_err();
    assert!(refused.hint().contains("chmod 0700"), "{refused}: {}", refused.hint());
}

#[test]
fn links_and_pins_of_strangers_are_not_what_was_pinned() {
    let Some(mount) = Mount::new("links") else { return };
    let ours = mount.directory("ours", 0, 0o700);
    symlink(&ours, mount.0.join("link")).unwrap();
    for place in ["link", "link/below"] {
        let refused = create_pin_dir(&mount.0.join(place)).unwrap_err();
        assert!(matches!(&refused, PinDirError::Kind { path } if path.ends_with("link")), "{refused}");
    }
    let spec = MapSpec {
        name: "m",
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        ..MapSpec::default()
    };
    let map = KernelMap::create(&spec).unwrap();
    let pin = ours.join("m");
    map.pin(&pin).unwrap();
    check_pin(&pin).unwrap();
    symlink(&pin, ours.join("other")).unwrap();
    assert!(matches!(check_pin(&ours.join("other")), Err(PinDirError::Kind { .. })));
    chown(&pin, Some(STRANGER), None).unwrap();
    assert!(matches!(check_pin(&pin), Err(PinDirError::Foreign { .. })));
}

#[test]
fn a_place_outside_of_a_bpf_file_system_is_none() {
    let outside = std::env::temp_dir().join("millstream-no-pins");
    assert!(matches!(create_pin_dir(&outside), Err(PinDirError::NotBpf { .. })));
    assert!(!outside.exists());
}
