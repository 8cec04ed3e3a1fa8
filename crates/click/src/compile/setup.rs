//! Context in which the behaviours of elements are made, and data that they add to: numbers in the state,
//! tables, handlers, sources and targets.

use std::borrow::Cow;

use millstream_ir::{Func, GlobalData, Map, MapDecl, Module, Size};
use millstream_isa::MapType;
use rustc_hash::FxHashSet;

use super::published::PublishedValues;
use crate::arguments::{ElementArguments, NameTable, boolean};
use crate::bpf_program::{self, ProgramHook, ReadObject};
use crate::config::SpannedText;
use crate::error::Error;
use crate::graph::{CaptureInfo, Element, ElementPort, Graph};
use crate::handlers::{Handler, HandlerAccess, HandlerWriters, SETTINGS, SettingType, SettingValue};
use crate::hash_table::ElementHashTable;
use crate::printing::PacketPrinter;
use crate::program::{
    DeviceProperties, GraphSink, GraphSource, InitialEntry, RDONLY_PROG, SourceControl, SourceEnd,
};
use crate::queueing::{
    QueueProperties, QueueingDeclarations, ShapingPolicy, SourceSchedule, SourceTiming, TimingParameter,
};
use crate::script::{Script, ScriptCall, ScriptKind, ScriptStep};

/// Context in which an element's class makes its behaviour.
pub struct ElementSetup<'s> {
    /// Arguments that are not read yet.
    pub arguments: ElementArguments<'s>,
    /// Inputs that are connected.
    pub inputs: u32,
    /// Outputs that are connected.
    pub outputs: u32,
    /// The element.
    pub element: &'s Element,
    /// Patterns of addresses and ports, by name.
    pub patterns: &'s NameTable,
    pub(super) graph: &'s Graph,
    pub(super) objects: &'s ReadObject<'s>,
    pub(super) writers: HandlerWriters,
    pub(crate) shared: &'s mut SharedSetup,
}

/// Scripts, and what they and printers are told.
#[derive(Default)]
pub(crate) struct ScriptSetup {
    pub(super) scripts: Vec<Script>,
    pub(super) printers: Vec<PacketPrinter>,
    pub(super) ends: Vec<SourceEnd>,
    pub(super) calls: Vec<ScriptCall>,
}

/// Sources and destinations of packets.
#[derive(Default)]
pub(crate) struct PortSetup {
    pub(super) gates: Vec<SourceControl>,
    pub(super) sources: Vec<(ElementPort, GraphSource)>,
    pub(super) targets: Vec<GraphSink>,
    pub(super) devices: DeviceProperties,
}

/// Data that all elements add to.
#[derive(Default)]
pub(crate) struct SharedSetup {
    pub(crate) module: Module,
    pub(super) state_bytes: u32,
    pub(super) settings: Vec<i64>,
    pub(super) ports: PortSetup,
    pub(super) handlers: Vec<Handler>,
    pub(crate) entries: Vec<InitialEntry>,
    pub(super) warnings: Vec<Error>,
    pub(super) alone: Vec<Error>,
    pub(super) common: Vec<(String, u32)>,
    pub(super) scripting: ScriptSetup,
    pub(super) values: PublishedValues,
    pub(super) element: usize,
    /// Elements whose input 0 pulls.
    pub(super) pulled: Vec<bool>,
    /// True if runs have a clock; and the declarations of elements about it.
    pub(super) timed: bool,
    pub(super) declared: QueueingDeclarations,
}

impl SharedSetup {
    /// Adds those of these handlers that no element has made itself.
    pub(super) fn add_missing_handlers(&mut self, mut handlers: Vec<Handler>) {
        let name = |handler: &Handler| (handler.element.clone(), handler.name.clone());
        let own: FxHashSet<_> = self.handlers.iter().map(name).collect();
        handlers.retain(|handler| !own.contains(&name(handler)));
        self.handlers.append(&mut handlers);
    }

    /// Makes the array of settings, if there are any.
    pub(super) fn emit_settings_map(&mut self) {
        if self.settings.is_empty() {
            return;
        }
        let value: Vec<u8> = self.settings.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.module.maps.push(MapDecl {
            name: SETTINGS.to_owned(),
            kind: MapType::ARRAY.0,
            key_size: 4,
            value_size: value.len() as u32,
            max_entries: 1,
            // Code that writes handlers writes settings, too.
            flags: if self.scripting.calls.is_empty() { RDONLY_PROG } else { 0 },
            global: Some(GlobalData::Bss),
            inner: None,
        });
        self.entries.push(InitialEntry { map: SETTINGS.to_owned(), key: vec![0; 4], value });
    }
}

impl ElementSetup<'_> {
    /// Room for a number in the state.
    pub fn number(&mut self) -> u32 {
        let at = self.shared.state_bytes;
        self.shared.state_bytes += 8;
        at
    }

    /// A number that all elements have in common.
    pub fn shared_number(&mut self, name: &str) -> u32 {
        if let Some((_, at)) = self.shared.common.iter().find(|(n, _)| n == name) {
            return *at;
        }
        let at = self.number();
        self.shared.common.push((name.to_owned(), at));
        at
    }

    /// A number that a handler reads.
    pub fn counter(&mut self, name: &'static str) -> u32 {
        let at = self.number();
        self.handler(name, HandlerAccess::Number(at));
        at
    }

    /// A handler of the element; the first one of a name counts.
    pub fn handler(&mut self, name: impl Into<Cow<'static, str>>, access: HandlerAccess) {
        let (element, name) = (&self.element.name, name.into());
        let mut all = self.shared.handlers.iter().rev();
        // Those of the element are the last ones.
        let is_known = all.by_ref().take_while(|h| h.element == *element).any(|h| h.name == name);
        if !is_known {
            self.shared.handlers.push(Handler { element: element.clone(), name, access });
        }
    }

    /// A number that the handler of this name reads and, where somebody may, writes.
    pub fn setting(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        takes: SettingType,
        value: i64,
    ) -> SettingValue {
        let name = name.into();
        if !self.writers.write(self.graph, &name) {
            return self.constant(name, takes, value);
        }
        let at = self.hidden_setting(value);
        self.handler(name, HandlerAccess::Setting(at, takes));
        SettingValue::Live(at)
    }

    /// A constant that the handler of this name reads, and that cannot be written.
    pub fn constant(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        takes: SettingType,
        value: i64,
    ) -> SettingValue {
        self.handler(name, HandlerAccess::Constant(takes.text(value)));
        SettingValue::Fixed(value)
    }

    /// A number that handlers change, but none reads.
    pub fn hidden_setting(&mut self, value: i64) -> u32 {
        self.shared.settings.push(value);
        8 * (self.shared.settings.len() - 1) as u32
    }

    /// Returns true if one of these handlers of the element may be written.
    pub fn written(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.writers.write(self.graph, name))
    }

    /// A handler that sets words of the state to zero.
    pub fn resets(&mut self, name: &'static str, words: Vec<u32>) {
        self.handler(name, HandlerAccess::Zero { words, arrays: Vec::new() });
    }

    /// The elements of the configuration.
    pub fn elements(&self) -> &[Element] {
        &self.graph.elements
    }

    /// Capture files that are there.
    pub fn captures(&self) -> &[CaptureInfo] {
        &self.graph.captures
    }

    /// Elements that the outputs of the element of this name lead to, or else that its inputs come from.
    pub fn neighbours(&self, name: &str, downstream: bool) -> Vec<&Element> {
        let all = &self.graph.elements;
        let is_it = |element: usize| all.get(element).is_some_and(|element| element.name == name);
        let next = self.graph.connections.iter().filter_map(|c| match downstream {
            true => is_it(c.from.element).then_some(c.to.element),
            false => is_it(c.to.element).then_some(c.from.element),
        });
        next.filter_map(|element| all.get(element)).collect()
    }

    /// The element that a name in the arguments means: one of the same compound element, or else of those
    /// around it.
    pub fn named(&self, name: &str) -> Option<&Element> {
        self.named_by(self.element, name)
    }

    /// As [`Self::named`], but of one of these classes, which errors call `what`.
    pub fn needed(&self, text: &SpannedText, what: &str, classes: &[&str]) -> Result<&Element, Error> {
        let fits = |element: &&Element| classes.contains(&element.class.as_str());
        self.named(&text.text).filter(fits).ok_or_else(|| {
            let all = self.elements().iter().filter(fits).map(|element| element.name.as_str());
            let message = format!("there is no {what} of the name `{}`", text.text);
            Error::new(text.span, message).nearest(&text.text, all)
        })
    }

    /// As [`Self::named`], for a name in another element's arguments.
    pub fn named_by(&self, element: &Element, name: &str) -> Option<&Element> {
        let mut around = element.name.as_str();
        loop {
            around = around.rsplit_once('/').map_or("", |(outer, _)| outer);
            let whole = if around.is_empty() { name.to_owned() } else { format!("{around}/{name}") };
            let found = self.graph.elements.iter().find(|element| element.name == whole);
            if found.is_some() || around.is_empty() {
                return found;
            }
        }
    }

    /// Publishes a value for the code of other elements, under this element's name.
    pub fn publish<T: 'static>(&mut self, value: T) {
        self.shared.values.insert(&self.element.name, value);
    }

    /// Publishes a value under the name of another element. Returns false if there has been one of its type.
    pub fn publish_for<T: 'static>(&mut self, element: &str, value: T) -> bool {
        self.shared.values.insert(element, value)
    }

    /// An element that prints: its number among these.
    pub fn printer(&mut self, printer: PacketPrinter) -> usize {
        self.shared.scripting.printers.push(printer);
        self.shared.scripting.printers.len() - 1
    }

    /// Adds a script that runs between batches.
    pub fn script(&mut self, script: Script) {
        self.shared.scripting.scripts.push(script);
    }

    /// Records the action for when the source that is declared next has sent all its packets: the run ends,
    /// or a handler is written.
    pub fn at_end(&mut self) -> Result<(), Error> {
        let stops = self.arguments.keyword_or("STOP", false, boolean)?;
        let source = self.sources();
        match self.arguments.keyword("END_CALL") {
            Some(text) if stops => Err(Error::new(text.span, "END_CALL and STOP exclude each other")),
            Some(text) => {
                let (element, steps) = (self.element.name.clone(), vec![ScriptStep::Write(text.text, false)]);
                let script = Some(self.shared.scripting.scripts.len());
                self.script(Script { element, kind: ScriptKind::Passive, signals: Vec::new(), steps });
                self.shared.scripting.ends.push(SourceEnd { source, script });
                Ok(())
            }
            None => {
                self.shared.scripting.ends.extend(stops.then_some(SourceEnd { source, script: None }));
                Ok(())
            }
        }
    }

    /// Declares a handler call with this text. Code counts calls in the state, at the offset given back; the
    /// handler is written that often as soon as the current packet is done with.
    pub fn calls(&mut self, text: &SpannedText) -> Result<u32, Error> {
        self.handler_call(text, None)
    }

    /// As [`Self::calls`], for packets that wait until the handler was written
    /// ([`crate::build::ElementBuilder::wait_at`]). The handler's variable `t` is a time in the state.
    pub fn calls_with_time(&mut self, text: &SpannedText, time: u32) -> Result<u32, Error> {
        let due = self.handler_call(text, Some(time))?;
        self.shared.declared.detours.push(self.shared.element);
        Ok(due)
    }

    fn handler_call(&mut self, text: &SpannedText, time: Option<u32>) -> Result<u32, Error> {
        if !self.is_timed() {
            let message = "handlers are written by packets only where they come one by one: not in stages, \
                and not in code for other programs";
            return Err(Error::new(text.span, message));
        }
        let due = self.number();
        let steps = vec![ScriptStep::Write(text.text.clone(), false)];
        let script = Script {
            element: self.element.name.clone(),
            kind: ScriptKind::Passive,
            signals: Vec::new(),
            steps,
        };
        self.shared.scripting.calls.push(ScriptCall {
            due,
            script: self.shared.scripting.scripts.len(),
            results: None,
            time,
        });
        self.shared.scripting.scripts.push(script);
        self.require_clock();
        self.require_single_worker("what it counts is that of one worker");
        Ok(due)
    }

    /// Has a script run for each packet, which code counts in the state, at the offset given back. Values of
    /// the runs go to an array, one after the other, from its beginning again behind its end. Packets of the
    /// element wait for their values ([`crate::build::ElementBuilder::wait_at`]).
    pub fn script_of_packets(&mut self, script: Script, results: (String, u32)) -> u32 {
        let due = self.number();
        let script_number = self.shared.scripting.scripts.len();
        self.shared.scripting.calls.push(ScriptCall {
            due,
            script: script_number,
            results: Some(results),
            time: None,
        });
        self.shared.scripting.scripts.push(script);
        self.shared.declared.detours.push(self.shared.element);
        self.require_clock();
        self.require_single_worker("its script runs for one packet after the other");
        due
    }

    /// Returns true if a script writes one of these handlers of the element.
    pub fn scripted(&self, names: &[&str]) -> bool {
        names.iter().any(|name| HandlerWriters::names(self.graph, &self.element.name, name))
    }

    /// Says that something is not as it would be in Click.
    pub fn warn(&mut self, warning: Error) {
        self.shared.warnings.push(warning);
    }

    /// Says that one worker must run the element, and why.
    pub fn require_single_worker(&mut self, why: &str) {
        let message = format!("`{}` is for one worker: {why}", self.element.class);
        self.shared.alone.push(Error::new(self.element.span, message));
    }

    /// Returns true if the element pulls packets from its input 0.
    pub fn is_pulled(&self) -> bool {
        self.shared.pulled.get(self.shared.element).copied().unwrap_or(false)
    }

    /// Returns true if runs of the program have a clock.
    pub fn is_timed(&self) -> bool {
        self.shared.timed
    }

    /// Says that packets wait for the element.
    pub fn declare_pacing(&mut self, pace: ShapingPolicy) {
        self.shared.declared.paces.insert(self.shared.element, pace);
    }

    /// Says that the element pulls from one input, that of the number of a setting.
    pub fn declare_input_choice(&mut self, input: SettingValue) {
        let [length, highest, dropped] = [0; 3].map(|_| self.number());
        let capacity = TimingParameter::Fixed(1);
        let place = QueueProperties {
            capacity,
            front: false,
            notifies: true,
            mixed: false,
            length,
            highest,
            dropped,
        };
        self.shared.declared.switches.insert(self.shared.element, (input, place));
    }

    /// Returns true if an element pulls packets from its input 0.
    pub fn pulls(&self, element: &Element) -> bool {
        let at = self.graph.elements.iter().position(|known| known.name == element.name);
        at.and_then(|at| self.shared.pulled.get(at)).copied().unwrap_or(false)
    }

    /// Says when the source sends that is declared next.
    pub fn declare_schedule(&mut self, beat: SourceSchedule) {
        let source = self.sources();
        self.shared.declared.senders.push(SourceTiming { source, beat });
    }

    /// Says that the element is a queue, in which packets wait for those.
    pub fn queue(&mut self, queued: QueueProperties) {
        self.shared.declared.queues.insert(self.shared.element, queued);
    }

    /// Records the tickets of its inputs, by which it schedules these.
    pub fn tickets(&mut self, tickets: Vec<u64>) {
        self.shared.declared.tickets.insert(self.shared.element, tickets);
    }

    /// Says that the element goes by the clock.
    pub fn require_clock(&mut self) {
        self.shared.declared.clocked |= self.shared.timed;
    }

    /// Says that packets of a device have no Ethernet header.
    pub fn unframed(&mut self, device: &str) {
        self.shared.ports.devices.unframed.push(device.to_owned());
    }

    /// Has the card of a device have an address, for the run.
    pub fn card_address(&mut self, device: &str, address: [u8; 6]) {
        self.shared.ports.devices.addresses.push((device.to_owned(), address));
    }

    /// Makes the element a source: its packets begin at input 0, which is not connected.
    pub fn source(&mut self, source: GraphSource) {
        self.source_at(0, source);
    }

    /// Makes the element a source whose packets begin at an input that is not connected, or at
    /// [`crate::NO_INPUT`].
    pub fn source_at(&mut self, port: u32, source: GraphSource) {
        self.shared.ports.sources.push((ElementPort { element: self.shared.element, port }, source));
    }

    /// As [`Self::source_at`], for a source that handlers tell when to send, by limit, activity and, in this
    /// setting, rate; `count` is the offset of the count of its packets.
    pub fn add_controlled_source(
        &mut self,
        port: u32,
        source: GraphSource,
        (count, rate): (u32, Option<u32>),
        [limit, active]: [i64; 2],
    ) {
        let [limit_at, active_at, base] = [limit, active, 0].map(|value| self.hidden_setting(value));
        self.handler("limit", HandlerAccess::Setting(limit_at, SettingType::Limit));
        self.handler("active", HandlerAccess::Setting(active_at, SettingType::Truth));
        self.handler("reset", HandlerAccess::Restart { count, base });
        let source_at = self.sources();
        self.shared.ports.gates.push(SourceControl {
            source: source_at,
            limit: limit_at,
            active: active_at,
            base,
            rate,
        });
        self.source_at(port, source);
    }

    /// Sources declared so far.
    pub fn sources(&self) -> usize {
        self.shared.ports.sources.len()
    }

    /// An output of the program.
    pub fn target(&mut self, target: GraphSink) -> u32 {
        let known = self.shared.ports.targets.iter().position(|t| *t == target);
        let at = known.unwrap_or_else(|| {
            self.shared.ports.targets.push(target);
            self.shared.ports.targets.len() - 1
        });
        at as u32
    }

    /// A hash table that evicts the least recently used entry when it is full. Behind the pieces of a value
    /// are `more` bytes.
    pub fn evicting_table(
        &mut self,
        name: &str,
        key: &'static [Size],
        value: &'static [Size],
        more: u32,
        max_entries: u32,
    ) -> ElementHashTable {
        self.table(MapType::LRU_HASH.0, name, (key, value), more, max_entries)
    }

    /// As [`Self::evicting_table`], the table of an element of this name, with all that want that one's.
    pub fn shared_table(
        &mut self,
        owner: Option<&str>,
        name: &str,
        key: &'static [Size],
        value: &'static [Size],
        more: u32,
        max_entries: u32,
    ) -> ElementHashTable {
        let whole = format!("{}.{name}", owner.unwrap_or(&self.element.name));
        let known = self.shared.module.maps.iter().find(|(_, map)| map.name == whole);
        match known.map(|(map, _)| map) {
            Some(map) => ElementHashTable { map, key, value },
            None => self.named_table(MapType::LRU_HASH.0, whole, (key, value), more, max_entries),
        }
    }

    /// As [`Self::array`], that of an element of this name, with all that want it.
    pub fn shared_array(
        &mut self,
        owner: &str,
        name: &str,
        key: &'static [Size],
        value: &'static [Size],
        max_entries: u32,
    ) -> ElementHashTable {
        let whole = format!("{owner}.{name}");
        let known = self.shared.module.maps.iter().find(|(_, map)| map.name == whole);
        match known.map(|(map, _)| map) {
            Some(map) => ElementHashTable { map, key, value },
            None => self.named_table(MapType::ARRAY.0, whole, (key, value), 0, max_entries),
        }
    }

    fn table(
        &mut self,
        kind: u32,
        name: &str,
        pieces: (&'static [Size], &'static [Size]),
        more: u32,
        max_entries: u32,
    ) -> ElementHashTable {
        self.named_table(kind, format!("{}.{name}", self.element.name), pieces, more, max_entries)
    }

    fn named_table(
        &mut self,
        kind: u32,
        name: String,
        (key, value): (&'static [Size], &'static [Size]),
        more: u32,
        max_entries: u32,
    ) -> ElementHashTable {
        let bytes = |sizes: &[Size]| sizes.iter().map(|size| size.bytes()).sum::<u32>();
        let map = self.shared.module.maps.push(MapDecl {
            name,
            kind,
            key_size: bytes(key),
            value_size: bytes(value) + more,
            max_entries,
            flags: 0,
            global: None,
            inner: None,
        });
        ElementHashTable { map, key, value }
    }

    /// The name of a table's map.
    pub fn map_name(&self, table: &ElementHashTable) -> String {
        self.shared.module.maps[table.map].name.clone()
    }

    /// A table by index, whose entries are initially zero.
    pub fn array(
        &mut self,
        name: &str,
        key: &'static [Size],
        value: &'static [Size],
        max_entries: u32,
    ) -> ElementHashTable {
        self.table(MapType::ARRAY.0, name, (key, value), 0, max_entries)
    }

    /// The map of this name, which elements have in common: this one if there is none yet.
    pub fn shared_map(&mut self, map: MapDecl) -> Map {
        let maps = &mut self.shared.module.maps;
        let known = maps.iter().find(|(_, other)| other.name == map.name).map(|(known, _)| known);
        known.unwrap_or_else(|| maps.push(map))
    }

    /// A map of one value, whose bytes are initially zero.
    pub fn cells(&mut self, name: &str, bytes: u32) -> Map {
        self.shared.module.maps.push(MapDecl {
            name: format!("{}.{name}", self.element.name),
            kind: MapType::ARRAY.0,
            key_size: 4,
            value_size: bytes,
            max_entries: 1,
            flags: 0,
            global: Some(GlobalData::Bss),
            inner: None,
        })
    }

    /// As [`Self::cells`], with these bytes initially; and the map's name.
    pub fn filled_cells(&mut self, name: &str, bytes: &[u8]) -> (String, Map) {
        let map = self.cells(name, bytes.len() as u32);
        let name = self.shared.module.maps[map].name.clone();
        self.shared.entries.push(InitialEntry { map: name.clone(), key: vec![0; 4], value: bytes.to_vec() });
        (name, map)
    }

    /// Takes a program of an object file into the module, with its maps and their contents.
    pub fn foreign(&mut self, file: &str, program: Option<&str>) -> Result<(Func, ProgramHook), String> {
        let foreign = (self.objects)(file, program)?;
        let (element, before) = (&self.element.name, self.shared.module.funcs.len());
        let merged = bpf_program::merge(&mut self.shared.module, element, &foreign)?;
        for func in self.shared.module.funcs.values_mut().skip(before) {
            func.insts.values_mut().for_each(|data| data.loc = self.shared.element as u32);
        }
        for (map, key, value) in foreign.contents {
            let map = format!("{element}.{}", foreign.module.maps[map].name);
            self.shared.entries.push(InitialEntry { map, key, value });
        }
        Ok(merged)
    }
}
