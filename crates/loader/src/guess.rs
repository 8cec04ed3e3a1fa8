//! A type for programs whose sections do not say one.
//!
//! Some loaders let sections be named freely and are told the type (`ip link set xdp`, `tc filter`, the
//! samples of old kernels). A caller that only wants to know if programs load, and is told no type, can ask
//! the kernel: the type is the one under which it accepts most of them.

use millstream_kernel::{AttachType, ProgramType};
use millstream_object::{self as object, FuncId, Object};

use crate::error::Error;
use crate::loader::ObjectLoader;

/// Types that such loaders load, the more usual first: of several that do equally well, the first is taken.
const CANDIDATES: [(ProgramType, AttachType); 6] = [
    (ProgramType::SCHED_CLS, AttachType::NONE),
    (ProgramType::XDP, AttachType::XDP),
    (ProgramType::SOCKET_FILTER, AttachType::NONE),
    (ProgramType::LWT_XMIT, AttachType::NONE),
    (ProgramType::CGROUP_SKB, AttachType::NONE),
    (ProgramType::KPROBE, AttachType::NONE),
];

impl<'a> ObjectLoader<'a> {
    /// Gives programs whose sections do not say a type, and to which [`ObjectLoader::program_type`] gave
    /// none, the type under which the kernel accepts most of them. Each type is tried with maps of its own.
    /// The session's notes then tell the type. Nothing is done if every program has a type, or no type suits
    /// any.
    ///
    /// # Errors
    /// If the object's maps cannot be made.
    pub fn guess_types(mut self) -> Result<Self, Error> {
        let untyped: Vec<FuncId> = self.untyped();
        if untyped.is_empty() {
            return Ok(self);
        }
        let mut best: Option<(usize, (ProgramType, AttachType))> = None;
        for candidate in CANDIDATES {
            let accepted = self.accepted_as(&untyped, candidate)?;
            if accepted > best.map_or(0, |(n, _)| n) {
                best = Some((accepted, candidate));
            }
            if accepted == untyped.len() {
                break;
            }
        }
        let Some((accepted, (program_type, attach))) = best else { return Ok(self) };
        self.notes.push(format!(
            "sections of {} programs do not say a type: taken for {program_type}, as which {accepted} load",
            untyped.len()
        ));
        self.types.extend(untyped.into_iter().map(|f| (f, (program_type, attach))));
        Ok(self)
    }

    fn untyped(&self) -> Vec<FuncId> {
        let unknown = |f: &FuncId| untyped(self.object, *f) && !self.types.contains_key(f);
        self.chosen().into_iter().filter(unknown).collect()
    }

    /// Counts the programs that the kernel accepts as this type.
    fn accepted_as(&self, programs: &[FuncId], kind: (ProgramType, AttachType)) -> Result<usize, Error> {
        let mut trial = ObjectLoader::new(self.object);
        trial.types.extend(programs.iter().map(|f| (*f, kind)));
        let session = trial.prepare()?;
        let loads = |f: FuncId| self.object.link(f).is_ok_and(|linked| session.load(f, &linked).is_ok());
        Ok(programs.iter().filter(|f| loads(**f)).count())
    }
}

fn untyped(object: &Object, func: FuncId) -> bool {
    let program = object.programs.iter().find(|p| p.func == func);
    program.is_some_and(|p| p.kind.program_type == object::ProgramType::UNSPEC)
}
