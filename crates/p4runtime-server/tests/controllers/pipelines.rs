//! Programs that controllers send.

use std::sync::atomic::{AtomicBool, Ordering};

use millstream_p4runtime::proto::v1::set_forwarding_pipeline_config_request::Action;
use millstream_p4runtime::proto::v1::{
    ForwardingPipelineConfig, GetForwardingPipelineConfigRequest, SetForwardingPipelineConfigRequest, Uint128,
};
use millstream_p4runtime_server::ControlProgram;
use tonic::{Code, Status};

use crate::{Controller, Names, PROGRAM, TestSwitch, frame, insert, run};

async fn send(controller: &mut Controller, action: Action, text: Option<&str>) -> Result<(), Status> {
    let config = text.map(|text| ForwardingPipelineConfig {
        p4info: ControlProgram::from_config(text.as_bytes()).ok().map(|program| program.description.info),
        p4_device_config: text.as_bytes().to_vec(),
        cookie: None,
    });
    let request = SetForwardingPipelineConfigRequest {
        device_id: 1,
        election_id: Some(Uint128 { high: 0, low: controller.election }),
        action: action as i32,
        config,
        ..SetForwardingPipelineConfigRequest::default()
    };
    controller.client.set_forwarding_pipeline_config(request).await.map(|_| ())
}

#[test]
fn a_switch_gets_its_program_from_a_controller() {
    run(async {
        let (switch, names) = (TestSwitch::start(None), Names::new());
        let mut controller = switch.primary(1).await;
        let entry = insert(names.station(&[1], names.call("forward", Some(2))));
        let refused = controller.write(vec![entry.clone()], 0).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        for (text, reason) in [("{\"program\": 1}", "P4 source"), ("control", "pipeline.p4"), ("", "neither")]
        {
            let refused = send(&mut controller, Action::VerifyAndCommit, Some(text)).await.unwrap_err();
            assert!(refused.message().contains(reason), "{text}: {refused:?}");
            assert_eq!(refused.code(), Code::InvalidArgument);
        }
        assert!(send(&mut controller, Action::Commit, None).await.is_err());
        send(&mut controller, Action::Verify, Some(PROGRAM)).await.unwrap();
        send(&mut controller, Action::VerifyAndSave, Some(PROGRAM)).await.unwrap();
        assert!(switch.handle.control(|_| ()).is_none());
        send(&mut controller, Action::Commit, None).await.unwrap();
        controller.write(vec![entry], 0).await.unwrap();
        assert_eq!(switch.ports_of(&frame(1)), [2]);
        let request = GetForwardingPipelineConfigRequest { device_id: 1, ..Default::default() };
        let answer = controller.client.get_forwarding_pipeline_config(request).await.unwrap().into_inner();
        let config = answer.config.unwrap();
        assert_eq!(config.p4_device_config, PROGRAM.as_bytes());
        assert_eq!(config.p4info, Some(names.program.description.info.clone()));
    });
}

#[test]
fn a_program_is_replaced_under_traffic_and_keeps_what_has_the_same_name_and_type() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let entries = vec![
            insert(names.station(&[1], names.call("forward", Some(2)))),
            insert(names.station(&[2], names.call("to_controller", None))),
        ];
        controller.write(entries, 0).await.unwrap();
        let stops = AtomicBool::new(false);
        let handle = switch.handle.clone();
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let mut moved = 0;
                while !stops.load(Ordering::Relaxed) {
                    let ports =
                        handle.move_packets(|switch| switch.receive(1, &frame(1)).unwrap().sent).unwrap();
                    assert_eq!(ports.iter().map(|packet| packet.port).collect::<Vec<_>>(), [2]);
                    moved += 1;
                }
                moved
            });
            scope.spawn(|| {
                let replaced = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let changed = PROGRAM.replace("action drop()", "action drop(bit<8> reason)");
                let changed = changed.replace("default_action = drop()", "default_action = drop(1)");
                replaced.block_on(async {
                    let mut other = switch.primary(2).await;
                    for text in [&changed, PROGRAM, &changed] {
                        send(&mut other, Action::ReconcileAndCommit, Some(text)).await.unwrap();
                    }
                });
                stops.store(true, Ordering::Relaxed);
            });
            assert!(traffic.join().unwrap() > 0);
        });
        assert_eq!(switch.ports_of(&frame(1)), [2]);
        let mut third = switch.primary(3).await;
        send(&mut third, Action::VerifyAndCommit, Some(PROGRAM)).await.unwrap();
        assert_eq!(switch.ports_of(&frame(1)), [0; 0], "a program that is not reconciled begins anew");
    });
}
