//! Output against expectation.

use crate::case::{CheckDirective, TestCase, TestCommand};

/// Compares; the error shows what differs.
pub(crate) fn compare(case: &TestCase, output: &str) -> Result<(), String> {
    let stated = case.expect.is_some() || !case.checks.is_empty();
    if !stated && case.test == TestCommand::Verify && !output.is_empty() {
        return Err(format!("expected no errors, found:\n{output}"));
    }
    if !stated && matches!(case.test, TestCommand::Parse | TestCommand::Passes(_)) {
        return Err(format!("the file states no expectation; the output is:\n{output}"));
    }
    if let Some(expect) = &case.expect
        && trimmed(expect) != trimmed(output)
    {
        return Err(difference(expect, output));
    }
    checks(&case.checks, output)
}

fn trimmed(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}

fn checks(checks: &[CheckDirective], output: &str) -> Result<(), String> {
    let mut rest = output.lines();
    for check in checks {
        match check {
            CheckDirective::Has(text) if !rest.any(|line| line.contains(text.as_str())) => {
                return Err(format!("no line (after the check before) contains `{text}`:\n{output}"));
            }
            CheckDirective::Not(text) if output.lines().any(|line| line.contains(text.as_str())) => {
                return Err(format!("a line contains `{text}`:\n{output}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The lines between the common beginning and the common end, with the place.
fn difference(expect: &str, output: &str) -> String {
    let (a, b) = (trimmed(expect), trimmed(output));
    let start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let tail = a[start..].iter().rev().zip(b[start..].iter().rev()).take_while(|(x, y)| x == y).count();
    let show = |sign: char, lines: &[&str]| lines.iter().map(|l| format!("{sign} {l}\n")).collect::<String>();
    format!(
        "line {} of the output is not as expected (- expected, + found):\n{}{}",
        start + 1,
        show('-', &a[start..a.len() - tail]),
        show('+', &b[start..b.len() - tail])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_shows_only_what_differs() {
        let message = difference("a\nb\nc\nd\n", "a\nx\ny\nd\n");
        assert!(message.starts_with("line 2 "), "{message}");
        assert!(message.ends_with("- b\n- c\n+ x\n+ y\n"), "{message}");
    }

    #[test]
    fn checks_are_ordered() {
        let has = |t: &str| CheckDirective::Has(t.into());
        assert!(checks(&[has("a"), has("b")], "xa\nb\n").is_ok());
        assert!(checks(&[has("b"), has("a")], "xa\nb\n").is_err());
        assert!(checks(&[CheckDirective::Not("b".into())], "xa\nb\n").is_err());
    }
}
