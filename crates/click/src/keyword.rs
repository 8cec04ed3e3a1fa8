//! Arguments of classes, and their treatment.
//!
//! Invariant: an argument has an [`ArgumentSupport`]. One that is read without effect and one that is refused
//! both give the reason: no argument is accepted silently.

use crate::arguments::{boolean, seconds, unsigned};
use crate::config::SpannedText;
use crate::error::Error;

/// An argument of a class.
pub struct ArgumentSpec {
    /// Its name.
    pub name: &'static str,
    /// True if it may be given without its name.
    pub positional: bool,
    /// Its treatment.
    pub fate: ArgumentSupport,
}

/// Treatment of an argument.
pub enum ArgumentSupport {
    /// It has the effect that Click documents.
    Implemented,
    /// Any value of this kind is accepted and changes no packet and no handler: the reason.
    Moot(IgnoredValueKind, &'static str),
    /// Configurations that give it are refused: the reason.
    Refused(&'static str),
    /// Configurations that give it another value than one of these, which have no effect, are refused: the
    /// reason.
    RefusedBut(&'static [&'static str], &'static str),
}

/// Values of an argument without effect.
#[derive(Clone, Copy, Debug)]
pub enum IgnoredValueKind {
    /// A number from this one to that one.
    Number(i64, u64),
    /// A truth value.
    Truth,
    /// A time.
    Time,
    /// Anything.
    Any,
}

/// Any number, negative or not.
pub const NUMBER: IgnoredValueKind = IgnoredValueKind::Number(i64::MIN, u64::MAX);
/// Any number that is not negative.
pub const COUNT: IgnoredValueKind = IgnoredValueKind::Number(0, u64::MAX);

/// An argument that is implemented, by name or position.
pub const fn at(name: &'static str) -> ArgumentSpec {
    ArgumentSpec { name, positional: true, fate: ArgumentSupport::Implemented }
}

/// An argument that is implemented, by name only.
pub const fn key(name: &'static str) -> ArgumentSpec {
    ArgumentSpec { name, positional: false, fate: ArgumentSupport::Implemented }
}

/// An argument that makes no difference, for this reason.
pub const fn moot(name: &'static str, kind: IgnoredValueKind, why: &'static str) -> ArgumentSpec {
    ArgumentSpec { name, positional: false, fate: ArgumentSupport::Moot(kind, why) }
}

/// An argument that is refused, for this reason.
pub const fn refused(name: &'static str, why: &'static str) -> ArgumentSpec {
    ArgumentSpec { name, positional: false, fate: ArgumentSupport::Refused(why) }
}

/// An argument that is refused, for this reason, unless its value is one of these.
pub const fn refused_but(
    name: &'static str,
    values: &'static [&'static str],
    why: &'static str,
) -> ArgumentSpec {
    ArgumentSpec { name, positional: false, fate: ArgumentSupport::RefusedBut(values, why) }
}

impl ArgumentSpec {
    /// The same, by position, too.
    pub const fn or_at(self) -> ArgumentSpec {
        ArgumentSpec { positional: true, ..self }
    }

    /// Returns true if elements read its value.
    pub fn is_implemented(&self) -> bool {
        matches!(self.fate, ArgumentSupport::Implemented)
    }

    /// Judges a value of an argument that no element asks for.
    pub fn check_value(&self, class: &str, value: &SpannedText) -> Result<(), Error> {
        let refuse = |what: String, why: &str| {
            Err(Error::new(value.span, format!("{what} of `{class}` is not supported: {why}")))
        };
        match &self.fate {
            ArgumentSupport::Implemented => Ok(()),
            ArgumentSupport::Moot(kind, _) => kind.check(value),
            ArgumentSupport::Refused(why) => refuse(self.name.to_owned(), why),
            ArgumentSupport::RefusedBut(values, _) if values.iter().any(|usual| is_same(usual, value)) => {
                Ok(())
            }
            ArgumentSupport::RefusedBut(_, why) => refuse(format!("{} {}", self.name, value.text), why),
        }
    }
}

/// Returns true if a value is the expected one: the same word, truth value or number.
fn is_same(usual: &str, value: &SpannedText) -> bool {
    let usual = SpannedText { text: usual.to_owned(), span: value.span };
    let equal = |a: Option<i64>, b: Option<i64>| a.is_some() && a == b;
    let truth = |text: &SpannedText| boolean(text).ok().map(i64::from);
    usual.text == value.text
        || matches!(usual.text.as_str(), "true" | "false") && equal(truth(&usual), truth(value))
        || equal(signed(&usual), signed(value))
}

/// A number that may be negative.
fn signed(text: &SpannedText) -> Option<i64> {
    let (sign, digits) = match text.text.strip_prefix('-') {
        Some(digits) => (-1, digits.to_owned()),
        None => (1, text.text.clone()),
    };
    let number = unsigned(&SpannedText { text: digits, span: text.span }, i64::MAX as u64).ok()?;
    Some(sign * number as i64)
}

impl IgnoredValueKind {
    fn check(self, value: &SpannedText) -> Result<(), Error> {
        match self {
            IgnoredValueKind::Any => Ok(()),
            IgnoredValueKind::Truth => boolean(value).map(drop),
            IgnoredValueKind::Time => seconds(value).map(drop),
            IgnoredValueKind::Number(least, _)
                if signed(value).is_some_and(|number| number < 0 && number >= least) =>
            {
                Ok(())
            }
            IgnoredValueKind::Number(least, most) => match unsigned(value, most) {
                Ok(number) if i64::try_from(number).is_ok_and(|number| number < least) => {
                    Err(Error::new(value.span, format!("`{}` is less than {least}", value.text)))
                }
                other => other.map(drop),
            },
        }
    }
}

impl std::fmt::Display for ArgumentSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.fate {
            ArgumentSupport::Implemented => f.write_str("implemented"),
            ArgumentSupport::Moot(_, why) => write!(f, "no difference: {why}"),
            ArgumentSupport::Refused(why) => write!(f, "refused: {why}"),
            ArgumentSupport::RefusedBut(values, why) => {
                let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
                write!(f, "refused but for {values}: {why}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(argument: &ArgumentSpec, value: &str) -> bool {
        argument.check_value("Class", &SpannedText { text: value.into(), ..SpannedText::default() }).is_ok()
    }

    #[test]
    fn values_without_effect_are_still_of_a_kind() {
        let burst = moot("BURST", IgnoredValueKind::Number(1, 8), "reason");
        assert!(judged(&burst, "8") && judged(&burst, "0x2"));
        assert!(["0", "-1", "9", "x", ""].iter().all(|value| !judged(&burst, value)));
        assert!(judged(&moot("N", NUMBER, "reason"), "-5") && !judged(&moot("N", COUNT, "reason"), "-5"));
        assert!(
            judged(&moot("T", IgnoredValueKind::Truth, "reason"), "yes")
                && !judged(&moot("T", IgnoredValueKind::Truth, "reason"), "2")
        );
        assert!(
            judged(&moot("T", IgnoredValueKind::Time, "reason"), "2ms")
                && !judged(&moot("T", IgnoredValueKind::Time, "reason"), "2x")
        );
    }

    #[test]
    fn usual_values_of_refused_arguments_are_taken_in_any_form() {
        let active = refused_but("ACTIVE", &["true"], "reason");
        assert!(["true", "1", "YES"].iter().all(|value| judged(&active, value)) && !judged(&active, "false"));
        let limit = refused_but("LIMIT", &["-1"], "reason");
        assert!(judged(&limit, "-1") && !judged(&limit, "1"));
        assert!(!judged(&refused("X", "reason"), ""));
    }
}
