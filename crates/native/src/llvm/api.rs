//! The functions of LLVM's C interface that this crate calls, looked up in the shared library at run time.
//!
//! The library is not linked: it is searched for when native code is requested. So all other commands start
//! without the tens of milliseconds that loading LLVM takes, and run on machines without it, and building
//! needs no headers.
//!
//! Every signature is that of `llvm-c/{Core,IRReader,Target,TargetMachine,Error,LLJIT,Orc}.h` and
//! `llvm-c/Transforms/PassBuilder.h` of LLVM 19, whose C interface is stable within a major version; no other version's
//! library is opened.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use super::Error;

/// A handle of LLVM's: a pointer to an object that only LLVM accesses.
pub(super) type Ref = *mut c_void;

/// A symbol with its address, as `LLVMOrcCSymbolMapPair`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SymbolPair {
    pub(super) name: Ref,
    pub(super) address: u64,
    pub(super) flags: SymbolFlags,
}

/// `LLVMJITSymbolFlags`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SymbolFlags {
    pub(super) generic: u8,
    pub(super) target: u8,
}

/// Names under which Debian, Fedora and LLVM's own packages install the library.
const NAMES: [&str; 4] =
    ["libLLVM.so.19.1", "libLLVM-19.so", "libLLVM-19.so.1", "/usr/lib/llvm-19/lib/libLLVM.so.19.1"];

macro_rules! api {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by name without their prefix `LLVM`.
        #[derive(Clone, Copy)]
        pub(super) struct Api {
            $( pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $result)?, )*
        }

        impl Api {
            fn read(library: &Library) -> Result<Api, Error> {
                Ok(Api { $( $field: {
                    let address = library.symbol($symbol)?;
                    // SAFETY: the symbol is a function of this signature: see the module's comment. A pointer
                    // to a function and one to data have the same size on every target that has dlsym.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $result)?>(address)
                    }
                }, )* })
            }
        }
    };
}

api! {
    context_create = "LLVMContextCreate": fn() -> Ref;
    context_dispose = "LLVMContextDispose": fn(Ref);
    buffer_copy = "LLVMCreateMemoryBufferWithMemoryRangeCopy": fn(*const c_char, usize, *const c_char) -> Ref;
    buffer_start = "LLVMGetBufferStart": fn(Ref) -> *const c_char;
    buffer_size = "LLVMGetBufferSize": fn(Ref) -> usize;
    buffer_dispose = "LLVMDisposeMemoryBuffer": fn(Ref);
    parse_ir = "LLVMParseIRInContext": fn(Ref, Ref, *mut Ref, *mut *mut c_char) -> c_int;
    message_dispose = "LLVMDisposeMessage": fn(*mut c_char);
    verify_module = "LLVMVerifyModule": fn(Ref, c_int, *mut *mut c_char) -> c_int;
    module_dispose = "LLVMDisposeModule": fn(Ref);
    print_module = "LLVMPrintModuleToString": fn(Ref) -> *mut c_char;
    set_triple = "LLVMSetTarget": fn(Ref, *const c_char);
    set_layout = "LLVMSetModuleDataLayout": fn(Ref, Ref);
    default_triple = "LLVMGetDefaultTargetTriple": fn() -> *mut c_char;
    target_from_triple = "LLVMGetTargetFromTriple": fn(*const c_char, *mut Ref, *mut *mut c_char) -> c_int;
    host_cpu = "LLVMGetHostCPUName": fn() -> *mut c_char;
    host_features = "LLVMGetHostCPUFeatures": fn() -> *mut c_char;
    machine_create = "LLVMCreateTargetMachine":
        fn(Ref, *const c_char, *const c_char, *const c_char, c_uint, c_uint, c_uint) -> Ref;
    machine_dispose = "LLVMDisposeTargetMachine": fn(Ref);
    machine_layout = "LLVMCreateTargetDataLayout": fn(Ref) -> Ref;
    layout_dispose = "LLVMDisposeTargetData": fn(Ref);
    emit = "LLVMTargetMachineEmitToMemoryBuffer": fn(Ref, Ref, c_uint, *mut *mut c_char, *mut Ref) -> c_int;
    pass_options = "LLVMCreatePassBuilderOptions": fn() -> Ref;
    pass_options_dispose = "LLVMDisposePassBuilderOptions": fn(Ref);
    run_passes = "LLVMRunPasses": fn(Ref, *const c_char, Ref, Ref) -> Ref;
    error_message = "LLVMGetErrorMessage": fn(Ref) -> *mut c_char;
    error_message_dispose = "LLVMDisposeErrorMessage": fn(*mut c_char);
    jit_create = "LLVMOrcCreateLLJIT": fn(*mut Ref, Ref) -> Ref;
    jit_dispose = "LLVMOrcDisposeLLJIT": fn(Ref) -> Ref;
    jit_dylib = "LLVMOrcLLJITGetMainJITDylib": fn(Ref) -> Ref;
    jit_intern = "LLVMOrcLLJITMangleAndIntern": fn(Ref, *const c_char) -> Ref;
    jit_add_object = "LLVMOrcLLJITAddObjectFileWithRT": fn(Ref, Ref, Ref) -> Ref;
    jit_lookup = "LLVMOrcLLJITLookup": fn(Ref, *mut u64, *const c_char) -> Ref;
    absolute_symbols = "LLVMOrcAbsoluteSymbols": fn(*mut SymbolPair, usize) -> Ref;
    dylib_define = "LLVMOrcJITDylibDefine": fn(Ref, Ref) -> Ref;
    unit_dispose = "LLVMOrcDisposeMaterializationUnit": fn(Ref);
    tracker_create = "LLVMOrcJITDylibCreateResourceTracker": fn(Ref) -> Ref;
    tracker_remove = "LLVMOrcResourceTrackerRemove": fn(Ref) -> Ref;
    tracker_release = "LLVMOrcReleaseResourceTracker": fn(Ref);
}

/// Initializers of the four parts of the host's target.
const INITIALISERS: [&str; 4] = if cfg!(target_arch = "aarch64") {
    [
        "LLVMInitializeAArch64TargetInfo",
        "LLVMInitializeAArch64Target",
        "LLVMInitializeAArch64TargetMC",
        "LLVMInitializeAArch64AsmPrinter",
    ]
} else {
    [
        "LLVMInitializeX86TargetInfo",
        "LLVMInitializeX86Target",
        "LLVMInitializeX86TargetMC",
        "LLVMInitializeX86AsmPrinter",
    ]
};

/// The opened library. It is never closed: LLVM registers destructors for the process's end.
struct Library(*mut c_void);

impl Library {
    fn open() -> Result<Library, Error> {
        let mut why = String::new();
        for name in NAMES {
            let Ok(name) = CString::new(name) else { continue };
            // SAFETY: a C string; the library's initialisers register options and passes, nothing else.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library(handle));
            }
            if why.is_empty() {
                // SAFETY: after a failure dlerror gives a C string that stays until the next call on this thread.
                why = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
            }
        }
        Err(Error::Library(why))
    }

    fn symbol(&self, name: &'static str) -> Result<*mut c_void, Error> {
        let text = CString::new(name).map_err(|_| Error::Symbol(name))?;
        // SAFETY: an open handle and a C string.
        let address = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if address.is_null() { Err(Error::Symbol(name)) } else { Ok(address) }
    }
}

/// Opens the library and registers the host's target.
pub(super) fn open() -> Result<Api, Error> {
    let library = Library::open()?;
    let api = Api::read(&library)?;
    for name in INITIALISERS {
        let address = library.symbol(name)?;
        // SAFETY: the initialisers take nothing and give nothing.
        let initialise = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(address) };
        // SAFETY: as above; called once, since the caller keeps the result for the process's life.
        unsafe { initialise() };
    }
    Ok(api)
}
