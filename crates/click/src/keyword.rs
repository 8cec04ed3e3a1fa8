//! Arguments of classes, and their treatment.
//!
//! Invariant: an argument has a [`Fate`]. One that is read without effect and one that is refused both give
//! the reason: no argument is accepted silently.

use crate::arguments::{boolean, unsigned};
use crate::config::Text;
use crate::elements::seconds;
use crate::error::Error;

/// An argument of a class.
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    /// True if it may be given without its name.
    pub(crate) positional: bool,
    pub(crate) fate: Fate,
}

/// Treatment of an argument.
pub(crate) enum Fate {
    /// It has the effect that Click documents.
    Implemented,
    /// Any value of this kind is accepted and changes no packet and no handler: the reason.
    Moot(Kind, &'static str),
    /// Configurations that give it are refused: the reason.
    Refused(&'static str),
    /// Configurations that give it another value than one of these, which have no effect, are refused: the reason.
    RefusedBut(&'static [&'static str], &'static str),
}

/// Values of an argument without effect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
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
pub(crate) const NUMBER: Kind = Kind::Number(i64::MIN, u64::MAX);
/// Any number that is not negative.
pub(crate) const COUNT: Kind = Kind::Number(0, u64::MAX);

/// An argument that is implemented, by name or position.
pub(crate) const fn at(name: &'static str) -> Argument {
    Argument { name, positional: true, fate: Fate::Implemented }
}

/// An argument that is implemented, by name only.
pub(crate) const fn key(name: &'static str) -> Argument {
    Argument { name, positional: false, fate: Fate::Implemented }
}

/// An argument that makes no difference, for this reason.
pub(crate) const fn moot(name: &'static str, kind: Kind, why: &'static str) -> Argument {
    Argument { name, positional: false, fate: Fate::Moot(kind, why) }
}

/// An argument that is refused, for this reason.
pub(crate) const fn refused(name: &'static str, why: &'static str) -> Argument {
    Argument { name, positional: false, fate: Fate::Refused(why) }
}

/// An argument that is refused, for this reason, unless its value is one of these.
pub(crate) const fn refused_but(
    name: &'static str,
    values: &'static [&'static str],
    why: &'static str,
) -> Argument {
    Argument { name, positional: false, fate: Fate::RefusedBut(values, why) }
}

impl Argument {
    /// The same, by position, too.
    pub(crate) const fn or_at(self) -> Argument {
        Argument { positional: true, ..self }
    }

    /// Returns true if elements read its value.
    pub(crate) fn is_implemented(&self) -> bool {
        matches!(self.fate, Fate::Implemented)
    }

    /// Judges a value of an argument that no element asks for.
    pub(crate) fn judge(&self, class: &str, value: &Text) -> Result<(), Error> {
        let refuse = |what: String, why: &str| {
            Err(Error::new(value.span, format!("{what} of `{class}` is not supported: {why}")))
        };
        match &self.fate {
            Fate::Implemented => Ok(()),
            Fate::Moot(kind, _) => kind.check(value),
            Fate::Refused(why) => refuse(self.name.to_owned(), why),
            Fate::RefusedBut(values, _) if values.iter().any(|usual| is_same(usual, value)) => Ok(()),
            Fate::RefusedBut(_, why) => refuse(format!("{} {}", self.name, value.text), why),
        }
    }
}

/// Returns true if a value is the expected one: the same word, truth value or number.
fn is_same(usual: &str, value: &Text) -> bool {
    let usual = Text { text: usual.to_owned(), span: value.span };
    let equal = |a: Option<i64>, b: Option<i64>| a.is_some() && a == b;
    let truth = |text: &Text| boolean(text).ok().map(i64::from);
    usual.text == value.text
        || matches!(usual.text.as_str(), "true" | "false") && equal(truth(&usual), truth(value))
        || equal(signed(&usual), signed(value))
}

/// A number that may be negative.
fn signed(text: &Text) -> Option<i64> {
    let (sign, digits) = match text.text.strip_prefix('-') {
        Some(digits) => (-1, digits.to_owned()),
        None => (1, text.text.clone()),
    };
    let number = unsigned(&Text { text: digits, span: text.span }, i64::MAX as u64).ok()?;
    Some(sign * number as i64)
}

impl Kind {
    fn check(self, value: &Text) -> Result<(), Error> {
        match self {
            Kind::Any => Ok(()),
            Kind::Truth => boolean(value).map(drop),
            Kind::Time => seconds(value).map(drop),
            Kind::Number(least, _) if signed(value).is_some_and(|number| number < 0 && number >= least) => {
                Ok(())
            }
            Kind::Number(least, most) => match unsigned(value, most) {
                Ok(number) if i64::try_from(number).is_ok_and(|number| number < least) => {
                    Err(Error::new(value.span, format!("`{}` is less than {least}", value.text)))
                }
                other => other.map(drop),
            },
        }
    }
}

impl std::fmt::Display for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.fate {
            Fate::Implemented => f.write_str("implemented"),
            Fate::Moot(_, why) => write!(f, "no difference: {why}"),
            Fate::Refused(why) => write!(f, "refused: {why}"),
            Fate::RefusedBut(values, why) => {
                let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
                write!(f, "refused but for {values}: {why}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(argument: &Argument, value: &str) -> bool {
        argument.judge("Class", &Text { text: value.into(), ..Text::default() }).is_ok()
    }

    #[test]
    fn values_without_effect_are_still_of_a_kind() {
        let burst = moot("BURST", Kind::Number(1, 8), "reason");
        assert!(judged(&burst, "8") && judged(&burst, "0x2"));
        assert!(["0", "-1", "9", "x", ""].iter().all(|value| !judged(&burst, value)));
        assert!(judged(&moot("N", NUMBER, "reason"), "-5") && !judged(&moot("N", COUNT, "reason"), "-5"));
        assert!(
            judged(&moot("T", Kind::Truth, "reason"), "yes")
                && !judged(&moot("T", Kind::Truth, "reason"), "2")
        );
        assert!(
            judged(&moot("T", Kind::Time, "reason"), "2ms")
                && !judged(&moot("T", Kind::Time, "reason"), "2x")
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
