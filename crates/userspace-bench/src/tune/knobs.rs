//! The search space of a program: the knobs of its schedule, the templates of its tables, and what may be left
//! out.

use millstream_native::{ClassifierTemplate, HashTemplate, LpmTemplate, Schedule};
use millstream_tune::{SearchSpace, TuningKnob};

use super::protocol::TemplateFacts;

/// Optimizations whose absence can pay: they trade work for other work.
const LEFT_OUT: [&str; 5] = ["lookups", "descriptors", "if-convert", "hoist", "jump-threading"];

/// Choices that a program offers to the search.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgramChoices {
    /// Tables with templates.
    pub(super) templates: Vec<TemplateFacts>,
    /// Tables whose look-ups can be fetched for.
    pub(super) fetchable: Vec<String>,
    /// True if results of its look-ups can be kept.
    pub(super) has_traversals: bool,
    /// Workers, at most.
    pub(super) workers: u32,
    /// Stages, at most; 1 for no pipeline.
    pub(super) stages: u32,
}

/// The templates that a table may have instead of this one.
fn alternatives(template: &str) -> Vec<&'static str> {
    let hash = HashTemplate::ALL.map(HashTemplate::name);
    let trie = [LpmTemplate::Multibit, LpmTemplate::Packed, LpmTemplate::Lengths, LpmTemplate::List];
    let classifier = [
        ClassifierTemplate::Linear,
        ClassifierTemplate::Tree,
        ClassifierTemplate::Cuts,
        ClassifierTemplate::Tuples,
    ];
    let families: [Vec<&'static str>; 3] = [
        hash.to_vec(),
        trie.map(LpmTemplate::name).to_vec(),
        classifier.map(ClassifierTemplate::name).to_vec(),
    ];
    let family = families.into_iter().find(|family| family.contains(&template)).unwrap_or_default();
    family.into_iter().filter(|name| *name != template).collect()
}

/// The search space of a program.
pub(super) fn space(program: &ProgramChoices) -> SearchSpace {
    let usual = Schedule::default();
    let numbers = |name: &str, values: &[u32], usual: u32| {
        TuningKnob::new(name, values.iter().map(u32::to_string), &usual.to_string())
    };
    let mut knobs = vec![
        numbers("batch", &[1, 4, 8, 16, 32, 64, 128, 256, 512], usual.batch),
        TuningKnob::new("pattern", ["fit", "packets", "groups", "pipelined-groups"], usual.pattern.name()),
        numbers("unroll", &[1, 2, 4, 8], usual.unroll),
        numbers("headers", &[0, 2, 4, 8, 16], usual.headers),
        TuningKnob::new("classes", ["one", "ethertype", "protocol"], usual.classes.name()),
    ];
    if !program.fetchable.is_empty() {
        let all = program.fetchable.join("+");
        let mut fetch = vec!["large".to_owned(), "nothing".to_owned(), all];
        fetch.extend(program.fetchable.iter().filter(|_| program.fetchable.len() > 1).cloned());
        knobs.push(numbers("distance", &[2, 4, 8, 16, 32], usual.distance));
        knobs.push(TuningKnob::new("sub-batch", ["2", "4", "8", "16", "32", "all"], "8"));
        knobs.push(TuningKnob::new("fetch", fetch, "large"));
        knobs.push(TuningKnob::new("trials", ["on", "off"], "on"));
    }
    if program.has_traversals {
        knobs.push(TuningKnob::new("traversals", ["off", "whole", "split"], usual.traversals.name()));
        knobs.push(numbers("flows", &[256, 1024, 4096, 16384, 65536], usual.flows));
    }
    for (name, most) in [("workers", program.workers), ("stages", program.stages)] {
        if most > 1 {
            let counts: Vec<u32> = (0..).map(|n| 1 << n).take_while(|n| *n < most).chain([most]).collect();
            knobs.push(numbers(name, &counts, 1));
        }
    }
    let mut space = SearchSpace { knobs };
    for facts in &program.templates {
        space.add_template(&facts.table, alternatives(&facts.template));
    }
    space.add_left_out(LEFT_OUT);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_every_knob_is_a_setting_that_commands_take() {
        let facts =
            |table: &str, template: &str| TemplateFacts { table: table.into(), template: template.into() };
        let program = ProgramChoices {
            templates: vec![facts("flows", "open"), facts("routes", "multibit"), facts("acl", "tree")],
            fetchable: vec!["flows".to_owned(), "routes".to_owned()],
            has_traversals: true,
            workers: 3,
            stages: 2,
        };
        let space = space(&program);
        for (at, knob) in space.knobs.iter().enumerate() {
            assert!(knob.values.len() > 1, "{}", knob.name);
            for value in 0..knob.values.len() {
                let settings = space.settings(&space.changed(&space.usual(), at, value)).unwrap();
                let planned = crate::native::CodegenArgs::default().planned(&settings);
                assert!(planned.is_ok(), "{}={}", knob.name, knob.values[value]);
            }
        }
        assert_eq!(space.settings(&space.usual()).unwrap().summary(), "default");
    }
}
