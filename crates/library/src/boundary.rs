//! The boundary to C: codes, texts of errors, memory.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Codes of failures: `enum millstream_code`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum FailureCode {
    No = 1,
    Input = 2,
    Undecided = 3,
    Unsupported = 4,
    Bug = 6,
}

/// A failure: its code, and its text for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CallFailure {
    pub(crate) code: FailureCode,
    pub(crate) text: String,
}

impl CallFailure {
    pub(crate) fn new(code: FailureCode, text: impl ToString) -> CallFailure {
        CallFailure { code, text: text.to_string() }
    }
}

/// The failure of an argument that cannot be used.
pub(crate) fn argument(text: impl ToString) -> CallFailure {
    CallFailure::new(FailureCode::Input, text)
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// The text of this thread's last failure.
pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.with(|text| text.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr()))
}

/// Runs the body of a function of the interface: a failure or panic becomes the code, and this thread's text.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), CallFailure>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(of_panic(&*panic)));
    let Err(failure) = result else { return 0 };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = text;
        }
    });
    failure.code as c_int
}

/// The failure that a panic is.
pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> CallFailure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    CallFailure::new(FailureCode::Bug, format!("this is a bug of ours, please report it: {text}"))
}

/// Runs work on a thread with the stack that compilation needs, whatever the caller's thread has.
pub(crate) fn with_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, CallFailure> + Send,
) -> Result<T, CallFailure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(millstream_threads::STACK);
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|e| CallFailure::new(FailureCode::Unsupported, format!("no thread to be had: {e}")))?;
        thread.join().unwrap_or_else(|panic| Err(of_panic(&*panic)))
    })
}

/// The bytes behind a pointer of the caller.
///
/// # Safety
/// There are so many bytes, which live for the call.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], CallFailure> {
    if data.is_null() || length > isize::MAX as usize {
        return Err(argument("the object is NULL, or longer than memory"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// Structures of options: their first field is their size, and later versions append fields.
///
/// # Safety
/// Implementors are `repr(C)`, begin with a `usize` that is the size, and are plain integers and pointers.
pub(crate) unsafe trait VersionedOptions: Copy {}

/// Reads options, unless they are null.
///
/// # Safety
/// The pointer is null, or to a structure of the size that its first field says.
pub(crate) unsafe fn options<T: VersionedOptions>(options: *const T) -> Result<Option<T>, CallFailure> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise: the size is the first field.
    let size = unsafe { options.cast::<usize>().read_unaligned() };
    if size != size_of::<T>() {
        return Err(argument(format!("the size of the options is {size}, not {}", size_of::<T>())));
    }
    // SAFETY: it has that size, and any bits are a value.
    Ok(Some(unsafe { options.read_unaligned() }))
}

/// A text of the caller; none for a null pointer.
///
/// # Safety
/// The pointer is null, or to a text that ends in a zero and lives for the call.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, CallFailure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| argument(format!("{text:?} is not UTF-8")))
}

/// Texts of the caller.
///
/// # Safety
/// There are so many pointers to texts.
pub(crate) unsafe fn texts(texts: *const *const c_char, count: usize) -> Result<Vec<String>, CallFailure> {
    if texts.is_null() || count == 0 {
        return Err(argument("no interface is named"));
    }
    // SAFETY: the caller's promise.
    let pointers = unsafe { std::slice::from_raw_parts(texts, count) };
    // SAFETY: as above.
    let one = |pointer: &*const c_char| unsafe { text(*pointer) };
    let null = || argument("the name of an interface is NULL");
    pointers.iter().map(|pointer| one(pointer)?.map(str::to_owned).ok_or_else(null)).collect()
}

/// Gives a value through a pointer of the caller.
///
/// # Safety
/// The pointer is null, or to room for the value.
pub(crate) unsafe fn give<T>(place: *mut T, value: T) -> Result<(), CallFailure> {
    if place.is_null() {
        return Err(argument("there is no place for the result: the pointer is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Memory of `malloc`, to be the caller's.
pub(crate) struct ForeignMemory {
    pointer: *mut c_void,
    pub(crate) length: usize,
}

impl ForeignMemory {
    /// So many bytes of zero.
    pub(crate) fn zeroed(length: usize) -> Result<ForeignMemory, CallFailure> {
        // SAFETY: no requirements.
        let pointer = unsafe { libc::calloc(length.max(1), 1) };
        match pointer.is_null() {
            true => Err(CallFailure::new(FailureCode::Unsupported, "no memory for the result")),
            false => Ok(ForeignMemory { pointer, length }),
        }
    }

    /// Its first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer.cast()
    }

    /// The bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it is ours, zeroed, and so long.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.length) }
    }

    /// Makes it the caller's.
    pub(crate) fn into_pointer(self) -> *mut c_void {
        let pointer = self.pointer;
        std::mem::forget(self);
        pointer
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        // SAFETY: it is of `calloc`, and nobody else has it.
        unsafe { libc::free(self.pointer) };
    }
}

/// A copy of bytes for the caller.
pub(crate) fn copy(bytes: &[u8]) -> Result<ForeignMemory, CallFailure> {
    let mut memory = ForeignMemory::zeroed(bytes.len())?;
    memory.bytes().copy_from_slice(bytes);
    Ok(memory)
}

/// A copy of a text for the caller, ended by a zero.
pub(crate) fn copy_text(text: &str) -> Result<ForeignMemory, CallFailure> {
    let mut memory = ForeignMemory::zeroed(text.len() + 1)?;
    memory.bytes()[..text.len()].copy_from_slice(text.as_bytes());
    Ok(memory)
}
