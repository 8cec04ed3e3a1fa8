//! Source lines of a program with the instructions of the original and of the active variant: for people who watch.

use std::collections::HashMap;

use millstream_isa::DecodeError;
use millstream_object::{LinkedProgram, Object, instruction_texts};
use serde::{Deserialize, Serialize};

/// The code of a program, without the programs that its tail calls reach.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeListing {
    /// Generation of the variant; 0 if none is active.
    pub generation: u32,
    /// In the order of the original; those of the variant alone at the end.
    pub lines: Vec<CodeLine>,
}

/// A source line, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeLine {
    /// The line, as `FILE:LINE`; missing for instructions that belong to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its text.
    pub text: String,
    /// Instructions of the original.
    pub original: Vec<String>,
    /// Instructions of the variant.
    pub variant: Vec<String>,
}

impl CodeListing {
    /// The code of a program of this object.
    pub(super) fn of(
        object: &Object,
        original: &LinkedProgram,
        variant: Option<(u32, &LinkedProgram)>,
    ) -> Result<CodeListing, DecodeError> {
        let mut listing = ListingBuilder { object, lines: Vec::new(), places: HashMap::new() };
        listing.add(original, |line| &mut line.original)?;
        if let Some((_, variant)) = variant {
            listing.add(variant, |line| &mut line.variant)?;
        }
        Ok(CodeListing { generation: variant.map_or(0, |(generation, _)| generation), lines: listing.lines })
    }
}

struct ListingBuilder<'o> {
    object: &'o Object,
    lines: Vec<CodeLine>,
    /// Places of lines by their source.
    places: HashMap<Option<String>, usize>,
}

impl ListingBuilder<'_> {
    fn add(
        &mut self,
        program: &LinkedProgram,
        side: impl Fn(&mut CodeLine) -> &mut Vec<String>,
    ) -> Result<(), DecodeError> {
        let mut known = program.line_info.iter().peekable();
        let mut now = None;
        for (slot, text) in instruction_texts(self.object, &program.insns, &program.relocs)? {
            while let Some(line) = known.next_if(|line| line.insn as usize <= slot) {
                now = Some(line);
            }
            let named = now.zip(self.object.btf.as_ref()).filter(|(line, _)| line.line > 0);
            let source = named.map(|(line, btf)| {
                let file = btf.str(line.file).rsplit('/').next().unwrap_or_default();
                format!("{file}:{}", line.line)
            });
            let place = *self.places.entry(source).or_insert_with_key(|source| {
                let text = named.map_or(String::new(), |(line, btf)| btf.str(line.text).trim().to_owned());
                self.lines.push(CodeLine { source: source.clone(), text, ..CodeLine::default() });
                self.lines.len() - 1
            });
            side(&mut self.lines[place]).push(format!("{slot}: {text}"));
        }
        Ok(())
    }
}
