//! Arguments of a rewriter: the treatment of packets that belong to no flow.

use std::fmt;

use super::FlowKeyKind;
use super::mapper::{self, PatternMapper};
use super::spec::{RewritePattern, flow_spec};
use millstream_click::arguments::unsigned;
use millstream_click::{ElementSetup, Error, SpannedText, words};

/// Treatment of packets of an input that belong to no flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum InputSpec {
    Drop,
    /// They leave as they are.
    Pass(u32),
    /// A flow begins; it and its answers leave by these outputs.
    Flow {
        pattern: RewritePattern,
        outputs: [u32; 2],
    },
    /// A flow begins, by one of several patterns.
    Mapped(PatternMapper),
}

/// Reads the specifications of all inputs. The error names each that is wrong, as Click does.
pub(super) fn input_specs(
    setup: &mut ElementSetup<'_>,
    kind: FlowKeyKind,
    specs: &[SpannedText],
) -> Result<Vec<InputSpec>, Error> {
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    for (at, text) in specs.iter().enumerate() {
        match spec(setup, at, text) {
            Ok(input) => inputs.push(input),
            Err(error) => errors.push((at, error)),
        }
    }
    let lines: Vec<String> =
        errors.iter().map(|(at, error)| format!("input spec {at}: {}", error.message)).collect();
    if let Some((_, first)) = errors.into_iter().next() {
        return Err(Error { message: lines.join("\n"), ..first });
    }
    for (input, text) in inputs.iter().zip(specs) {
        input.patterns().iter().try_for_each(|pattern| pattern.fits(kind, setup, text))?;
    }
    Ok(inputs)
}

impl InputSpec {
    /// Patterns of flows that begin.
    fn patterns(&self) -> Vec<&RewritePattern> {
        match self {
            InputSpec::Drop | InputSpec::Pass(_) => Vec::new(),
            InputSpec::Flow { pattern, .. } => vec![pattern],
            InputSpec::Mapped(mapper) => mapper.patterns.iter().map(|(pattern, _)| pattern).collect(),
        }
    }
}

impl fmt::Display for InputSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputSpec::Drop => f.write_str("<drop>"),
            InputSpec::Pass(_) => f.write_str("<nochange>"),
            InputSpec::Flow { pattern, .. } if *pattern == RewritePattern::default() => f.write_str("<keep>"),
            InputSpec::Flow { pattern, .. } => pattern.fmt(f),
            InputSpec::Mapped(_) => f.write_str("<mapper>"),
        }
    }
}

/// Reads the specification of an input.
fn spec(setup: &mut ElementSetup<'_>, input: usize, argument: &SpannedText) -> Result<InputSpec, Error> {
    let all = words(argument);
    let wrong = || {
        Error::new(
            argument.span,
            "expected drop, pass [OUTPUT], keep OUTPUT REPLY_OUTPUT, pattern ... OUTPUT REPLY_OUTPUT, or the name \
             of a mapper",
        )
    };
    let most = u64::from(setup.outputs.max(1) - 1);
    let output = |text: &SpannedText| Ok::<u32, Error>(unsigned(text, most)? as u32);
    let names: Vec<&str> = all.iter().map(|word| word.text.as_str()).collect();
    match names[..] {
        ["drop" | "discard"] => Ok(InputSpec::Drop),
        ["pass" | "passthrough" | "nochange"] => Ok(InputSpec::Pass(0)),
        ["pass" | "passthrough" | "nochange", _] => Ok(InputSpec::Pass(output(&all[1])?)),
        ["keep", _, _] => {
            let outputs = [output(&all[1])?, output(&all[2])?];
            Ok(InputSpec::Flow { pattern: RewritePattern::default(), outputs })
        }
        ["pattern" | "xpattern", .., _, _] if all.len() >= 4 => {
            let own = format!("{}.{input}", setup.element.name);
            let (pattern, outputs) = flow_spec(setup, &own, argument, &all[1..])?;
            Ok(InputSpec::Flow { pattern, outputs })
        }
        [name] => match mapper::named(setup, name) {
            Some(named) => Ok(InputSpec::Mapped(mapper::read(setup, &named)?)),
            None => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}
