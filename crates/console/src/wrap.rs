//! Wraps text to the available columns.

/// Columns of a screen of unknown width.
const COLUMNS: usize = 80;
/// Minimum number of columns.
const FEWEST: usize = 20;

/// Returns the columns of standard output: those of its terminal, or of the variable `COLUMNS`, or 80.
pub fn columns() -> usize {
    let of_terminal = || {
        let size = crate::output::is_terminal().then(ratatui::crossterm::terminal::size)?;
        size.ok().map(|(columns, _)| usize::from(columns))
    };
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal().or_else(of_variable).unwrap_or(COLUMNS).clamp(FEWEST, u16::MAX.into())
}

/// Divides a text into lines of at most so many columns, at spaces where possible; all but the first are
/// indented like the first, and by `more` more.
pub fn wrap(text: &str, columns: usize, more: usize) -> Vec<String> {
    let columns = columns.max(1);
    let first = text.chars().take_while(|c| *c == ' ').count();
    let indent = (first + more).min(columns / 2);
    let (mut lines, mut line, mut length) =
        (Vec::new(), " ".repeat(first.min(columns - 1)), first.min(columns - 1));
    let mut begin = length;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut rest: Vec<char> = word.chars().collect();
        if length > begin && length + 1 + rest.len() > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            (length, begin) = (indent, indent);
        }
        if length > begin {
            line.push(' ');
            length += 1;
        }
        // A word that is longer than a line is divided anywhere.
        while length + rest.len() > columns {
            let more = rest.split_off(columns - length);
            line.extend(rest);
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            (length, begin, rest) = (indent, indent, more);
        }
        length += rest.len();
        line.extend(rest);
    }
    lines.push(line);
    lines
}

/// Cuts a text that is longer than so many columns, and marks the cut.
pub fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    if columns == 0 { kept } else { kept + "~" }
}

#[cfg(test)]
mod tests {
    use super::{cut, wrap};

    #[test]
    fn lines_are_divided_at_spaces() {
        assert_eq!(wrap("  one two three", 9, 2), ["  one two", "    three"]);
        assert_eq!(wrap("one", 9, 2), ["one"]);
        assert_eq!(wrap("", 9, 2), [""]);
        assert_eq!(wrap("a bcdefghijk l", 5, 1), ["a", " bcde", " fghi", " jk l"]);
        for columns in 1..30 {
            let lines = wrap("    words of several lengths, some of themlongerthanothers", columns, 3);
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{columns}: {lines:?}");
            let text: String = lines.concat().split(' ').collect();
            assert_eq!(text, "wordsofseverallengths,someofthemlongerthanothers", "{columns}");
        }
    }

    #[test]
    fn what_is_cut_shows_it() {
        assert_eq!(
            (cut("abc", 3), cut("abcd", 3), cut("abc", 0)),
            ("abc".into(), "ab~".into(), String::new())
        );
    }
}
