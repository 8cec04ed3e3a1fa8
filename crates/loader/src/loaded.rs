//! Loading an object with all its programs.

use millstream_kernel as kernel;
use millstream_object::FuncId;

use crate::error::Error;
use crate::loader::ObjectLoader;
use crate::session::Session;

/// An object in the kernel. Its programs are not attached.
#[derive(Debug)]
pub struct LoadedObject<'a> {
    /// Maps and types, for loading variants.
    pub session: Session<'a>,
    /// The programs, in the order of the object.
    pub programs: Vec<(FuncId, kernel::KernelProgram)>,
}

impl LoadedObject<'_> {
    /// The program of this name.
    pub fn program(&self, name: &str) -> Option<&kernel::KernelProgram> {
        let object = self.session.object();
        let func = object.programs.iter().find(|p| p.name == name)?.func;
        self.programs.iter().find(|(f, _)| *f == func).map(|(_, p)| p)
    }
}

impl<'a> ObjectLoader<'a> {
    /// Makes the maps, and loads the chosen programs.
    ///
    /// # Errors
    /// The first error: [`Error::Program`] if it is a program's.
    pub fn load(self) -> Result<LoadedObject<'a>, Error> {
        let chosen = self.chosen();
        let object = self.object;
        let session = self.prepare()?;
        let mut programs = Vec::with_capacity(chosen.len());
        for func in chosen {
            let linked = object.link(func)?;
            let program = session.load(func, &linked).map_err(|e| Error::Program {
                name: object.functions[func.index()].name.clone(),
                source: Box::new(e),
            })?;
            programs.push((func, program));
        }
        session.fill_program_arrays(&programs)?;
        Ok(LoadedObject { session, programs })
    }
}
