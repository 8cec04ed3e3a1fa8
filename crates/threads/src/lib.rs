//! Threads for compilation: with stacks that hold what recursion over the longest functions needs.
//!
//! Architecture Invariant: a thread ends before the call that began it returns.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, scope};

/// Bytes of stack of a thread that compiles or searches. Untouched pages take no memory.
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

/// A thread that does one thing after another. It keeps the memory that it has used, which a new thread would
/// have to be given anew.
pub struct WorkerThread<Q, A> {
    questions: Sender<Q>,
    answers: Receiver<A>,
}

impl<Q: Copy, A> WorkerThread<Q, A> {
    /// Has something done by the thread, and something here meanwhile.
    pub fn both<B>(&self, question: Q, here: impl FnOnce() -> B) -> (Option<A>, B) {
        // Whoever does not take a question has panicked, which the scope tells.
        let asked = self.questions.send(question).is_ok();
        let b = here();
        (asked.then(|| self.answers.recv().ok()).flatten(), b)
    }
}

/// Gives a helper that does one thing; none where there is no thread to be had.
pub fn with_worker_thread<Q: Send, A: Send, R>(
    work: impl Fn(Q) -> A + Sync,
    body: impl FnOnce(Option<&WorkerThread<Q, A>>) -> R,
) -> R {
    scope(|scope| {
        let (questions, asked) = channel();
        let (answered, answers) = channel();
        let work = &work;
        let answer_all = move || asked.into_iter().all(|question| answered.send(work(question)).is_ok());
        let thread = Builder::new().stack_size(STACK).spawn_scoped(scope, answer_all);
        let helper = thread.is_ok().then_some(WorkerThread { questions, answers });
        body(helper.as_ref())
    })
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::{both, with_worker_thread};

    #[test]
    fn a_helper_answers_in_order_and_is_gone_in_the_end() {
        let sum = with_worker_thread(
            |n: u32| n * 2,
            |helper| {
                let helper = helper.expect("a thread");
                (0..100).map(|n| helper.both(n, || n)).map(|(a, b)| a.expect("an answer") + b).sum::<u32>()
            },
        );
        assert_eq!(sum, 3 * 99 * 100 / 2);
    }

    #[test]
    fn what_goes_wrong_in_a_helper_is_not_waited_for() {
        let ran = std::panic::catch_unwind(|| {
            with_worker_thread(
                |n: u32| assert_ne!(n, 1),
                |helper| helper.map(|h| [1, 2].map(|n| h.both(n, || ()).0)),
            )
        });
        assert!(ran.is_err());
    }

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
