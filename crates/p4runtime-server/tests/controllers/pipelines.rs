//! Programs that controllers send.

use std::sync::atomic::{AtomicBool, Ordering};

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4runtime::proto::v1::set_forwarding_pipeline_config_request::Action;
use millstream_p4runtime::proto::v1::{
    ForwardingPipelineConfig, GetForwardingPipelineConfigRequest, SetForwardingPipelineConfigRequest, Uint128,
};
use millstream_p4runtime_server::{ControlProgram, encode_config};
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

#[test]
fn a_config_may_be_in_the_envelope_that_controllers_of_the_reference_switch_make() {
    // `P4DeviceConfig`: `reassign` is 1, `device_data` is 3.
    let mut envelope = vec![0x08, 0x01, 0x1a];
    prost::encoding::encode_varint(PROGRAM.len() as u64, &mut envelope);
    envelope.extend(PROGRAM.as_bytes());
    let program = ControlProgram::from_config(&envelope).unwrap();
    assert_eq!(program.description.info, Names::new().program.description.info);
    assert_eq!(program.config, envelope);
}

#[test]
fn a_config_with_its_files_is_json_that_names_its_version() {
    let options = CompileOptions::default();
    let compiled = compile("switch.p4", &mut OneFile, &options);
    let config = encode_config(&compiled, &options);
    let value: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(value["millstream_p4_config"], 1);
    ControlProgram::from_config(&config).unwrap();
    let other = String::from_utf8(config)
        .unwrap()
        .replace("\"millstream_p4_config\":1", "\"millstream_p4_config\":2");
    assert!(ControlProgram::from_config(other.as_bytes()).is_err());
}

/// The program as a file.
struct OneFile;

impl SourceLoader for OneFile {
    fn load(&mut self, path: &str) -> Option<String> {
        (path == "switch.p4").then(|| PROGRAM.to_owned())
    }
}
