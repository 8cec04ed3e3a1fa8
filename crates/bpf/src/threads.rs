//! Threads for compilation: with stacks that hold what recursion over the longest functions needs.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// Bytes of stack of a thread that compiles or searches. What is not touched takes no memory.
pub const STACK: usize = 64 << 20;

/// Does two things side by side, the second one here; one after the other where there is no thread to be had.
pub fn both<A: Send, B>(first: impl Fn() -> A + Sync, second: impl FnOnce() -> B) -> (A, B) {
    scope(|scope| match Builder::new().stack_size(STACK).spawn_scoped(scope, &first) {
        Ok(thread) => {
            let b = second();
            (thread.join().unwrap_or_else(|panic| resume_unwind(panic)), b)
        }
        Err(_) => (first(), second()),
    })
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::both;

    /// Takes more than a kilobyte of stack for each level.
    fn deep(levels: usize) -> usize {
        let room = black_box([levels as u8; 1024]);
        if levels == 0 { 0 } else { deep(levels - 1) + usize::from(black_box(room)[7] == levels as u8) }
    }

    #[test]
    fn recursion_that_needs_more_than_a_usual_thread_has_is_not_cut_off() {
        assert_eq!(both(|| deep(16 << 10), || 7), (16 << 10, 7));
    }
}
