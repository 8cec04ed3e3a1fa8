//! Programs as controllers give them: P4 source, alone or with the files that it includes.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_p4::{CompileOptions, CompiledProgram, SourceLoader, compile};
use millstream_p4_lower::{LowerOptions, LoweredProgram, lower_with};
use millstream_p4runtime::entities::{PipelineError, PipelineIndex};
use millstream_p4runtime::proto::config::v1::P4Info;
use millstream_p4runtime::{InfoError, ProgramDescription, describe_program};
use prost::Message as _;
use serde::{Deserialize, Serialize};

/// Version of the form in which a program has its files.
const CONFIG_VERSION: u32 = 1;
/// Name of a program that came without one.
const UNNAMED: &str = "pipeline.p4";

/// Reason why a program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The bytes are compiled for the reference switch.
    #[error(
        "this is JSON for the reference switch; send the P4 source as device config, or what \
         `millstream p4 info --config-out` writes"
    )]
    CompiledJson,
    /// The bytes are neither text nor a program with its files.
    #[error("the device config is neither P4 source nor what `millstream p4 info --config-out` writes")]
    NoProgram,
    /// The program has errors.
    #[error("{0}")]
    Rejected(String),
    /// The program has no P4Info.
    #[error(transparent)]
    Info(#[from] InfoError),
    /// The P4Info cannot be used.
    #[error(transparent)]
    Index(#[from] PipelineError),
    /// The controller's P4Info is not that of the program.
    #[error("the P4Info is not that of the program: {0}")]
    OtherInfo(String),
}

/// A program with all files that it includes.
#[derive(Serialize, Deserialize)]
struct ProgramFiles {
    millstream_p4_config: u32,
    main: String,
    search_paths: Vec<String>,
    definitions: Vec<(String, String)>,
    files: BTreeMap<String, String>,
}

impl SourceLoader for ProgramFiles {
    fn load(&mut self, path: &str) -> Option<String> {
        self.files.get(path).cloned()
    }
}

/// Writes a program with all files that it includes, as controllers can send it.
pub fn encode_config(program: &CompiledProgram, options: &CompileOptions) -> Vec<u8> {
    // In front of the program are the values of definitions, one source each.
    let read = || program.sources.files().skip(options.definitions.len());
    let files: BTreeMap<_, _> = read().map(|file| (file.path.clone(), file.text.clone())).collect();
    let main = read().next().map_or(UNNAMED.to_owned(), |file| file.path.clone());
    let all = ProgramFiles {
        millstream_p4_config: CONFIG_VERSION,
        main,
        search_paths: options.search_paths.clone(),
        definitions: options.definitions.clone(),
        files,
    };
    serde_json::to_vec(&all).unwrap_or_default()
}

/// A program that can be run and controlled.
#[derive(Debug)]
pub struct ControlProgram {
    /// Code.
    pub lowered: Arc<LoweredProgram>,
    /// The same with marks for a trace.
    pub(crate) traced: Arc<LoweredProgram>,
    /// P4Info, and entries that the program states.
    pub description: ProgramDescription,
    /// P4Info by ids.
    pub index: Arc<PipelineIndex>,
    /// Bytes that a controller sent, or could send, for this program.
    pub config: Vec<u8>,
}

impl ControlProgram {
    /// Describes and lowers a program.
    ///
    /// # Errors
    /// [`ProgramError`], with the places of errors.
    pub fn new(program: &CompiledProgram, config: Vec<u8>) -> Result<ControlProgram, ProgramError> {
        let errors: Vec<String> = program
            .diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.is_error())
            .map(|diagnostic| diagnostic.render(&program.sources).to_string())
            .collect();
        if !errors.is_empty() {
            return Err(ProgramError::Rejected(errors.join("\n")));
        }
        let description = describe_program(program)?;
        let lower_as = |traces| {
            let lowered = lower_with(program, LowerOptions { traces, ..LowerOptions::default() });
            lowered.map(Arc::new).map_err(|error| ProgramError::Rejected(error.render(&program.sources)))
        };
        let (lowered, traced) = (lower_as(false)?, lower_as(true)?);
        let index = Arc::new(PipelineIndex::new(&description.info)?);
        Ok(ControlProgram { lowered, traced, description, index, config })
    }

    /// Reads the device config of a controller: P4 source, or what [`encode_config`] wrote.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn from_config(config: &[u8]) -> Result<ControlProgram, ProgramError> {
        let mut files = read_config(config)?;
        let options = CompileOptions {
            search_paths: files.search_paths.clone(),
            definitions: files.definitions.clone(),
        };
        let main = files.main.clone();
        ControlProgram::new(&compile(&main, &mut files, &options), config.to_vec())
    }

    /// Checks that a controller's P4Info is that of the program; the package's description may differ.
    ///
    /// # Errors
    /// [`ProgramError::OtherInfo`] with the first part that differs.
    pub fn check_info(&self, given: &P4Info) -> Result<(), ProgramError> {
        let own = &self.description.info;
        let parts = [
            ("tables", given.tables == own.tables),
            ("actions", given.actions == own.actions),
            ("action profiles", given.action_profiles == own.action_profiles),
            ("counters", given.counters == own.counters && given.direct_counters == own.direct_counters),
            ("meters", given.meters == own.meters && given.direct_meters == own.direct_meters),
            ("controller headers", given.controller_packet_metadata == own.controller_packet_metadata),
            ("value sets", given.value_sets == own.value_sets),
            ("registers", given.registers == own.registers),
            ("digests", given.digests == own.digests),
        ];
        match parts.iter().find(|(_, is_same)| !is_same) {
            Some((name, _)) => Err(ProgramError::OtherInfo(format!("the {name} differ"))),
            None => Ok(()),
        }
    }
}

/// Envelope that controllers for the reference switch put around its JSON.
/// Source: `p4/tmp/p4config.proto` of PI, `P4DeviceConfig`.
#[derive(Clone, PartialEq, prost::Message)]
struct DeviceEnvelope {
    #[prost(bool, tag = "1")]
    reassign: bool,
    #[prost(bytes = "vec", tag = "3")]
    device_data: Vec<u8>,
}

fn read_config(config: &[u8]) -> Result<ProgramFiles, ProgramError> {
    let envelope = DeviceEnvelope::decode(config).ok().filter(|envelope| !envelope.device_data.is_empty());
    let config = envelope.as_ref().map_or(config, |envelope| &envelope.device_data);
    let text = std::str::from_utf8(config).map_err(|_| ProgramError::NoProgram)?;
    match text.trim_start().chars().next() {
        Some('{') => serde_json::from_str(text)
            .ok()
            .filter(|files: &ProgramFiles| files.millstream_p4_config == CONFIG_VERSION)
            .ok_or(ProgramError::CompiledJson),
        None => Err(ProgramError::NoProgram),
        Some(_) => Ok(ProgramFiles {
            millstream_p4_config: CONFIG_VERSION,
            main: UNNAMED.to_owned(),
            search_paths: Vec::new(),
            definitions: Vec::new(),
            files: BTreeMap::from([(UNNAMED.to_owned(), text.to_owned())]),
        }),
    }
}
