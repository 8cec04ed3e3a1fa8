//! A running switch and its controllers, over gRPC.

mod elections;
mod entities;
mod hostile;
mod packets;
mod pipelines;
mod routes;
mod tls;
mod words;

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_p4_lower::LoweredProgram;
use millstream_p4_switch::{InterpreterExecutor, SentPacket, SwitchExecutor};
use millstream_p4runtime::proto::v1::p4_runtime_client::P4RuntimeClient;
use millstream_p4runtime::proto::v1::{
    Action, Entity, FieldMatch, MasterArbitrationUpdate, StreamMessageRequest, StreamMessageResponse,
    TableAction, TableEntry, Uint128, Update, WriteRequest, action, entity, field_match,
    stream_message_request, stream_message_response, table_action, update,
};
use millstream_p4runtime_server::{
    ControlProgram, ServerOptions, SwitchHandle, SwitchSettings, serve_p4runtime,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// The program.
pub(crate) const PROGRAM: &str = include_str!("../programs/switch.p4");
/// Longest wait for a message that has to come.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) type Client = P4RuntimeClient<Channel>;

/// A switch with its server.
pub(crate) struct TestSwitch {
    pub(crate) handle: SwitchHandle,
    pub(crate) address: String,
    /// Packets that left because of controllers' packets.
    pub(crate) sent: Arc<Mutex<Vec<SentPacket>>>,
    _stop: oneshot::Sender<()>,
}

/// Names of the program's objects.
pub(crate) struct Names {
    pub(crate) program: Arc<ControlProgram>,
}

fn executor(program: &Arc<LoweredProgram>) -> Result<Box<dyn SwitchExecutor + Send>, String> {
    Ok(Box::new(InterpreterExecutor::new(Arc::clone(program))))
}

impl TestSwitch {
    /// A switch that runs a program, or none.
    pub(crate) fn start(program: Option<&str>) -> TestSwitch {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        let handle = SwitchHandle::new(
            1,
            Arc::new(executor),
            SwitchSettings::default(),
            Arc::new(move |packets| kept.lock().unwrap().extend_from_slice(packets)),
        );
        if let Some(text) = program {
            handle.load(Arc::new(ControlProgram::from_config(text.as_bytes()).unwrap())).unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let served = handle.clone();
        std::thread::spawn(move || serve_p4runtime(listener, &served, &ServerOptions::default(), stopped));
        TestSwitch { handle, address, sent, _stop: stop }
    }

    pub(crate) async fn connect(&self) -> Client {
        let channel = Channel::from_shared(self.address.clone()).unwrap().connect().await.unwrap();
        P4RuntimeClient::new(channel)
    }

    /// A primary controller.
    pub(crate) async fn primary(&self, election: u64) -> Controller {
        let mut controller = Controller::open(self, election).await;
        assert_eq!(controller.status().await, 0);
        controller
    }

    /// Moves a packet, and returns the ports by which it leaves.
    pub(crate) fn ports_of(&self, packet: &[u8]) -> Vec<u64> {
        let moved = self.handle.move_packets(|switch| switch.receive(1, packet).unwrap()).unwrap();
        self.handle.send_to_controllers(moved.for_controllers);
        moved.sent.iter().map(|packet| packet.port).collect()
    }
}

/// A controller with a stream.
pub(crate) struct Controller {
    pub(crate) client: Client,
    pub(crate) requests: mpsc::Sender<StreamMessageRequest>,
    pub(crate) responses: Streaming<StreamMessageResponse>,
    pub(crate) election: u64,
}

impl Controller {
    pub(crate) async fn open(switch: &TestSwitch, election: u64) -> Controller {
        let mut client = switch.connect().await;
        let (requests, receiver) = mpsc::channel(64);
        let arbitration = MasterArbitrationUpdate {
            device_id: 1,
            election_id: Some(Uint128 { high: 0, low: election }),
            ..MasterArbitrationUpdate::default()
        };
        let update = Some(stream_message_request::Update::Arbitration(arbitration));
        requests.send(StreamMessageRequest { update }).await.unwrap();
        let responses = client.stream_channel(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Controller { client, requests, responses, election }
    }

    pub(crate) async fn next(&mut self) -> Result<stream_message_response::Update, Status> {
        let message = tokio::time::timeout(PATIENCE, self.responses.message()).await.expect("a message");
        Ok(message?.expect("an open stream").update.expect("an update"))
    }

    /// Code of the next answer of an election.
    pub(crate) async fn status(&mut self) -> i32 {
        match self.next().await.unwrap() {
            stream_message_response::Update::Arbitration(update) => update.status.unwrap().code,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn write(&mut self, updates: Vec<Update>, atomicity: i32) -> Result<(), Status> {
        let election_id = Some(Uint128 { high: 0, low: self.election });
        let request =
            WriteRequest { device_id: 1, election_id, updates, atomicity, ..WriteRequest::default() };
        self.client.write(request).await.map(|_| ())
    }
}

impl Names {
    pub(crate) fn new() -> Names {
        Names { program: Arc::new(ControlProgram::from_config(PROGRAM.as_bytes()).unwrap()) }
    }

    pub(crate) fn table(&self, name: &str) -> u32 {
        let tables = &self.program.description.info.tables;
        let ids = tables.iter().filter_map(|table| table.preamble.as_ref());
        ids.into_iter().find(|preamble| preamble.name.ends_with(name)).unwrap().id
    }

    pub(crate) fn action(&self, name: &str) -> u32 {
        let actions = &self.program.description.info.actions;
        let ids = actions.iter().filter_map(|action| action.preamble.as_ref());
        ids.into_iter().find(|preamble| preamble.name.ends_with(name)).unwrap().id
    }

    /// An action with one number as its argument.
    pub(crate) fn call(&self, name: &str, argument: Option<u8>) -> Action {
        let params = argument.map(|value| action::Param { param_id: 1, value: vec![value] });
        Action { action_id: self.action(name), params: params.into_iter().collect() }
    }

    /// An entry of `stations`.
    pub(crate) fn station(&self, address: &[u8], action: Action) -> TableEntry {
        let exact = field_match::Exact { value: address.to_vec() };
        let kind = Some(field_match::FieldMatchType::Exact(exact));
        TableEntry {
            table_id: self.table("stations"),
            r#match: vec![FieldMatch { field_id: 1, field_match_type: kind }],
            action: Some(TableAction { r#type: Some(table_action::Type::Action(action)) }),
            ..TableEntry::default()
        }
    }
}

pub(crate) fn update(kind: update::Type, entity: entity::Entity) -> Update {
    Update { r#type: kind as i32, entity: Some(Entity { entity: Some(entity) }) }
}

pub(crate) fn insert(entry: TableEntry) -> Update {
    update(update::Type::Insert, entity::Entity::TableEntry(entry))
}

/// A frame to an address.
pub(crate) fn frame(to: u8) -> Vec<u8> {
    let mut frame = vec![0, 0, 0, 0, 0, to, 0, 0, 0, 0, 0, 9, 0x88, 0xb5];
    frame.extend([0; 46]);
    frame
}

/// Runs a test with a runtime of its own.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}
