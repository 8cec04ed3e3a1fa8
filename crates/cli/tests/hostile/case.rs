//! A run determined by its number: command, arguments, files, standard input, and consumers of the output.

use std::ffi::OsString;
use std::time::Duration;

use millstream_rng::Rng;

use crate::commands::{Leaf, pick};
use crate::files::Files;
use crate::process::{Consumer, Run};

/// A command line, its input, and consumers of its output.
pub(crate) struct Case {
    arguments: Vec<OsString>,
    input: Option<OsString>,
    output: Consumer,
    errors: Consumer,
}

impl Case {
    /// The case of this number.
    pub(crate) fn new(number: u64, leaves: &[Leaf], files: &Files) -> Case {
        let mut rng = Rng::new(number);
        let leaf = &leaves[rng.below(leaves.len() as u64) as usize];
        let other = pick(&mut rng, &[0, 5, 20, 60]);
        let usable = pick(&mut rng, &[99, 95, 80, 40]);
        let arguments = leaf.drawn(&mut rng, files, other, usable);
        let input = (rng.below(2) == 0).then(|| files.drawn(&mut rng));
        let consumers =
            [Consumer::Reader, Consumer::Reader, Consumer::Reader, Consumer::Gone, Consumer::Full];
        Case { arguments, input, output: pick(&mut rng, &consumers), errors: pick(&mut rng, &consumers[..4]) }
    }

    /// Returns true if its command is one of these.
    pub(crate) fn is_any_of(&self, names: &[&str]) -> bool {
        self.arguments.first().is_some_and(|first| names.iter().any(|name| first == name))
    }

    /// Returns true if its command line contains this word.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.arguments.iter().any(|argument| argument == word)
    }

    /// The words of its command line.
    pub(crate) fn arguments(self) -> Vec<OsString> {
        self.arguments
    }

    /// The run, which is killed after this time.
    pub(crate) fn run(self, limit: Duration) -> Run {
        let Case { arguments, input, output, errors } = self;
        Run { arguments, input, output, errors, limit }
    }
}
