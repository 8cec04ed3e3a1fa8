//! Subcommands of `millstream cluster`: flags, and reports for people.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use miette::{Result, miette};
use millstream_bundle::RegistryAccess;
use millstream_console::duration_args::positive_seconds;
use millstream_console::exit::{self, Exit, WithExitCode};
use millstream_console::{credentials_file, output};
use millstream_lab::os;
use serde_json::json;

use crate::agent::{AgentSettings, NodeAgent, PrepareError};
use crate::api::{ApiAccess, ApiClient, ApiError};
use crate::bundle_store::BundleStore;
use crate::controller::{RolloutError, RolloutNotice, RolloutRequest, roll_out};
use crate::definition::node_definition_yaml;
use crate::orders::{NodeOrder, OrderOutcome, give_order};
use crate::resource::{BundleTarget, NodeHealth, NodeMode, NodeResource};
use crate::rollout::{RolloutPhase, RolloutTimes, StageSize};
use crate::verdict::HealthGate;

/// Version of the JSON that these commands print.
const SCHEMA: u32 = 1;
/// Folder in which Kubernetes gives a pod its credentials.
const POD_CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Server outside of pods: `kubectl proxy`.
const PROXY: &str = "http://127.0.0.1:8001";

/// Flags of `millstream cluster`.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
enum ClusterCommand {
    /// Print the definition of the custom resource, as YAML
    Crd,
    /// Bring a node's daemon to the state that its resource wants, and report; runs on each node
    Agent(AgentArgs),
    /// Show the wanted and the actual state of all nodes; ends with 1 if one is not healthy
    Status(ClusterStatusArgs),
    /// Change nodes in stages, and return all of them if one fails or gets slower
    ///
    /// It ends with 1 if the nodes were returned. Ctrl-C returns them, too.
    Rollout(Box<RolloutArgs>),
    /// Return the nodes of an unfinished rollout to their earlier state
    Return(ReturnArgs),
    /// Put the original programs back on all nodes
    Off(OrderArgs),
    /// Specialize again on all nodes
    On(OrderArgs),
    /// Measure the worth of specialization: specialized code, the originals, specialized code again
    OffTest(OffTestArgs),
}

/// Flags about the API server.
#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// The API server; in a pod its own cluster's, else that of `kubectl proxy`
    #[arg(long, value_name = "URL", env = "MILLSTREAM_API_SERVER")]
    server: Option<String>,
    /// File with a bearer token for the server
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the certificates of the server's authority, as PEM
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl ServerArgs {
    fn client(&self) -> Result<ApiClient> {
        let mut access = ApiAccess {
            server: self.server.clone().unwrap_or_else(|| PROXY.to_owned()),
            token: self.token_file.clone(),
            authority: self.ca_file.clone(),
        };
        let pod =
            std::env::var("KUBERNETES_SERVICE_HOST").ok().zip(std::env::var("KUBERNETES_SERVICE_PORT").ok());
        if let (None, Some((host, port))) = (&self.server, pod) {
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            access.server = format!("https://{host}:{port}");
            let folder = PathBuf::from(POD_CREDENTIALS);
            access.token = access.token.or_else(|| Some(folder.join("token")));
            access.authority = access.authority.or_else(|| Some(folder.join("ca.crt")));
        }
        ApiClient::new(access).map_err(of_api)
    }
}

/// Flags of `millstream cluster agent`.
#[derive(Debug, clap::Args)]
struct AgentArgs {
    /// Name of the node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// The daemon's socket
    #[arg(
        long,
        value_name = "PATH",
        env = "MILLSTREAM_SOCKET",
        default_value = "/run/millstream/daemon.sock"
    )]
    socket: PathBuf,
    /// Folder of bundles, to which the daemon's configuration refers
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/millstream/bundles")]
    bundles: PathBuf,
    /// Bundle of a program, by digest, for a node that has no resource yet
    #[arg(long = "bundle", value_name = "PROGRAM=REFERENCE", value_parser = bundle_target)]
    first_bundles: Vec<BundleTarget>,
    /// Install the bundles, and end: before the daemon starts
    #[arg(long)]
    prepare: bool,
    /// Longest time between two reports, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive_seconds)]
    report: f64,
    /// Use HTTP without TLS for the registry
    #[arg(long)]
    plain_http: bool,
    /// Log in to the registry with `USER:PASSWORD` from this file, which only its owner may read
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_REGISTRY_CREDENTIALS")]
    credentials: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Flags of `millstream cluster status`.
#[derive(Debug, clap::Args)]
struct ClusterStatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Flags of `millstream cluster rollout`.
#[derive(Debug, clap::Args)]
struct RolloutArgs {
    /// The nodes; without a name, all
    nodes: Vec<String>,
    /// New bundle of a program, by digest
    #[arg(long = "bundle", value_name = "PROGRAM=REFERENCE", value_parser = bundle_target)]
    bundles: Vec<BundleTarget>,
    /// New mode
    #[arg(long, value_name = "MODE")]
    mode: Option<RolloutMode>,
    /// Nodes that are changed by the end of each stage; the last stage is all nodes
    #[arg(long, value_name = "N|N%", value_delimiter = ',', default_value = "1,10%,50%,100%")]
    stages: Vec<StageSize>,
    /// Seconds for which all nodes of a stage must be good before the next
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    soak: f64,
    /// Seconds in which a changed node must become good
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = positive_seconds)]
    deadline: f64,
    /// Longest time between two reports of a changed node, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    silence: f64,
    /// Largest increase of a program's time per packet, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    max_slowdown: f64,
    /// Smallest gain of specialized code, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, allow_negative_numbers = true)]
    min_gain: f64,
    /// Leave out nodes that are not healthy at the beginning; else there is no rollout then
    #[arg(long)]
    skip_unhealthy: bool,
    /// Name of the rollout; without it, a new one
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RolloutMode {
    Specialised,
    Originals,
}

/// Flags of `millstream cluster return`.
#[derive(Debug, clap::Args)]
struct ReturnArgs {
    /// Keep the new state of the changed nodes
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    order: OrderArgs,
}

/// Flags of orders to nodes.
#[derive(Debug, clap::Args)]
struct OrderArgs {
    /// The nodes; without a name, all
    nodes: Vec<String>,
    /// Seconds in which the nodes must confirm
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    time: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Flags of `millstream cluster off-test`.
#[derive(Debug, clap::Args)]
struct OffTestArgs {
    /// Length of each of the three parts, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    #[command(flatten)]
    order: OrderArgs,
}

fn bundle_target(text: &str) -> Result<BundleTarget, String> {
    let (program, reference) = text.split_once('=').ok_or("write PROGRAM=REFERENCE")?;
    let digest = reference.rsplit_once("@sha256:").map_or("", |(_, digest)| digest);
    if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("name the bundle by its digest: `millstream bundle push` prints it".to_owned());
    }
    Ok(BundleTarget { program: program.to_owned(), reference: reference.to_owned() })
}

/// `millstream cluster`.
///
/// # Errors
/// If the API server refuses, or the command line cannot be used.
pub fn run(args: &ClusterArgs) -> Result<ExitCode> {
    let exit = match &args.command {
        ClusterCommand::Crd => {
            out!("{}", node_definition_yaml());
            Exit::Done
        }
        ClusterCommand::Agent(args) => agent(args)?,
        ClusterCommand::Status(args) => status(args)?,
        ClusterCommand::Rollout(args) => rollout(args)?,
        ClusterCommand::Return(args) => order(&args.order, NodeOrder::EndRollout { keep: args.keep })?,
        ClusterCommand::Off(args) => order(args, NodeOrder::Mode(NodeMode::Originals))?,
        ClusterCommand::On(args) => order(args, NodeOrder::Mode(NodeMode::Specialised))?,
        ClusterCommand::OffTest(args) => off_test(args)?,
    };
    Ok(exit.into())
}

/// Error of the API server, with advice.
#[derive(Debug, thiserror::Error)]
#[error("{error}\n  {help}")]
struct ApiFailure {
    error: ApiError,
    help: &'static str,
}

impl WithExitCode for ApiFailure {
    fn exit(&self) -> Exit {
        match &self.error {
            ApiError::Unreachable { .. } => Exit::Unknown,
            ApiError::Refused { status: 401 | 403, .. } => Exit::NotPermitted,
            ApiError::Conflict(_) => Exit::Negative,
            _ => Exit::Input,
        }
    }
}

fn of_api(error: ApiError) -> miette::Report {
    let help = match &error {
        ApiError::Unreachable { .. } => {
            "outside of a pod, run `kubectl proxy`, or name the server by --server"
        }
        ApiError::NotFound(_) => {
            "`millstream cluster status` lists the nodes; `millstream cluster crd | kubectl apply -f -` \
             installs the resource"
        }
        ApiError::Refused { status: 401 | 403, .. } => {
            "the token lacks rights; the chart has a role for rollouts"
        }
        _ => "`millstream cluster status` shows the nodes",
    };
    exit::ended(ApiFailure { error, help })
}

fn agent(args: &AgentArgs) -> Result<Exit> {
    let credentials = args.credentials.as_deref().map(credentials_file::read).transpose()?;
    let registry = RegistryAccess { time: Duration::from_secs(60), plain_http: args.plain_http, credentials };
    let store = BundleStore::new(&args.bundles, registry);
    let settings = AgentSettings {
        node: args.node.clone(),
        socket: args.socket.clone(),
        report: Duration::from_secs_f64(args.report),
        bundles: args.first_bundles.clone(),
    };
    let agent = NodeAgent::new(settings, args.server.client()?, store);
    if args.prepare {
        return match agent.prepare() {
            Ok(()) => Ok(Exit::Done),
            Err(PrepareError::Api(error)) if error.is_transient() => {
                // The bundles of the last time are as good as they were.
                errln!("{error}; the installed bundles stay");
                Ok(Exit::Done)
            }
            Err(error) => Err(miette!("{error}")),
        };
    }
    os::catch_interrupts();
    let end = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&end);
    std::thread::spawn(move || {
        while !os::interrupted() {
            std::thread::sleep(Duration::from_millis(100));
        }
        ending.store(true, Ordering::Relaxed);
    });
    agent.run(&end);
    Ok(Exit::Done)
}

fn status(args: &ClusterStatusArgs) -> Result<Exit> {
    let mut nodes = args.server.client()?.list(None).map_err(of_api)?.nodes;
    nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    if args.json {
        outln!("{}", json!({"schema": SCHEMA, "nodes": nodes}));
    } else {
        nodes.iter().for_each(|node| out!("{}", node_text(node)));
    }
    let is_healthy =
        |node: &NodeResource| node.status.as_ref().is_some_and(|status| status.health == NodeHealth::Healthy);
    Ok(if nodes.iter().all(is_healthy) { Exit::Done } else { Exit::Negative })
}

/// A node as text: a line for it, and one for each program.
fn node_text(node: &NodeResource) -> String {
    let name = &node.metadata.name;
    let mark = node.spec.rollout.as_ref().map_or(String::new(), |mark| format!(", rollout {}", mark.name));
    let Some(status) = &node.status else {
        return format!("{name}: no report, {:?} wanted{mark}\n", node.spec.mode);
    };
    let message = status.message.as_ref().map_or(String::new(), |message| format!(": {message}"));
    let is_late = status.observed_generation < node.metadata.generation;
    let wanted = if is_late || status.mode != node.spec.mode {
        format!(", {:?} wanted", node.spec.mode)
    } else {
        String::new()
    };
    let mut text = format!("{name}: {:?}, {:?}{wanted}{mark}{message}\n", status.health, status.mode);
    for program in &status.programs {
        let gain =
            program.gain.map_or("gain unknown".to_owned(), |gain| format!("gain {:.1} %", 100.0 * gain));
        let form = program.verification.as_ref().map_or(String::new(), |form| format!(", {form}"));
        text += &format!(
            "  {}: {}, generation {}, {gain}{form}\n",
            program.name, program.state, program.generation
        );
    }
    text
}

fn rollout(args: &RolloutArgs) -> Result<Exit> {
    if args.bundles.is_empty() && args.mode.is_none() {
        return Err(miette!(
            help = "give --bundle PROGRAM=REFERENCE or --mode",
            "the rollout would change nothing"
        ));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = Duration::from_secs_f64;
    let request = RolloutRequest {
        name: args.name.clone().unwrap_or_else(|| format!("rollout-{}", now.as_millis())),
        nodes: args.nodes.clone(),
        bundles: args.bundles.clone(),
        mode: args.mode.map(|mode| match mode {
            RolloutMode::Specialised => NodeMode::Specialised,
            RolloutMode::Originals => NodeMode::Originals,
        }),
        stages: args.stages.clone(),
        gate: HealthGate { max_slowdown: args.max_slowdown / 100.0, min_gain: args.min_gain / 100.0 },
        times: RolloutTimes {
            soak: seconds(args.soak),
            deadline: seconds(args.deadline),
            silence: seconds(args.silence),
            give_up: Duration::from_secs(60),
        },
        skip_unhealthy: args.skip_unhealthy,
    };
    os::catch_interrupts();
    let phase = roll_out(&args.server.client()?, &request, os::interruption(), &mut tell);
    let phase = phase.map_err(|error| match error {
        RolloutError::Api(error) => of_api(error),
        RolloutError::Unfinished(_) => {
            miette!(
                help = "`millstream cluster return` returns its nodes; --keep keeps their new state",
                "{error}"
            )
        }
        RolloutError::Unhealthy(_) => miette!(help = "--skip-unhealthy leaves them out", "{error}"),
        RolloutError::Empty => miette!("{error}"),
    })?;
    let (exit, outcome, reason, unconfirmed) = match phase {
        RolloutPhase::Returned { reason, unconfirmed } => {
            (Exit::Negative, "returned", Some(reason), unconfirmed)
        }
        _ => (Exit::Done, "done", None, Vec::new()),
    };
    if args.json {
        outln!(
            "{}",
            json!({"schema": SCHEMA, "rollout": request.name, "outcome": outcome, "reason": reason,
                   "unconfirmed": unconfirmed})
        );
    } else {
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        outln!("{}: {outcome}{reason}", request.name);
        unconfirmed.iter().for_each(|node| outln!("  {node} has not confirmed its return"));
    }
    output::flush();
    Ok(exit)
}

fn tell(notice: &RolloutNotice) {
    match notice {
        RolloutNotice::Stage(stage, size) => errln!("stage {stage}: {size} nodes"),
        RolloutNotice::Changed(node) => errln!("  {node}: changed"),
        RolloutNotice::Returning(reason) => errln!("returning all changed nodes: {reason}"),
        RolloutNotice::Returned(node) => errln!("  {node}: returned"),
        RolloutNotice::ServerLost(reason) => errln!("the API server is away, nothing changes: {reason}"),
        RolloutNotice::ServerFound => errln!("the API server answers again"),
    }
}

/// Gives an order to nodes, and prints each outcome.
fn order(args: &OrderArgs, order: NodeOrder) -> Result<Exit> {
    let outcomes = ordered(args, order)?;
    if args.json {
        let rows: Vec<_> = outcomes
            .iter()
            .map(|outcome| json!({"node": outcome.node, "confirmed": outcome.confirmed, "reason": outcome.reason}))
            .collect();
        outln!("{}", json!({"schema": SCHEMA, "nodes": rows}));
    } else {
        for outcome in &outcomes {
            let state = if outcome.confirmed { "confirmed" } else { "not confirmed" };
            let reason = outcome.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
            outln!("{}: {state}{reason}", outcome.node);
        }
    }
    Ok(if outcomes.iter().all(|outcome| outcome.confirmed) { Exit::Done } else { Exit::Negative })
}

fn ordered(args: &OrderArgs, order: NodeOrder) -> Result<Vec<OrderOutcome>> {
    let time = Duration::from_secs_f64(args.time);
    give_order(&args.server.client()?, &args.nodes, order, time).map_err(of_api)
}

fn off_test(args: &OffTestArgs) -> Result<Exit> {
    let order = OrderArgs {
        nodes: args.order.nodes.clone(),
        time: args.order.time + 3.0 * f64::from(args.seconds),
        json: args.order.json,
        server: ServerArgs {
            server: args.order.server.server.clone(),
            token_file: args.order.server.token_file.clone(),
            ca_file: args.order.server.ca_file.clone(),
        },
    };
    let outcomes = ordered(&order, NodeOrder::OffTest { seconds: args.seconds })?;
    if order.json {
        let rows: Vec<_> = outcomes
            .iter()
            .map(
                |outcome| json!({"node": outcome.node, "result": outcome.off_test, "reason": outcome.reason}),
            )
            .collect();
        outln!("{}", json!({"schema": SCHEMA, "nodes": rows}));
    } else {
        outcomes.iter().for_each(|outcome| outln!("{}", off_test_text(outcome)));
    }
    let has_worth =
        |outcome: &OrderOutcome| outcome.off_test.as_ref().is_some_and(|result| result.worth.is_some());
    Ok(if outcomes.iter().all(has_worth) { Exit::Done } else { Exit::Unknown })
}

fn off_test_text(outcome: &OrderOutcome) -> String {
    let Some(result) = &outcome.off_test else {
        return format!(
            "{}: no result: {}",
            outcome.node,
            outcome.reason.as_deref().unwrap_or("not in time")
        );
    };
    let ns =
        |load: &crate::resource::LoadReport| load.packet_ns().map_or("?".to_owned(), |ns| format!("{ns:.1}"));
    let worth = result.worth.map_or("no packets".to_owned(), |worth| format!("saves {:.1} %", 100.0 * worth));
    format!(
        "{}: {worth}; receive path {} ns per packet specialised, {} ns with the originals",
        outcome.node,
        ns(&result.specialised),
        ns(&result.originals)
    )
}
