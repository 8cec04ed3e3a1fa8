//! Packets and digests on streams.

use millstream_p4runtime::proto::v1::{
    DigestEntry, DigestListAck, PacketMetadata, PacketOut, StreamMessageRequest, digest_entry, entity,
    p4_data, stream_message_request, stream_message_response, update::Type,
};

use crate::{Names, PROGRAM, TestSwitch, frame, insert, run, update};

#[test]
fn packets_go_to_the_controller_and_come_from_it() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let entry = names.station(&[1], names.call("to_controller", None));
        controller.write(vec![insert(entry)], 0).await.unwrap();
        assert_eq!(switch.ports_of(&frame(1)), [0; 0]);
        let stream_message_response::Update::Packet(packet) = controller.next().await.unwrap() else {
            panic!()
        };
        assert_eq!((packet.payload, packet.metadata[0].value.as_slice()), (frame(1), &[1][..]));

        let metadata = vec![PacketMetadata { metadata_id: 1, value: vec![7] }];
        let packet = PacketOut { payload: frame(4), metadata };
        let update = Some(stream_message_request::Update::Packet(packet));
        controller.requests.send(StreamMessageRequest { update }).await.unwrap();
        // An answer shows that the packet was served: messages of a stream have an order.
        let update = Some(stream_message_request::Update::Packet(PacketOut {
            metadata: vec![PacketMetadata { metadata_id: 77, value: vec![7] }],
            ..PacketOut::default()
        }));
        controller.requests.send(StreamMessageRequest { update }).await.unwrap();
        let stream_message_response::Update::Error(error) = controller.next().await.unwrap() else {
            panic!()
        };
        assert_eq!(error.canonical_code, 3);
        let sent = switch.sent.lock().unwrap();
        assert_eq!((sent[0].port, &sent[0].data), (7, &frame(4)));
    });
}

#[test]
fn digests_come_in_lists_and_again_after_their_receipt() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let digest_id = names.program.description.info.digests[0].preamble.as_ref().unwrap().id;
        let config = digest_entry::Config { max_timeout_ns: 0, max_list_size: 1, ack_timeout_ns: i64::MAX };
        let entry = DigestEntry { digest_id, config: Some(config) };
        let enable = update(Type::Insert, entity::Entity::DigestEntry(entry));
        controller.write(vec![enable], 0).await.unwrap();
        (0..3).for_each(|_| _ = switch.ports_of(&frame(1)));
        let stream_message_response::Update::Digest(list) = controller.next().await.unwrap() else {
            panic!()
        };
        let Some(p4_data::Data::Struct(data)) = &list.data[0].data else { panic!("{list:?}") };
        let bits = |at: usize| data.members[at].data.clone();
        assert_eq!(bits(0), Some(p4_data::Data::Bitstring(vec![9])));
        assert_eq!((bits(1), list.data.len()), (Some(p4_data::Data::Bitstring(vec![1])), 1));
        let receipt = DigestListAck { digest_id, list_id: list.list_id };
        let update = Some(stream_message_request::Update::DigestAck(receipt));
        controller.requests.send(StreamMessageRequest { update }).await.unwrap();
        loop {
            _ = switch.ports_of(&frame(1));
            let next = tokio::time::timeout(std::time::Duration::from_millis(50), controller.next()).await;
            if let Ok(Ok(stream_message_response::Update::Digest(again))) = next {
                assert_eq!((again.data.clone(), again.list_id), (list.data.clone(), list.list_id + 1));
                break;
            }
        }
    });
}

#[test]
fn an_entry_without_packets_is_announced() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let mut entry = names.station(&[1], names.call("forward", Some(2)));
        entry.idle_timeout_ns = 1_000_000;
        controller.write(vec![insert(entry.clone())], 0).await.unwrap();
        let update = controller.next().await.unwrap();
        let stream_message_response::Update::IdleTimeoutNotification(idle) = update else {
            panic!("{update:?}")
        };
        assert_eq!(idle.table_entry[0].r#match, entry.r#match);
        assert_eq!(idle.table_entry[0].idle_timeout_ns, 1_000_000);
    });
}
