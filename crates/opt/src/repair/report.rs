//! The report of a repair: its outcome, the changes with their source lines, and their costs.

use std::fmt;

use millstream_isa::Cond;
use millstream_object::{EntryProgram, Object};
use millstream_search::{RepairEdit, slot_line};
use serde::Serialize;

use super::ideas::WholeForm;

/// Lines of a reason that are shown.
const MOST_LINES: usize = 6;

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairChange {
    /// Function.
    pub function: String,
    /// Slot of the function as it was when the change was made.
    pub slot: usize,
    /// Description of the change.
    pub change: String,
    /// Source file, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Source line, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl RepairChange {
    pub(super) fn new(object: &Object, edit: &RepairEdit) -> RepairChange {
        let function = object.functions.get(edit.func() as usize);
        let length = function.map_or(0, |f| f.insns.len());
        let is_line =
            |slot: &usize| slot_line(object, edit.func(), *slot).is_some_and(|l| l.0 >= edit.line());
        let slot = (0..length).find(is_line).unwrap_or(0);
        let lines = function.map_or(&[][..], |f| &f.line_info);
        let line = lines.iter().take_while(|l| l.insn as usize <= slot).last();
        RepairChange {
            function: function.map(|f| f.name.clone()).unwrap_or_default(),
            slot,
            change: describe(edit),
            file: line.and_then(|l| Some(object.btf.as_ref()?.str(l.file).trim().to_owned())),
            line: line.map(|l| l.line),
        }
    }

    pub(super) fn whole(program: &EntryProgram, form: WholeForm) -> RepairChange {
        let change = match form {
            WholeForm::Forget => "numbers are forgotten where paths meet",
            WholeForm::ExploreOther => "sides of branches are swapped",
            WholeForm::Inlined => "functions are moved into their callers",
        };
        let function = program.name.clone();
        RepairChange { function, slot: 0, change: change.to_owned(), file: None, line: None }
    }
}

fn describe(edit: &RepairEdit) -> String {
    match edit {
        RepairEdit::Guard { site, cond: Cond::Gt, value } => format!("check: {:?} <= {value}", site.register),
        RepairEdit::Guard { site, cond: Cond::Lt, value } => format!("check: {:?} >= {value}", site.register),
        RepairEdit::Guard { site, cond: Cond::Eq, .. } => format!("check: {:?} is not null", site.register),
        RepairEdit::Guard { site, value, .. } => format!("check: {:?} & {value} == 0", site.register),
        RepairEdit::GuardPacket { site, bytes, .. } => {
            format!("check: {:?} + {bytes} is not above the end of the packet", site.register)
        }
        RepairEdit::GuardRounds { most, .. } => format!("check: the loop makes at most {most} rounds"),
        RepairEdit::Initialize { register, .. } => format!("{register:?} = 0 at the beginning"),
        RepairEdit::SplitAccess { part, .. } => format!("the access is made in parts of {part} bytes"),
        RepairEdit::MoveBack { by, .. } => format!("the distance {by} is made part of the access"),
        RepairEdit::Duplicate { .. } => "the block is made once for each way to it".to_owned(),
        RepairEdit::DropUnreachable { .. } => "code that nothing reaches is removed".to_owned(),
        RepairEdit::DelayAddition { .. } => "the addition is moved behind the null check".to_owned(),
    }
}

/// Cost of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RepairCost {
    /// Slots before and after.
    pub slots: [u32; 2],
    /// Predicted cycles before and after, in thousandths.
    pub cycles: [u64; 2],
    /// Instructions that the verifier walks.
    pub verified: u32,
}

/// Outcome of the repair of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// The kernel accepts it as it is.
    Accepted,
    /// It was repaired, and proven equivalent.
    Repaired,
    /// It was accepted with changes that are not proven to be right on every run: why.
    NotProven(String),
    /// The kernel rejects it, whatever was changed: its last reason.
    Rejected(String),
    /// It cannot be loaded here: why.
    NotSupported(String),
}

/// The repair of a program.
#[derive(Clone, Debug, Serialize)]
pub struct RepairReport {
    /// Name.
    pub name: String,
    /// Section.
    pub section: String,
    /// The outcome.
    pub outcome: RepairOutcome,
    /// Reason of the kernel's first rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Changes that were made, or tried.
    pub changes: Vec<RepairChange>,
    /// Cost, if it was repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<RepairCost>,
    /// Instruction at which the kernel stops with all changes, if it was not repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// Advice to the programmer, if it was not repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl RepairReport {
    pub(super) fn new(program: &EntryProgram) -> RepairReport {
        RepairReport {
            name: program.name.clone(),
            section: program.section.clone(),
            outcome: RepairOutcome::Accepted,
            reason: None,
            changes: Vec::new(),
            cost: None,
            nearest: None,
            advice: None,
        }
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, why) = match &self.outcome {
            RepairOutcome::Accepted => ("accepted as it is", None),
            RepairOutcome::Repaired => ("repaired and proven equivalent", None),
            RepairOutcome::NotProven(why) => {
                ("not repaired: the kernel accepts it with these changes, but they are not proven", Some(why))
            }
            RepairOutcome::Rejected(why) => ("not repaired: no change helps", Some(why)),
            RepairOutcome::NotSupported(why) => ("cannot be loaded here", Some(why)),
        };
        writeln!(f, "{}: {verdict}", self.name)?;
        if let Some(reason) = &self.reason {
            writeln!(f, "  rejected: {reason}")?;
        }
        for change in &self.changes {
            write!(f, "  {}, ", change.change)?;
            match (&change.file, change.line) {
                (Some(file), Some(line)) => writeln!(f, "{file}:{line}")?,
                _ => writeln!(f, "slot {} of {}", change.slot, change.function)?,
            }
        }
        if let Some(RepairCost { slots: [before, after], cycles, verified }) = self.cost {
            let cycles = cycles.map(|c| c as f64 / 1000.0);
            writeln!(
                f,
                "  cost: {before} -> {after} slots, {:.1} -> {:.1} predicted cycles, {verified} verified instructions",
                cycles[0], cycles[1]
            )?;
        }
        if let Some(why) = why {
            let mut lines = why.lines().take(MOST_LINES);
            writeln!(f, "  reason: {}", lines.next().unwrap_or_default())?;
            lines.try_for_each(|line| writeln!(f, "    {}", line.trim()))?;
        }
        if let Some(nearest) = &self.nearest {
            writeln!(f, "  stopped at {nearest}")?;
        }
        self.advice.iter().try_for_each(|advice| writeln!(f, "  to do: {advice}"))
    }
}
