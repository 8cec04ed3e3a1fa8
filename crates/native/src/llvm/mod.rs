//! LLVM 19 in this process: text of its IR in, machine code out.
//!
//! The interface is text: the parser checks every type, and its verifier the rest, before anything is
//! compiled, so that a mistake in our code generator is an [`LlvmError`] and no undefined behaviour inside
//! LLVM. [`LlvmCompiler::compile`] gives an object file; [`LlvmCompiler::link`] puts it into this process by
//! ORC, and dropping the [`JitCode`] frees it.
//!
//! Invariants: a handle is disposed of by exactly one owner, on the path of failure, too; nothing that LLVM
//! allocates leaves this module but the machine code. LLVM's objects are used by one thread.
#![allow(unsafe_code)]

mod api;

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::sync::OnceLock;

use api::{LlvmApi, LlvmRef, SymbolFlags, SymbolPair};

/// Errors of LLVM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LlvmError {
    /// The shared library is not there.
    #[error("native code needs LLVM 19's shared library (Debian's package libllvm19): {0}")]
    Library(String),
    /// The library lacks a function.
    #[error("the LLVM library has no `{0}`: it is not LLVM 19's, or was built without this machine's target")]
    Symbol(&'static str),
    /// LLVM rejects the input, or cannot do what was requested.
    #[error("LLVM, {during}: {message}")]
    Refused {
        /// Operation that failed.
        during: &'static str,
        /// Its message.
        message: String,
    },
}

fn api() -> Result<&'static LlvmApi, LlvmError> {
    static API: OnceLock<Result<LlvmApi, LlvmError>> = OnceLock::new();
    API.get_or_init(api::open).as_ref().map_err(Clone::clone)
}

/// A handle and its dispose function.
struct OwnedHandle {
    handle: LlvmRef,
    dispose: unsafe extern "C" fn(LlvmRef),
}

impl OwnedHandle {
    fn new(handle: LlvmRef, dispose: unsafe extern "C" fn(LlvmRef)) -> OwnedHandle {
        OwnedHandle { handle, dispose }
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // SAFETY: made by the constructor that belongs to `dispose`, and owned here alone.
        unsafe { (self.dispose)(self.handle) };
    }
}

/// Takes a message of LLVM's.
fn message(text: *mut c_char, dispose: unsafe extern "C" fn(*mut c_char)) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: LLVM gives C strings, to be disposed of by the function that goes with them.
    unsafe {
        let out = CStr::from_ptr(text).to_string_lossy().trim_end().to_owned();
        dispose(text);
        out
    }
}

/// Machine code as an object file, not yet linked.
#[derive(Clone, Debug)]
pub struct ObjectFile {
    /// The ELF object.
    pub bytes: Vec<u8>,
    /// LLVM's IR as its passes left it, if asked for.
    pub text: Option<String>,
}

/// A compiler for the machine that it runs on, and the JIT that holds its code.
pub struct LlvmCompiler {
    api: &'static LlvmApi,
    machine: OwnedHandle,
    triple: CString,
    jit: Rc<LlvmJit>,
}

/// The JIT that holds the code.
struct LlvmJit {
    api: &'static LlvmApi,
    handle: LlvmRef,
    dylib: LlvmRef,
}

impl Drop for LlvmJit {
    fn drop(&mut self) {
        // SAFETY: made by `jit_create`, owned here alone, and no `JitCode` of it is left, since they share
        // this.
        let error = unsafe { (self.api.jit_dispose)(self.handle) };
        let _ = check(self.api, "ending", error);
    }
}

impl LlvmCompiler {
    /// A compiler, with `symbols` known to all code: names and addresses of functions of this process. Code
    /// is made for this machine's processor, or for one that LLVM has a name for.
    ///
    /// # Errors
    /// Without LLVM's library.
    pub fn new(symbols: &[(&str, usize)], cpu: Option<&str>) -> Result<LlvmCompiler, LlvmError> {
        let api = api()?;
        // SAFETY: see `OwnedHandle` for handles; strings are C strings that live through the calls.
        unsafe {
            let triple = CString::from(CStr::from_ptr((api.default_triple)()));
            let machine = machine(api, &triple, cpu)?;
            let mut handle = null_mut();
            check(api, "starting its just-in-time linker", (api.jit_create)(&mut handle, null_mut()))?;
            let jit = Rc::new(LlvmJit { api, handle, dylib: (api.jit_dylib)(handle) });
            let compiler = LlvmCompiler { api, machine, triple, jit };
            compiler.define(symbols)?;
            Ok(compiler)
        }
    }

    fn define(&self, symbols: &[(&str, usize)]) -> Result<(), LlvmError> {
        const EXPORTED_CALLABLE: SymbolFlags = SymbolFlags { generic: 1 | 4, target: 0 };
        let mut pairs = Vec::new();
        for (name, address) in symbols {
            let name = CString::new(*name).map_err(|_| refused("naming symbols", name))?;
            // SAFETY: a live JIT and a C string; the interned name's reference goes to the unit below.
            let name = unsafe { (self.api.jit_intern)(self.jit.handle, name.as_ptr()) };
            pairs.push(SymbolPair { name, address: *address as u64, flags: EXPORTED_CALLABLE });
        }
        // SAFETY: the pairs are read during the call. Unless it fails, defining takes the unit.
        unsafe {
            let unit = (self.api.absolute_symbols)(pairs.as_mut_ptr(), pairs.len());
            let error = (self.api.dylib_define)(self.jit.dylib, unit);
            if !error.is_null() {
                (self.api.unit_dispose)(unit);
            }
            check(self.api, "defining the runtime's functions", error)
        }
    }

    /// Compiles a module given as text, with LLVM's passes `passes` (as `opt -passes=` takes them).
    ///
    /// # Errors
    /// The error that LLVM finds in the text.
    pub fn compile(&self, text: &str, passes: &str, keep_text: bool) -> Result<ObjectFile, LlvmError> {
        let api = self.api;
        let passes = CString::new(passes).map_err(|_| refused("reading pass names", passes))?;
        // SAFETY: see `OwnedHandle`; the module is disposed of before its context, since it is declared
        // later.
        unsafe {
            let context = OwnedHandle::new((api.context_create)(), api.context_dispose);
            let module = self.parse(&context, text)?;
            let options = OwnedHandle::new((api.pass_options)(), api.pass_options_dispose);
            let error = (api.run_passes)(module.handle, passes.as_ptr(), self.machine.handle, options.handle);
            check(api, "optimizing", error)?;
            let text = keep_text.then(|| message((api.print_module)(module.handle), api.message_dispose));
            let (mut why, mut buffer) = (null_mut(), null_mut());
            const OBJECT: u32 = 1;
            if (api.emit)(self.machine.handle, module.handle, OBJECT, &mut why, &mut buffer) != 0 {
                return Err(refused("emitting code", &message(why, api.message_dispose)));
            }
            let buffer = OwnedHandle::new(buffer, api.buffer_dispose);
            let start = (api.buffer_start)(buffer.handle).cast::<u8>();
            let bytes = std::slice::from_raw_parts(start, (api.buffer_size)(buffer.handle)).to_vec();
            Ok(ObjectFile { bytes, text })
        }
    }

    /// Parses and verifies a module, and sets this machine as its target.
    fn parse(&self, context: &OwnedHandle, text: &str) -> Result<OwnedHandle, LlvmError> {
        let api = self.api;
        // SAFETY: the buffer is a copy, with the NUL behind it that the parser wants, and goes to the parser.
        unsafe {
            let buffer = (api.buffer_copy)(text.as_ptr().cast(), text.len(), c"millstream".as_ptr());
            let (mut module, mut why) = (null_mut(), null_mut());
            if (api.parse_ir)(context.handle, buffer, &mut module, &mut why) != 0 {
                return Err(refused("parsing", &message(why, api.message_dispose)));
            }
            let module = OwnedHandle::new(module, api.module_dispose);
            const RETURN_STATUS: i32 = 2;
            let mut why = null_mut();
            let bad = (api.verify_module)(module.handle, RETURN_STATUS, &mut why) != 0;
            let why = message(why, api.message_dispose);
            if bad {
                return Err(refused("verifying", &why));
            }
            (api.set_triple)(module.handle, self.triple.as_ptr());
            let layout = OwnedHandle::new((api.machine_layout)(self.machine.handle), api.layout_dispose);
            (api.set_layout)(module.handle, layout.handle);
            Ok(module)
        }
    }

    /// Links an object into this process and returns the addresses of `names`.
    ///
    /// # Errors
    /// If a symbol is missing, or one of the object's is already defined.
    pub fn link(&self, object: &ObjectFile, names: &[&str]) -> Result<(JitCode, Vec<usize>), LlvmError> {
        let api = self.api;
        // SAFETY: the object is a copy that goes to the JIT. On failure `JitCode` removes what came in.
        unsafe {
            let tracker = (api.tracker_create)(self.jit.dylib);
            let code = JitCode { jit: Rc::clone(&self.jit), tracker };
            let buffer =
                (api.buffer_copy)(object.bytes.as_ptr().cast(), object.bytes.len(), c"native".as_ptr());
            let error = (api.jit_add_object)(self.jit.handle, tracker, buffer);
            check(api, "adding code", error)?;
            let mut addresses = Vec::new();
            for name in names {
                let name = CString::new(*name).map_err(|_| refused("naming symbols", name))?;
                let mut address = 0;
                check(api, "linking code", (api.jit_lookup)(self.jit.handle, &mut address, name.as_ptr()))?;
                addresses.push(address as usize);
            }
            Ok((code, addresses))
        }
    }
}

/// Machine code in this process. Dropping it frees the memory: addresses in it must not be called any more.
pub struct JitCode {
    jit: Rc<LlvmJit>,
    tracker: LlvmRef,
}

impl Drop for JitCode {
    fn drop(&mut self) {
        let api = self.jit.api;
        // SAFETY: the tracker is live, and its JIT, too, since this shares it.
        unsafe {
            let error = (api.tracker_remove)(self.tracker);
            let _ = check(api, "removing code", error);
            (api.tracker_release)(self.tracker);
        }
    }
}

/// A description of this machine, or of one with another processor.
///
/// # Safety
/// `api` is LLVM's.
unsafe fn machine(api: &LlvmApi, triple: &CStr, cpu: Option<&str>) -> Result<OwnedHandle, LlvmError> {
    const AGGRESSIVE: u32 = 3;
    const POSITION_INDEPENDENT: u32 = 2;
    const SMALL_CODE_MODEL: u32 = 3;
    // SAFETY: out parameters are live; strings are LLVM's own and leave by their dispose function.
    unsafe {
        let (mut target, mut why) = (null_mut(), null_mut());
        if (api.target_from_triple)(triple.as_ptr(), &mut target, &mut why) != 0 {
            return Err(refused("finding this machine's target", &message(why, api.message_dispose)));
        }
        let text = |s| CString::new(message(s, api.message_dispose)).unwrap_or_default();
        let (cpu, features) = match cpu {
            Some(name) => {
                (CString::new(name).map_err(|_| refused("naming a processor", name))?, CString::default())
            }
            None => (text((api.host_cpu)()), text((api.host_features)())),
        };
        let handle = (api.machine_create)(
            target,
            triple.as_ptr(),
            cpu.as_ptr(),
            features.as_ptr(),
            AGGRESSIVE,
            POSITION_INDEPENDENT,
            SMALL_CODE_MODEL,
        );
        match handle.is_null() {
            true => Err(refused("describing this machine", "no target machine")),
            false => Ok(OwnedHandle::new(handle, api.machine_dispose)),
        }
    }
}

fn refused(during: &'static str, message: &str) -> LlvmError {
    LlvmError::Refused { during, message: message.to_owned() }
}

/// Takes an `LLVMErrorRef`, null for success.
fn check(api: &LlvmApi, during: &'static str, error: LlvmRef) -> Result<(), LlvmError> {
    if std::ptr::eq(error, null()) {
        return Ok(());
    }
    // SAFETY: a live error, which taking its message consumes.
    let text = unsafe { (api.error_message)(error) };
    Err(refused(during, &message(text, api.error_message_dispose)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_a_function_and_its_mistakes_are_named() {
        let compiler = LlvmCompiler::new(&[("seven", seven as *const () as usize)], None).unwrap();
        let text = "declare i64 @seven()\ndefine i64 @f(i64 %a) {\n%s = call i64 @seven()\n\
            %r = add i64 %a, %s\nret i64 %r\n}";
        let object = compiler.compile(text, "default<O2>", true).unwrap();
        assert!(object.text.as_deref().is_some_and(|t| t.contains("@seven")));
        for _ in 0..2 {
            // The second time shows that dropping has freed the names.
            let (_code, at) = compiler.link(&object, &["f"]).unwrap();
            // SAFETY: the function has this signature, and its code lives until the end of the block.
            let f: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(at[0]) };
            assert_eq!(f(35), 42);
        }
        let wrong = |text: &str| compiler.compile(text, "default<O2>", false).unwrap_err().to_string();
        assert!(wrong("define i64 @f(i64 %a) {\n%r = add i32 %a, 1\nret i64 %r\n}").contains("parsing"));
        let undefined = compiler.compile(
            "declare i64 @g()\ndefine i64 @h() {\n%r = call i64 @g()\nret i64 %r\n}",
            "default<O0>",
            false,
        );
        assert!(compiler.link(&undefined.unwrap(), &["h"]).is_err_and(|e| e.to_string().contains('g')));
    }

    extern "C" fn seven() -> u64 {
        7
    }
}
