//! Internal errors: panics, which are defects of Millstream, whatever the input.
//!
//! The hook reports a panic in any thread, once, without panicking itself; [`catch_panics`] turns a panic
//! that ends the command into [`Exit::Internal`]. A panic in a thread that nobody joins shows in the exit
//! code, too, unless somebody has handled it ([`mark_handled`]).

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::exit::Exit;

/// Panics that nobody has handled.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Runs a command, and returns its exit code: [`Exit::Internal`] if it, or a thread of it, panicked.
pub fn catch_panics(command: impl FnOnce() -> ExitCode) -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        OPEN.fetch_add(1, Ordering::SeqCst);
        let place = info.location().map_or(String::new(), |place| format!(" at {place}"));
        let thread = thread::current();
        let thread =
            thread.name().filter(|name| *name != "main").map_or(String::new(), |n| format!(" in thread {n}"));
        let backtrace = Backtrace::capture();
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        errln!(
            "millstream: internal error{thread}{place}: {}\n  \
             this is a defect of Millstream's: please report it, with the command, its input and what \
             RUST_BACKTRACE=1 shows{backtrace}",
            message(info.payload())
        );
    }));
    let code = catch_unwind(AssertUnwindSafe(command)).unwrap_or_else(|_| Exit::Internal.into());
    if OPEN.load(Ordering::SeqCst) > 0 { Exit::Internal.into() } else { code }
}

/// Notes that a panic was caught and reported, and has disturbed nothing else.
pub fn mark_handled() {
    let _ = OPEN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| open.checked_sub(1));
}

/// The text that a panic carries.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
