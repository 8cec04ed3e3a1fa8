//! The calls of P4Runtime. Source: P4Runtime specification 1.4, sections 7 and 12 to 18.

use std::pin::Pin;
use std::sync::Arc;

use millstream_p4runtime::entities::EntityError;
use millstream_p4runtime::proto::rpc;
use millstream_p4runtime::proto::v1::p4_runtime_server::P4Runtime;
use millstream_p4runtime::proto::v1::{
    CapabilitiesRequest, CapabilitiesResponse, ForwardingPipelineConfig, GetForwardingPipelineConfigRequest,
    GetForwardingPipelineConfigResponse, ReadRequest, ReadResponse, SetForwardingPipelineConfigRequest,
    SetForwardingPipelineConfigResponse, StreamMessageRequest, StreamMessageResponse, WriteRequest,
    WriteResponse, forwarding_pipeline_config::Cookie, get_forwarding_pipeline_config_request::ResponseType,
    set_forwarding_pipeline_config_request::Action,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::handle::SwitchHandle;
use crate::program::{ControlProgram, ProgramError};
use crate::streams::{MOST_WAITING, election_number};

/// Version of the interface.
const VERSION: &str = "1.4.1";
/// Entities of one message of an answer, at most.
const CHUNK: usize = 1 << 12;
/// Messages of an answer that wait, at most.
const CHUNKS_WAITING: usize = 4;

/// The service of a switch.
pub(crate) struct SwitchService {
    pub(crate) handle: SwitchHandle,
}

fn no_program() -> Status {
    Status::failed_precondition("the switch has no program: send one by SetForwardingPipelineConfig")
}

/// Status of a call that one entity makes fail.
fn status(error: &EntityError) -> Status {
    Status::new(Code::from(error.kind as i32), error.message.clone())
}

/// Status with the messages of all updates of a batch.
fn batch_status(failed: &rpc::Status) -> Status {
    let details = failed.encode_to_vec();
    Status::with_details(Code::from(failed.code), failed.message.clone(), details.into())
}

fn program_status(error: &ProgramError) -> Status {
    match error {
        ProgramError::CompiledJson => Status::invalid_argument(error.to_string()),
        _ => Status::invalid_argument(error.to_string()),
    }
}

impl SwitchService {
    /// Compiles the program of a config, away from the thread that answers.
    async fn compile(&self, config: Option<ForwardingPipelineConfig>) -> Result<Arc<ControlProgram>, Status> {
        let config = config.ok_or_else(|| Status::invalid_argument("the config is missing"))?;
        let compiled = tokio::task::spawn_blocking(move || {
            let program = ControlProgram::from_config(&config.p4_device_config)?;
            let info = config.p4info.unwrap_or_default();
            program.check_info(&info).map(|()| Arc::new(program))
        });
        let compiled = compiled.await.map_err(|error| Status::internal(error.to_string()))?;
        compiled.map_err(|error| program_status(&error))
    }

    /// Runs a program in place of the one that runs.
    async fn commit(
        &self,
        program: Arc<ControlProgram>,
        cookie: Option<u64>,
        keeps_state: bool,
    ) -> Result<(), Status> {
        let handle = self.handle.clone();
        let replaced = tokio::task::spawn_blocking(move || handle.replace(program, cookie, keeps_state));
        let report = replaced.await.map_err(|error| Status::internal(error.to_string()))?;
        let report = report.map_err(Status::internal)?;
        if keeps_state {
            tracing::info!("{} entities are kept, {} are not", report.kept, report.lost_count);
            report.lost.iter().for_each(|reason| tracing::info!("not kept: {reason}"));
        }
        Ok(())
    }
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl P4Runtime for SwitchService {
    type ReadStream = ResponseStream<ReadResponse>;
    type StreamChannelStream = ReceiverStream<Result<StreamMessageResponse, Status>>;

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let request = request.into_inner();
        let election = election_number(request.election_id.as_ref());
        let role = role_of(&request);
        let check = || self.handle.streams(|s| s.check_writer(request.device_id, &role, election));
        check()?;
        let atomicity = request.atomicity.try_into();
        let atomicity = atomicity.map_err(|_| Status::invalid_argument("the atomicity is not known"))?;
        // Between the check and the write no other controller becomes primary: both are on this thread.
        let outcome = self.handle.control(|switch| switch.write(&request.updates, atomicity));
        match outcome.ok_or_else(no_program)?.status() {
            None => Ok(Response::new(WriteResponse {})),
            Some(failed) => Err(batch_status(&failed)),
        }
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        self.handle.streams(|streams| streams.check_device(request.device_id))?;
        let handle = self.handle.clone();
        let found =
            tokio::task::spawn_blocking(move || handle.control(|switch| switch.read(&request.entities)));
        let found = found.await.map_err(|error| Status::internal(error.to_string()))?;
        let mut found = found.ok_or_else(no_program)?.map_err(|error| status(&error))?;
        let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
        tokio::spawn(async move {
            while !found.is_empty() {
                let rest = found.split_off(CHUNK.min(found.len()));
                let entities = std::mem::replace(&mut found, rest);
                if sender.send(Ok(ReadResponse { entities })).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        let election = election_number(request.election_id.as_ref());
        self.handle.streams(|s| s.check_writer(request.device_id, &request.role, election))?;
        let action = request.action();
        let cookie = request.config.as_ref().and_then(|config| config.cookie).map(|cookie| cookie.cookie);
        match action {
            Action::Unspecified => return Err(Status::invalid_argument("the action is not set")),
            Action::Verify => _ = self.compile(request.config).await?,
            Action::VerifyAndSave => {
                let program = self.compile(request.config).await?;
                self.handle.slot(|slot| (slot.saved, slot.saved_cookie) = (Some(program), cookie));
            }
            Action::VerifyAndCommit => {
                let program = self.compile(request.config).await?;
                self.commit(program, cookie, false).await?;
            }
            Action::ReconcileAndCommit => {
                let program = self.compile(request.config).await?;
                self.commit(program, cookie, true).await?;
            }
            Action::Commit => {
                if request.config.is_some() {
                    return Err(Status::invalid_argument("COMMIT takes no config"));
                }
                let saved = self.handle.slot(|slot| (slot.saved.take(), slot.saved_cookie));
                let nothing = || Status::failed_precondition("no program is saved: VERIFY_AND_SAVE does it");
                self.commit(saved.0.ok_or_else(nothing)?, saved.1, false).await?;
            }
        }
        Ok(Response::new(SetForwardingPipelineConfigResponse {}))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        self.handle.streams(|streams| streams.check_device(request.device_id))?;
        let kind = request.response_type();
        let config = self.handle.slot(|slot| {
            let program = slot.running.as_ref()?.program();
            let has_info = matches!(kind, ResponseType::All | ResponseType::P4infoAndCookie);
            let has_config = matches!(kind, ResponseType::All | ResponseType::DeviceConfigAndCookie);
            Some(ForwardingPipelineConfig {
                p4info: has_info.then(|| program.description.info.clone()),
                p4_device_config: if has_config { program.config.clone() } else { Vec::new() },
                cookie: slot.cookie.map(|cookie| Cookie { cookie }),
            })
        });
        Ok(Response::new(GetForwardingPipelineConfigResponse {
            config: Some(config.ok_or_else(no_program)?),
        }))
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let mut requests = request.into_inner();
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        let handle = self.handle.clone();
        let id = handle.streams(|streams| streams.open(sender.clone()));
        tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                let answered = match request {
                    Ok(request) => crate::server::answer(&handle, id, request),
                    Err(error) => Err(error),
                };
                if let Err(error) = answered {
                    let _ = sender.send(Err(error)).await;
                    break;
                }
            }
            handle.streams(|streams| streams.close(id));
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn capabilities(
        &self,
        _: Request<CapabilitiesRequest>,
    ) -> Result<Response<CapabilitiesResponse>, Status> {
        let p4runtime_api_version = VERSION.to_owned();
        Ok(Response::new(CapabilitiesResponse { p4runtime_api_version, experimental: None }))
    }
}

/// Role of a writer; earlier versions number them.
fn role_of(request: &WriteRequest) -> String {
    #[expect(deprecated, reason = "controllers of earlier versions set the old field")]
    match (request.role.as_str(), request.role_id) {
        ("", 0) => String::new(),
        ("", id) => id.to_string(),
        (name, _) => name.to_owned(),
    }
}
