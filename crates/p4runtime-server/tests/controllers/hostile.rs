//! Controllers that die, or send what they should not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use millstream_p4runtime::proto::v1::{
    Entity, PacketOut, ReadRequest, StreamMessageRequest, TableEntry, Update, WriteRequest, entity,
    stream_message_request, update::Type,
};
use prost::Message as _;
use tonic::Code;

use crate::{Controller, Names, PROGRAM, TestSwitch, frame, insert, run, update};

#[test]
fn a_client_that_dies_in_a_batch_leaves_a_whole_switch() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let batch: Vec<Update> = (0..20_000u32)
            .map(|n| insert(names.station(&n.to_be_bytes(), names.call("forward", Some(2)))))
            .collect();
        let write = controller.write(batch, 2);
        _ = tokio::time::timeout(Duration::from_millis(3), write).await;
        drop(controller);
        let mut next = switch.primary(2).await;
        let sizes = switch.handle.control(|switch| switch.table_sizes()).unwrap();
        let entries = sizes.iter().find(|(name, _)| name.ends_with("stations")).unwrap().1;
        assert!(entries == 0 || entries == 20_000, "{entries}");
        let entry = insert(names.station(&[9, 9, 9, 9, 9, 9], names.call("forward", Some(2))));
        next.write(vec![entry], 0).await.unwrap();
    });
}

#[test]
fn garbage_is_refused_and_changes_nothing() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let good = insert(names.station(&[1], names.call("forward", Some(2))));
        controller.write(vec![good.clone()], 0).await.unwrap();
        let bytes = good.encode_to_vec();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut broken = bytes.clone();
                broken[at] ^= flip;
                if let Ok(update) = Update::decode(&broken[..]) {
                    _ = controller.write(vec![update], 1).await;
                }
            }
        }
        _ = controller.write(vec![Update::default()], 0).await.unwrap_err();
        _ = controller.write(vec![good], 99).await.unwrap_err();
        let delete = update(Type::Delete, entity::Entity::TableEntry(TableEntry::default()));
        _ = controller.write(vec![delete], 0).await.unwrap_err();
        let request =
            ReadRequest { device_id: 1, entities: vec![Entity::default()], ..ReadRequest::default() };
        let refused = controller.client.read(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        let other = WriteRequest { device_id: 7, ..WriteRequest::default() };
        assert_eq!(controller.client.write(other).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(switch.ports_of(&frame(77)), [0; 0]);
        controller.requests.send(StreamMessageRequest { update: None }).await.unwrap();
        assert_eq!(controller.next().await.unwrap_err().code(), Code::InvalidArgument);
    });
}

#[test]
fn bytes_that_are_no_grpc_end_their_own_connection_only() {
    run(async {
        let switch = TestSwitch::start(Some(PROGRAM));
        for garbage in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff"]
        {
            let mut stream = TcpStream::connect(switch.address.trim_start_matches("http://")).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            _ = stream.write_all(garbage);
            _ = stream.read(&mut [0; 512]);
        }
        let mut controller = Controller::open(&switch, 1).await;
        assert_eq!(controller.status().await, 0);
    });
}

#[test]
fn many_small_writes_are_all_there() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        for chunk in 0..20u16 {
            let entry = |n: u16| {
                let [high, low] = (chunk * 1000 + n).to_be_bytes();
                insert(names.station(&[1, high, low], names.call("forward", Some(2))))
            };
            controller.write((0..1000).map(entry).collect(), 0).await.unwrap();
        }
        let sizes = switch.handle.control(|switch| switch.table_sizes()).unwrap();
        assert!(sizes.iter().any(|(name, size)| name.ends_with("stations") && *size == 20_000), "{sizes:?}");
    });
}

#[test]
fn a_client_that_floods_its_stream_and_never_reads_holds_up_nobody() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut primary = switch.primary(2).await;
        let flooder = Controller::open(&switch, 1).await;
        let flood = async {
            for _ in 0..1_000_000 {
                let packet = PacketOut { payload: frame(1), metadata: Vec::new() };
                let update = Some(stream_message_request::Update::Packet(packet));
                if flooder.requests.send(StreamMessageRequest { update }).await.is_err() {
                    break;
                }
            }
        };
        _ = tokio::time::timeout(Duration::from_secs(2), flood).await;
        let entry = insert(names.station(&[1], names.call("forward", Some(2))));
        primary.write(vec![entry], 0).await.unwrap();
        assert_eq!(switch.ports_of(&frame(1)), [2]);
        assert!(switch.sent.lock().unwrap().is_empty(), "packets of a backup controller");
    });
}
