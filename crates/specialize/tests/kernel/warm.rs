//! Sessions that begin with the profile of another one.

use std::time::Duration;

use millstream_kernel::testing;
use millstream_specialize::report::CompileReason;
use millstream_specialize::{ProfileSettings, SessionReport};
use millstream_specializer::saved_profile::SavedProfile;

use crate::routed::{Wanted, generation, routed};

/// A router whose lookups are specialised by their hot keys.
fn wanted(name: &'static str, profile: ProfileSettings) -> Wanted {
    Wanted { twins: false, profile, ..Wanted::new(name, 50) }
}

/// The profile that a session leaves.
fn learnt(name: &'static str) -> SavedProfile {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("profile");
    let wanted = wanted(name, ProfileSettings { start: None, file: Some(path.clone()) });
    routed(&wanted, |_| (), |beside, ()| beside.until("a generation", |r| generation(r).is_some()));
    let text = std::fs::read_to_string(path).expect("it was kept");
    SavedProfile::parse(&text).expect("a profile")
}

fn is_made_for(wanted: CompileReason) -> impl Fn(&SessionReport) -> bool {
    move |r| matches!(r, SessionReport::Specialised { reason, .. } if *reason == wanted)
}

#[test]
fn the_first_variant_is_made_before_the_first_packet() {
    if !testing::require() {
        return;
    }
    let learnt = learnt("learns");
    assert!(learnt.packets > 0 && learnt.lookups.iter().any(|l| !l.keys.is_empty()), "{learnt:?}");
    let start = ProfileSettings { start: Some(learnt), file: None };
    // One frame an hour: none is due while the test lasts.
    let idle = Wanted { rate: Some(1.0 / 3600.0), ..wanted("warm_idle", start.clone()) };
    let ran = routed(
        &idle,
        |_| (),
        |beside, ()| {
            beside.until("a generation", is_made_for(CompileReason::Profile));
            std::thread::sleep(Duration::from_millis(500));
        },
    );
    let known = |r: &SessionReport| matches!(r, SessionReport::ProfileLoaded { known: 1.., .. });
    assert!(ran.told.iter().any(known), "{:?}", ran.told);
    let fitting = wanted("warm", start);
    let ran = routed(
        &fitting,
        |_| (),
        |beside, ()| {
            beside.until("the fit", |r| matches!(r, SessionReport::ProfileFit { .. }));
            beside.settled();
        },
    );
    assert_eq!(ran.counts.lost(), 0);
    let fits = |r: &SessionReport| matches!(r, SessionReport::ProfileFit { share: 0.9..=1.0 });
    assert!(ran.told.iter().any(fits), "the same traffic: {:?}", ran.told);
    assert!(!ran.told.iter().any(is_made_for(CompileReason::Start)), "{:?}", ran.told);
}

#[test]
fn a_profile_of_other_traffic_is_found_out() {
    if !testing::require() {
        return;
    }
    let mut other = learnt("learns_other");
    for key in other.lookups.iter_mut().flat_map(|lookup| &mut lookup.keys) {
        let half = key.key.len() / 2;
        key.key[half..].iter_mut().for_each(|byte| *byte ^= 0xff);
    }
    let wrong = wanted("warm_wrong", ProfileSettings { start: Some(other), file: None });
    let ran = routed(
        &wrong,
        |_| (),
        |beside, ()| {
            beside.until("a generation", is_made_for(CompileReason::Profile));
            beside.until("other code", is_made_for(CompileReason::Traffic));
            beside.settled();
        },
    );
    assert_eq!(ran.counts.lost(), 0);
    let misses = |r: &SessionReport| matches!(r, SessionReport::ProfileFit { share: 0.0..0.1 });
    assert!(ran.told.iter().any(misses), "{:?}", ran.told);
}
