//! `libmillstream`: the interface of `include/millstream.h`.
//!
//! | module | functions |
//! |---|---|
//! | `boundary` | errors as codes and texts, panics, memory that C releases |
//! | `objects` | optimize, list and prove programs of objects in memory |
//! | `session` | specialize a program while it runs, with reports behind a descriptor |
//!
//! Invariant: no function unwinds into C, and pointers are as the header describes them. Everything else is
//! checked: no object and no option makes a function do more than return an error.
#![allow(unsafe_code)]

mod boundary;
mod objects;
mod session;

use std::ffi::{c_char, c_int, c_void};

use boundary::guard;
use objects::{OptimizeRequest, ProgramRecord};
use session::{SessionHandle, SessionRequest};

/// The version, with its zero.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// `const char *millstream_version(void)`
#[unsafe(no_mangle)]
pub extern "C" fn millstream_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// `const char *millstream_last_error(void)`
#[unsafe(no_mangle)]
pub extern "C" fn millstream_last_error() -> *const c_char {
    boundary::last_error()
}

/// `void millstream_free(void *memory)`
///
/// # Safety
/// The memory is null, or was given by a function of this library and not released since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_free(memory: *mut c_void) {
    // SAFETY: the caller's promise; all such memory is of `malloc`.
    unsafe { libc::free(memory) }
}

/// `int millstream_optimize(...)`
///
/// # Safety
/// Pointers are as the header describes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_optimize(
    object: *const c_void,
    length: usize,
    options: *const OptimizeRequest,
    result: *mut *mut c_void,
    result_length: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (bytes, options) = unsafe { (boundary::bytes(object, length)?, boundary::options(options)?) };
        let options = objects::settings(options.as_ref())?;
        let made = boundary::copy(&objects::optimize(bytes, &options)?)?;
        // SAFETY: as above.
        unsafe { boundary::give(result_length, made.length)? };
        // SAFETY: as above.
        unsafe { boundary::give(result, made.into_pointer()) }
    })
}

/// `int millstream_programs(...)`
///
/// # Safety
/// Pointers are as the header describes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_programs(
    object: *const c_void,
    length: usize,
    programs: *mut *mut ProgramRecord,
    count: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let found = objects::programs(unsafe { boundary::bytes(object, length)? })?;
        let list = objects::records(&found)?;
        // SAFETY: as above.
        unsafe { boundary::give(count, found.len())? };
        // SAFETY: as above.
        unsafe { boundary::give(programs, list.into_pointer().cast()) }
    })
}

/// `int millstream_prove(...)`
///
/// # Safety
/// Pointers are as the header describes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_prove(
    before: *const c_void,
    before_length: usize,
    after: *const c_void,
    after_length: usize,
    milliseconds: u32,
    verdicts: *mut *mut c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (before, after) =
            unsafe { (boundary::bytes(before, before_length)?, boundary::bytes(after, after_length)?) };
        let proven = objects::prove(before, after, milliseconds)?;
        if !verdicts.is_null() {
            let text = boundary::copy_text(&proven.text)?;
            // SAFETY: as above.
            unsafe { boundary::give(verdicts, text.into_pointer().cast())? };
        }
        proven.answer
    })
}

/// `int millstream_session_start(...)`
///
/// # Safety
/// Pointers are as the header describes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_session_start(
    object: *const c_void,
    length: usize,
    interfaces: *const *const c_char,
    count: usize,
    options: *const SessionRequest,
    session: *mut *mut SessionHandle,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (bytes, options) = unsafe { (boundary::bytes(object, length)?, boundary::options(options)?) };
        // SAFETY: as above.
        let interfaces = unsafe { boundary::texts(interfaces, count)? };
        // SAFETY: as above.
        let plan = unsafe { session::plan(bytes, interfaces, options.as_ref())? };
        let started = Box::new(SessionHandle::start(plan)?);
        // SAFETY: as above.
        unsafe { boundary::give(session, Box::into_raw(started)) }
    })
}

/// `int millstream_session_fd(const struct millstream_session *session)`
///
/// # Safety
/// The session was started, and not stopped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_session_fd(session: *const SessionHandle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { session.as_ref() }.map_or(-1, SessionHandle::descriptor)
}

/// `int millstream_session_next(struct millstream_session *session, char **report)`
///
/// # Safety
/// The session was started, and not stopped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_session_next(
    session: *mut SessionHandle,
    report: *mut *mut c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { session.as_ref() }.ok_or_else(|| boundary::argument("there is no session"))?;
        let text = boundary::copy_text(&session.next()?)?;
        // SAFETY: as above.
        unsafe { boundary::give(report, text.into_pointer().cast()) }
    })
}

/// `int millstream_session_stop(struct millstream_session *session, int keep_original)`
///
/// # Safety
/// The session is null, or was started and not stopped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millstream_session_stop(session: *mut SessionHandle, keep_original: c_int) -> c_int {
    guard(|| {
        if session.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise: it is of `Box::into_raw`.
        unsafe { Box::from_raw(session) }.stop(keep_original != 0)
    })
}
