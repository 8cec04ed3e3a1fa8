//! Elections of controllers.

use tonic::Code;

use crate::{Controller, Names, TestSwitch, insert, run};

#[test]
fn only_the_primary_controller_writes_and_a_backup_takes_over() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(crate::PROGRAM)), Names::new());
        let mut first = switch.primary(5).await;
        let mut second = Controller::open(&switch, 3).await;
        assert_eq!(second.status().await, Code::AlreadyExists as i32);
        let entry = names.station(&[1], names.call("forward", Some(2)));
        let refused = second.write(vec![insert(entry.clone())], 0).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        first.write(vec![insert(entry)], 0).await.unwrap();
        assert_eq!(switch.ports_of(&crate::frame(1)), [2]);

        let Controller { requests, responses, .. } = first;
        drop((requests, responses));
        assert_eq!(second.status().await, Code::NotFound as i32);
        let mut third = switch.primary(9).await;
        assert_eq!(second.status().await, Code::AlreadyExists as i32);
        let entry = names.station(&[2], names.call("forward", Some(3)));
        third.write(vec![insert(entry)], 0).await.unwrap();
        assert_eq!(switch.ports_of(&crate::frame(1)), [2], "entries outlive their controller");
    });
}

#[test]
fn two_controllers_with_one_election_id_are_not_both_served() {
    run(async {
        let switch = TestSwitch::start(Some(crate::PROGRAM));
        let _first = switch.primary(5).await;
        let mut second = Controller::open(&switch, 5).await;
        assert_eq!(second.next().await.unwrap_err().code(), Code::InvalidArgument);
    });
}
