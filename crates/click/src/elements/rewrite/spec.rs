//! What a rewriter's arguments say: what becomes of packets that belong to no flow.

use crate::arguments::{ip, unsigned};
use crate::compile::Setup;
use crate::config::{Text, words};
use crate::error::Error;

/// What happens to packets of an input that belong to no flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spec {
    Drop,
    /// They leave as they are.
    Pass(u32),
    /// A flow begins; it and its answers leave by these outputs.
    Flow {
        pattern: Pattern,
        outputs: [u32; 2],
    },
}

/// What a flow becomes; what is not given stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pattern {
    pub(super) source: Option<u32>,
    pub(super) destination: Option<u32>,
    /// The first source port, and how many more there are to choose from.
    pub(super) source_port: Option<(u16, u16)>,
    pub(super) destination_port: Option<u16>,
    pub(super) choice: Choice,
    /// Where it is written which port is to be tried next.
    pub(super) next: u32,
}

/// Which of several ports is tried first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Choice {
    /// The packet's own, then any.
    #[default]
    Own,
    Any,
    /// The one behind the last that was given out.
    Next,
}

/// Reads the specification of an input.
pub(super) fn spec(setup: &mut Setup<'_>, input: usize, argument: &Text) -> Result<Spec, Error> {
    let all = words(argument);
    let wrong = || {
        Error::new(
            argument.span,
            "expected drop, pass [OUTPUT], keep OUTPUT REPLY_OUTPUT, or pattern ... OUTPUT REPLY_OUTPUT",
        )
    };
    let most = u64::from(setup.outputs.max(1) - 1);
    let output = |text: &Text| Ok::<u32, Error>(unsigned(text, most)? as u32);
    let names: Vec<&str> = all.iter().map(|word| word.text.as_str()).collect();
    match names[..] {
        ["drop" | "discard"] => Ok(Spec::Drop),
        ["pass" | "passthrough" | "nochange"] => Ok(Spec::Pass(0)),
        ["pass" | "passthrough" | "nochange", _] => Ok(Spec::Pass(output(&all[1])?)),
        ["keep", _, _] => {
            let outputs = [output(&all[1])?, output(&all[2])?];
            Ok(Spec::Flow { pattern: Pattern::default(), outputs })
        }
        ["pattern" | "xpattern", .., _, _] if all.len() >= 4 => {
            let (pattern, ports) = all[1..].split_at(all.len() - 3);
            let own = format!("{}.{input}", setup.element.name);
            let known = setup.patterns.get(&pattern[0].text).filter(|_| pattern.len() == 1).cloned();
            let (words, name) = match &known {
                Some(words) => (&words[..], pattern[0].text.clone()),
                None => (pattern, own),
            };
            let next = setup.shared_number(&format!("pattern {name}"));
            let pattern = Pattern { next, ..self::pattern(setup, argument, words)? };
            Ok(Spec::Flow { pattern, outputs: [output(&ports[0])?, output(&ports[1])?] })
        }
        _ => Err(wrong()),
    }
}

/// `SADDR SPORT DADDR DPORT`, `SADDR DADDR SPORT` or `SADDR DADDR`; a minus keeps what there is.
fn pattern(setup: &Setup<'_>, argument: &Text, words: &[Text]) -> Result<Pattern, Error> {
    let (source, source_port, destination, destination_port) = match words {
        [s, d] => (s, None, d, None),
        [s, d, p] => (s, Some(p), d, None),
        [s, p, d, q] => (s, Some(p), d, Some(q)),
        _ => {
            return Err(Error::new(argument.span, "no such pattern, and none of SADDR SPORT DADDR DPORT")
                .help("patterns have names by IPRewriterPatterns(NAME SADDR SPORT DADDR DPORT)"));
        }
    };
    let given = |text: &Text| text.text != "-";
    let address = |text: &Text| {
        given(text)
            .then(|| ip(text, setup.arguments.names))
            .transpose()
            .map_err(|e| e.help("one address, or `-` for what the packet has; ranges are of ports only"))
    };
    let mut found =
        Pattern { source: address(source)?, destination: address(destination)?, ..Pattern::default() };
    let port = |text: &Text| Ok::<u16, Error>(unsigned(text, 65_535)? as u16);
    if let Some(text) = source_port.filter(|text| given(text)) {
        let (range, choice) = match text.text.strip_suffix('#') {
            Some(range) => (range, Choice::Next),
            None => match text.text.strip_suffix('?') {
                Some(range) => (range, Choice::Any),
                None => (text.text.as_str(), Choice::Own),
            },
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let part = |part: &str| port(&Text { text: part.to_owned(), span: text.span });
        let (first, last) = (part(first)?, part(last)?);
        let more = last.checked_sub(first);
        let more = more.ok_or_else(|| Error::new(text.span, "the range of ports goes backwards"))?;
        (found.source_port, found.choice) = (Some((first, more)), choice);
    }
    found.destination_port = destination_port.filter(|text| given(text)).map(port).transpose()?;
    Ok(found)
}
