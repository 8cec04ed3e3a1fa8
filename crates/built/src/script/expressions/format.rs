//! The script function `sprintf`: conversions of printf(3) for numbers and texts.

use millstream_click::unquoted;

use super::ScriptNumber;

/// Largest width and precision.
const WIDEST: usize = 1 << 12;

/// One conversion of a format.
#[derive(Default)]
struct FormatConversion {
    left: bool,
    zero: bool,
    plus: bool,
    blank: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    /// Bits of the number: 16 behind `h`, else 64.
    bits: u32,
}

/// Formats the words behind the first one, which is the format.
pub(super) fn sprintf(words: &[String]) -> Result<String, String> {
    let wrong = || "sprintf: the arguments do not fit the format".to_owned();
    let (format, arguments) = words.split_first().ok_or_else(wrong)?;
    let format = unquoted(format);
    let mut arguments = arguments.iter();
    let mut next = || arguments.next().map(|word| unquoted(word)).ok_or_else(wrong);
    let (mut out, mut rest) = (String::new(), format.as_str());
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        let (conversion, kind, behind) = conversion(behind, &mut next)?;
        rest = behind;
        match kind {
            '%' => out.push('%'),
            's' => out.push_str(&conversion.text(&next()?)),
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => match ScriptNumber::parse(&next()?) {
                Some(ScriptNumber::Whole(number)) => out.push_str(&conversion.number(number, kind)),
                _ => return Err(wrong()),
            },
            _ => return Err(wrong()),
        }
    }
    out.push_str(rest);
    match next() {
        Ok(_) => Err(wrong()),
        Err(_) => Ok(out),
    }
}

/// Reads a conversion behind its percent sign: returns it, its letter, and the text behind it.
fn conversion<'f>(
    text: &'f str,
    next: &mut impl FnMut() -> Result<String, String>,
) -> Result<(FormatConversion, char, &'f str), String> {
    let mut found = FormatConversion { bits: 64, ..FormatConversion::default() };
    let mut rest = text;
    while let Some(flag) = rest.chars().next().filter(|flag| "-0+ #".contains(*flag)) {
        match flag {
            '-' => found.left = true,
            '0' => found.zero = true,
            '+' => found.plus = true,
            ' ' => found.blank = true,
            _ => found.alternate = true,
        }
        rest = &rest[1..];
    }
    (found.width, rest) = length(rest, next)?;
    if let Some(behind) = rest.strip_prefix('.') {
        let (precision, behind) = length(behind, next)?;
        (found.precision, rest) = (Some(precision), behind);
    }
    while let Some(size) = rest.chars().next().filter(|size| "hlLq".contains(*size)) {
        found.bits = if size == 'h' { 16 } else { 64 };
        rest = &rest[1..];
    }
    let kind = rest.chars().next().ok_or_else(|| "sprintf: the format ends in a conversion".to_owned())?;
    Ok((found, kind, &rest[kind.len_utf8()..]))
}

/// A width or precision at the start of a text, which is an argument if it is `*`; and the text behind it.
fn length<'f>(
    text: &'f str,
    next: &mut impl FnMut() -> Result<String, String>,
) -> Result<(usize, &'f str), String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = match text.strip_prefix('*') {
        Some(rest) => (next()?, rest),
        None if digits == 0 => return Ok((0, text)),
        None => (text[..digits].to_owned(), &text[digits..]),
    };
    let number = number.parse().ok().filter(|number| *number <= WIDEST);
    Ok((number.ok_or_else(|| format!("sprintf: a width above {WIDEST}"))?, rest))
}

impl FormatConversion {
    /// A text, cut off at the precision and padded to the width.
    fn text(&self, text: &str) -> String {
        let cut: String = text.chars().take(self.precision.unwrap_or(usize::MAX)).collect();
        self.padded("", &cut, false)
    }

    /// A whole number.
    fn number(&self, number: i128, kind: char) -> String {
        let is_signed = matches!(kind, 'd' | 'i');
        let number = match (is_signed, self.bits) {
            (true, 16) => i128::from(number as i16),
            (true, _) => i128::from(number as i64),
            (false, 16) => i128::from(number as u16),
            (false, _) => i128::from(number as u64),
        };
        let digits = match kind {
            'x' => format!("{number:x}"),
            'X' => format!("{number:X}"),
            'o' => format!("{number:o}"),
            _ => number.unsigned_abs().to_string(),
        };
        let least = self.precision.unwrap_or(1);
        let digits = format!("{}{digits}", "0".repeat(least.saturating_sub(digits.len())));
        let sign = match (kind, number < 0) {
            ('d' | 'i', true) => "-",
            ('d' | 'i', false) if self.plus => "+",
            ('d' | 'i', false) if self.blank => " ",
            ('x', _) if self.alternate && number != 0 => "0x",
            ('X', _) if self.alternate && number != 0 => "0X",
            ('o', _) if self.alternate && !digits.starts_with('0') => "0",
            _ => "",
        };
        self.padded(sign, &digits, self.zero && !self.left && self.precision.is_none())
    }

    /// Pads to the width: with zeros behind the sign, or with blanks on either side.
    fn padded(&self, sign: &str, text: &str, zeros: bool) -> String {
        let missing = self.width.saturating_sub(sign.len() + text.chars().count());
        match (zeros, self.left) {
            (true, _) => format!("{sign}{}{text}", "0".repeat(missing)),
            (false, true) => format!("{sign}{text}{}", " ".repeat(missing)),
            (false, false) => format!("{}{sign}{text}", " ".repeat(missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::split;
    use super::sprintf;

    #[test]
    fn conversions_are_those_of_printf() {
        for (words, expected) in [
            ("\"%05x\" 127", "0007f"),
            ("%d/%u -1 -1", "-1/18446744073709551615"),
            ("'%-5d|%+d|%5s' 3 4 ab", "3    |+4|   ab"),
            ("%.3d,%.2s,%#x 7 abc 255", "007,ab,0xff"),
            ("%*d%% 4 2", "   2%"),
            ("%hd 65535", "-1"),
        ] {
            assert_eq!(sprintf(&split(words)).as_deref(), Ok(expected), "{words}");
        }
        for wrong in ["", "%d", "%d a", "x 1", "%9999d 1", "%", "%y 1"] {
            assert!(sprintf(&split(wrong)).is_err(), "{wrong}");
        }
    }
}
