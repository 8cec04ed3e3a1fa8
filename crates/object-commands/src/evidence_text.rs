//! Texts about proofs.

use millstream_opt::EquivalenceEvidence;

pub(crate) fn certainty(c: &EquivalenceEvidence) -> String {
    match c {
        EquivalenceEvidence::Unchanged => "unchanged".into(),
        EquivalenceEvidence::Whole => "equivalent, as a whole".into(),
        EquivalenceEvidence::Composed(why) => {
            format!("static form and each window proven; as a whole not known: {why}")
        }
        EquivalenceEvidence::Windows(why) => {
            format!("original with proven windows; no static form was proven: {why}")
        }
        EquivalenceEvidence::Original(why) => format!("original kept; no static form was proven: {why}"),
        EquivalenceEvidence::Refuted(why) => {
            format!("REFUTED, the static form is kept; this is a bug of ours: {why}")
        }
    }
}

pub(crate) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
