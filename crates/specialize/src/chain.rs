//! Chains of programs of several owners on an interface: a dispatcher, as libxdp and bpfman attach it, and the
//! components that replace its functions (`freplace`).
//!
//! [`LiveChain::find`] tells which programs of given objects the chain runs, by the kernel's hash of their code, and
//! [`LiveChain::fuse`] makes one program of them that uses the chain's own maps. A session puts that program into
//! the place of the dispatcher's entry (`millstream_kernel::ExtensionPlace`), so that the dispatcher stays attached:
//! its owner finds the chain as it was, and one that puts another dispatcher onto the interface has the packets at
//! once. The order of calls and the verdicts after which the next component runs are the dispatcher's own code and
//! constants.
//!
//! Invariant: nothing is changed here. What a chain consists of is asked of the kernel ([`ChainState`]); pins and
//! sockets of its owner are not looked at.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_btf::{Btf, BtfError};
use millstream_kernel::{
    ExtensionPlace, KernelBtf, KernelError, KernelMap, KernelProgram, Link, LinkDetail, link_ids, xdp_program,
};
use millstream_loader::{Error as LoaderError, ObjectLoader};
use millstream_object::{
    ChainComponent, EntryProgram, FuncId, FusedProgram, MapId, MapOrigin, Object, ProgramType, SectionKind,
};
use millstream_opt::{KernelFeatures, OptError, OptimizeOptions, optimize_chain};
use serde::{Deserialize, Serialize};

use crate::adopt::{AttachedProgram, cut, order_of};
use crate::map_users::is_constant;

/// Reason why a chain cannot be found, or be one program.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// No program is on the interface.
    #[error("no XDP program is on the interface")]
    Empty,
    /// The program on the interface calls no components.
    #[error(
        "program {name:?} (id {id}) on the interface is no dispatcher: no program replaces a function of it"
    )]
    NoComponents {
        /// Its name.
        name: String,
        /// Its id.
        id: u32,
    },
    /// The kernel has extensions, and does not tell whose functions they replace.
    #[error("this kernel does not tell which program an extension belongs to; Linux 5.13 and later do")]
    Untold,
    /// A program of the chain is in none of the objects.
    #[error("none of the objects has program {name:?} (id {id}) of the chain{}", reasons(.tried))]
    Unknown {
        /// Its name.
        name: String,
        /// Its id.
        id: u32,
        /// Programs that were compared with it, and how they differ.
        tried: Vec<String>,
    },
    /// The types of the dispatcher in the kernel.
    #[error("the types of the dispatcher: {0}")]
    Types(#[from] BtfError),
    /// A component replaces a function that the dispatcher's object does not have.
    #[error("a component replaces function {0:?}, which the dispatcher's object does not have")]
    NoFunction(String),
    /// Programs with different maps would share one.
    #[error("map {0:?} is one map in the fused program, and several in the chain")]
    Apart(String),
    /// An object cannot be linked.
    #[error(transparent)]
    Load(#[from] LoaderError),
    /// The chain cannot be one program.
    #[error("the chain cannot be one program: {0}")]
    Fuse(#[from] OptError),
}

fn reasons(tried: &[String]) -> String {
    if tried.is_empty() { String::new() } else { format!(": {}", tried.join("; ")) }
}

/// An object with its name for messages.
#[derive(Clone, Debug)]
pub struct NamedObject {
    /// Path of its file.
    pub name: String,
    /// The object.
    pub object: Object,
}

/// A component's attachment to a dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ComponentLink {
    /// BTF id of the function that it replaces.
    function: u32,
    program: u32,
    link: u32,
}

/// The programs of a chain, as the kernel has them at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainState {
    /// Id of the program on the interface.
    dispatcher: Option<u32>,
    components: Vec<ComponentLink>,
    /// True if there are links whose target the kernel does not tell.
    is_untold: bool,
}

impl ChainState {
    /// Asks the kernel.
    ///
    /// # Errors
    /// `ENODEV` if the interface is gone; `EPERM` without CAP_SYS_ADMIN.
    pub fn of(ifindex: u32) -> Result<ChainState, KernelError> {
        let dispatcher = xdp_program(ifindex)?;
        let mut state = ChainState { dispatcher, components: Vec::new(), is_untold: false };
        let Some(id) = dispatcher else { return Ok(state) };
        // The dispatcher may have left meanwhile: its components have, too.
        let types = KernelProgram::from_id(id).and_then(|p| p.function_types()).unwrap_or_default();
        // The entry is where fused programs are.
        let Some((_, replaceable)) = types.split_first() else { return Ok(state) };
        for link in link_ids()? {
            let Ok(info) = Link::from_id(link).and_then(|l| l.info()) else { continue };
            let LinkDetail::Tracing { attach, target_id, target_btf_id: function } = info.detail else {
                continue;
            };
            // Of the types of attachment, extensions have none.
            state.is_untold |= (attach.0, target_id) == (0, 0);
            if (attach.0, target_id) == (0, id) && replaceable.contains(&function) {
                state.components.push(ComponentLink { function, program: info.program_id, link });
            }
        }
        state.components.sort_unstable();
        Ok(state)
    }

    /// Describes the difference to an earlier state.
    pub fn difference(&self, before: &ChainState) -> String {
        let ids = |state: &ChainState| state.components.iter().map(|c| c.program).collect::<Vec<_>>();
        let (now, then) = (ids(self), ids(before));
        let text = |ids: Vec<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let new: Vec<u32> = now.iter().copied().filter(|id| !then.contains(id)).collect();
        let gone: Vec<u32> = then.iter().copied().filter(|id| !now.contains(id)).collect();
        match (self.dispatcher, new.is_empty(), gone.is_empty()) {
            (None, ..) => "no program is on the interface any more".to_owned(),
            (Some(_), true, true) => "the components were attached anew".to_owned(),
            (Some(_), false, true) => format!("a component came: program {}", text(new)),
            (Some(_), true, false) => format!("a component went: program {}", text(gone)),
            (Some(_), false, false) => {
                format!("components were exchanged: program {} by {}", text(gone), text(new))
            }
        }
    }
}

/// A program of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChainProgram {
    /// Its name.
    pub name: String,
    /// The kernel's id of it.
    pub id: u32,
    /// Name of the object that it was loaded from.
    pub object: String,
}

/// A program of a chain, and the program of an object that it is.
struct Identified {
    live: AttachedProgram,
    at: usize,
    /// The object, with maps of the sizes and constants of the values that the program has.
    object: Object,
    program: EntryProgram,
}

impl Identified {
    fn describe(&self, objects: &[NamedObject]) -> Result<ChainProgram, KernelError> {
        let (name, object) = (self.program.name.clone(), objects[self.at].name.clone());
        Ok(ChainProgram { name, id: self.live.program.id()?, object })
    }
}

/// A dispatcher on an interface with its components, and the objects that they were loaded from.
pub struct LiveChain {
    state: ChainState,
    dispatcher: Identified,
    components: Vec<(FuncId, Identified)>,
    place: Arc<ExtensionPlace>,
    programs: Vec<ChainProgram>,
}

/// A chain's one program, as a session needs it.
#[derive(Clone, Debug)]
pub struct FusedChain {
    /// The dispatcher's entry.
    pub(crate) place: Arc<ExtensionPlace>,
    /// Ids of the chain's maps, by their names in the fused object.
    pub(crate) maps: BTreeMap<String, u32>,
    /// The hash of the code, and the maps, of each program of the chain.
    pub(crate) programs: Vec<([u8; 8], Vec<u32>)>,
}

impl FusedChain {
    /// Lets the dispatcher run, from now on.
    pub fn close(&self) {
        self.place.close();
    }
}

impl LiveChain {
    /// Finds the chain on an interface.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn find(ifindex: u32, objects: &[NamedObject]) -> Result<LiveChain, ChainError> {
        let state = ChainState::of(ifindex)?;
        let host = KernelProgram::from_id(state.dispatcher.ok_or(ChainError::Empty)?)?;
        if state.components.is_empty() && state.is_untold {
            return Err(ChainError::Untold);
        }
        if state.components.is_empty() {
            return Err(ChainError::NoComponents { name: host.name().to_owned(), id: host.id()? });
        }
        let types = Btf::from_vec(KernelBtf::from_id(host.info()?.btf_id)?.bytes()?)?;
        let entry = host.function_types()?.first().copied().unwrap_or_default();
        let place = Arc::new(ExtensionPlace::new(host.try_clone()?, entry));
        let dispatcher = identify(host, objects)?;
        let mut components = Vec::new();
        for link in &state.components {
            let name = types.name(millstream_btf::TypeId(link.function));
            let at = dispatcher.object.functions.iter().position(|f| f.name == name && !f.removed);
            let target = FuncId(at.ok_or_else(|| ChainError::NoFunction(name.to_owned()))? as u32);
            components.push((target, identify(KernelProgram::from_id(link.program)?, objects)?));
        }
        let all = std::iter::once(&dispatcher).chain(components.iter().map(|(_, c)| c));
        let programs = all.map(|p| p.describe(objects)).collect::<Result<_, _>>()?;
        Ok(LiveChain { state, dispatcher, components, place, programs })
    }

    /// The chain as it was found, to be compared with later states.
    pub fn state(&self) -> &ChainState {
        &self.state
    }

    /// The dispatcher, then the components in the order of the functions that they replace.
    pub fn programs(&self) -> &[ChainProgram] {
        &self.programs
    }

    /// Makes one program of the chain, for this machine.
    ///
    /// # Errors
    /// [`ChainError::Fuse`], [`ChainError::Apart`].
    pub fn fuse(&self) -> Result<(Object, FusedChain), ChainError> {
        let placed: Vec<ChainComponent<'_>> = self.components.iter().map(component).collect();
        let options = OptimizeOptions { host: Some(KernelFeatures::probe()), ..OptimizeOptions::default() };
        let host = &self.dispatcher;
        let FusedProgram { object, maps } =
            optimize_chain(&host.object, host.program.func, &placed, &options)?;
        let own: Vec<MapId> = (0..host.object.maps.len() as u32).map(MapId).collect();
        let members = std::iter::once(host).chain(self.components.iter().map(|(_, c)| c));
        let mut found = BTreeMap::new();
        let mut programs = Vec::new();
        for (member, numbers) in members.zip(std::iter::once(&own).chain(&maps)) {
            for (id, map) in live_maps(&member.live, &member.object, member.program.func)? {
                let name = &object.maps[numbers[id.index()].index()].name;
                if found.insert(name.clone(), map).is_some_and(|other| other != map) {
                    return Err(ChainError::Apart(name.clone()));
                }
            }
            let info = member.live.program.info()?;
            programs.push((info.tag, info.map_ids));
        }
        Ok((object, FusedChain { place: Arc::clone(&self.place), maps: found, programs }))
    }
}

fn component((target, found): &(FuncId, Identified)) -> ChainComponent<'_> {
    ChainComponent { target: *target, object: &found.object, program: found.program.func }
}

/// The kernel's maps that a program has for those of its object, by id.
fn live_maps(
    live: &AttachedProgram,
    object: &Object,
    program: FuncId,
) -> Result<Vec<(MapId, u32)>, LoaderError> {
    let order = order_of(object, program)?;
    let ids = (0..object.maps.len() as u32).map(MapId);
    Ok(ids.filter_map(|id| Some((id, live.map(object, &order, id)?.id()))).collect())
}

/// Finds the program of the objects that a program of the kernel is. One of the same name is tried first.
fn identify(program: KernelProgram, objects: &[NamedObject]) -> Result<Identified, ChainError> {
    let live = AttachedProgram::new(program)?;
    let mut candidates = Vec::new();
    for (at, named) in objects.iter().enumerate() {
        for program in &named.object.programs {
            if matches!(program.kind.program_type, ProgramType::XDP | ProgramType::EXT) {
                candidates.push((cut(&program.name) != live.program.name(), at, program));
            }
        }
    }
    candidates.sort_by_key(|(is_other, at, _)| (*is_other, *at));
    let tag = live.program.info()?.tag;
    let mut tried = Vec::new();
    for (is_other, at, program) in candidates {
        let named = &objects[at];
        let why = match fitted(&named.object, program, &live).and_then(|object| {
            let loaded = load_alike(&object, program, &live)?;
            Ok((loaded.info()?.tag == tag).then_some(object))
        }) {
            Ok(Some(object)) => return Ok(Identified { live, at, object, program: program.clone() }),
            Ok(None) => "it has other instructions".to_owned(),
            Err(error) => error.to_string(),
        };
        if !is_other {
            tried.push(format!("{} in {}: {why}", program.name, named.name));
        }
    }
    Err(ChainError::Unknown { name: live.program.name().to_owned(), id: live.program.id()?, tried })
}

/// The object with the numbers of entries of a program's maps, and its constants.
fn fitted(object: &Object, program: &EntryProgram, live: &AttachedProgram) -> Result<Object, LoaderError> {
    let mut object = object.clone();
    let order = order_of(&object, program.func)?;
    for id in (0..object.maps.len() as u32).map(MapId) {
        let Some(map) = live.map(&object, &order, id) else { continue };
        object.maps[id.index()].spec.max_entries = map.info().max_entries;
        if object.maps[id.index()].origin == MapOrigin::Rodata
            && is_constant(map)
            && let Some(bytes) = map.lookup(&0u32.to_ne_bytes())?
        {
            // What a map holds beyond the object's variables is padding.
            let size = object.maps[id.index()].data.as_ref().map_or(0, Vec::len).min(bytes.len());
            object.settle(id, 0, &bytes[..size])?;
        }
    }
    Ok(object)
}

/// Loads a program as its loader did, with the maps of the one that is loaded already.
fn load_alike(
    object: &Object,
    program: &EntryProgram,
    live: &AttachedProgram,
) -> Result<KernelProgram, LoaderError> {
    let mut object = object.clone();
    for entry in object.programs.iter_mut().filter(|p| p.func == program.func) {
        // The instructions of an extension are those of the program that it extends.
        entry.kind = SectionKind { frags: entry.kind.frags, ..SectionKind::parse("xdp") };
    }
    let maps = live_maps(live, &object, program.func)?;
    let mut loader = ObjectLoader::new(&object).only(&program.name)?.without_impossible_maps();
    for (id, map) in maps {
        loader = loader.reuse_map(&object.maps[id.index()].name, KernelMap::from_id(map)?)?;
    }
    let linked = object.link(program.func)?;
    let loaded = loader.prepare()?.load(program.func, &linked);
    loaded.map_err(|e| LoaderError::Program { name: program.name.clone(), source: Box::new(e) })
}

#[cfg(test)]
mod tests {
    use millstream_kernel::testing;
    use millstream_programs::{FIREWALL, NAT, ROUTER};

    use super::*;

    fn named(plane: &millstream_programs::DataPlaneProgram) -> NamedObject {
        NamedObject { name: plane.name.to_owned(), object: Object::parse(plane.name, plane.object).unwrap() }
    }

    /// Loads the only program of an object as its owner would, with other numbers of entries.
    fn loaded(of: &NamedObject) -> KernelProgram {
        let mut loader = ObjectLoader::new(&of.object);
        for map in of.object.maps.iter().filter(|m| m.spec.max_entries > 4) {
            loader = loader.max_entries(&map.name, map.spec.max_entries / 2).unwrap();
        }
        loader.load().unwrap().programs.pop().unwrap().1
    }

    #[test]
    fn a_program_is_found_by_its_code_whatever_its_name_and_the_sizes_of_its_maps() {
        if !testing::require() {
            return;
        }
        let (router, firewall, nat) = (named(&ROUTER), named(&FIREWALL), named(&NAT));
        let program = loaded(&firewall);
        let id = program.id().unwrap();
        let objects = [router.clone(), nat.clone(), firewall.clone()];
        let found = identify(program.try_clone().unwrap(), &objects).unwrap();
        assert_eq!((found.at, found.live.program.id().unwrap()), (2, id));
        let maps = live_maps(&found.live, &found.object, found.program.func).unwrap();
        assert!(!maps.is_empty());
        for (map, id) in maps {
            let entries = KernelMap::from_id(id).unwrap().info().max_entries;
            assert_eq!(found.object.maps[map.index()].spec.max_entries, entries);
        }
        let Err(ChainError::Unknown { id: unknown, tried, .. }) = identify(program, &[router, nat]) else {
            panic!("it is no program of these objects");
        };
        assert_eq!((unknown, tried), (id, Vec::new()));
    }

    #[test]
    fn a_program_of_the_same_name_with_other_code_is_named_as_tried() {
        if !testing::require() {
            return;
        }
        let router = named(&ROUTER);
        let mut other = router.clone();
        let insns = &mut other.object.functions[other.object.programs[0].func.index()].insns;
        let at = insns.iter().position(|i| i.code == 0xb7).unwrap();
        insns[at].imm ^= 1;
        match identify(loaded(&router), &[other]).map(|_| ()) {
            Err(error @ ChainError::Unknown { .. }) => {
                let said = error.to_string();
                assert!(said.contains(&format!("{} in {}", ROUTER.name, ROUTER.name)), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn differences_name_the_programs_that_came_and_went() {
        let state = |dispatcher, programs: &[u32]| {
            let link =
                |program: &u32| ComponentLink { function: 10, program: *program, link: 100 + dispatcher };
            let components = programs.iter().map(link).collect();
            ChainState { dispatcher: Some(dispatcher), components, is_untold: false }
        };
        let before = state(1, &[5, 6]);
        assert_ne!(before, state(2, &[5, 6]));
        assert_eq!(state(2, &[5, 6]).difference(&before), "the components were attached anew");
        assert_eq!(state(2, &[5]).difference(&before), "a component went: program 6");
        assert_eq!(state(2, &[5, 6, 7]).difference(&before), "a component came: program 7");
        assert_eq!(state(2, &[5, 7]).difference(&before), "components were exchanged: program 6 by 7");
        let none = ChainState { dispatcher: None, components: Vec::new(), is_untold: false };
        assert_eq!(none.difference(&before), "no program is on the interface any more");
    }
}
