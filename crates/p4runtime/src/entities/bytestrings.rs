//! Numbers as strings of bytes, shortest form. Source: P4Runtime specification 1.4, section 8.4.

use std::cmp::Ordering;

use crate::entities::error::{EntityError, ErrorKind};

/// Shortens a number of type `bit<W>` to its canonical form: no zeros in front, but at least one byte.
///
/// # Errors
/// [`ErrorKind::OutOfRange`] if there are no bytes, or the number needs more than `width` bits.
pub fn canonical_bytes(bytes: &[u8], width: u32) -> Result<Vec<u8>, EntityError> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let significant = &bytes[zeros..];
    let bits = match significant {
        [] if bytes.is_empty() => return Err(out_of_range("a number needs at least one byte".into())),
        [] => return Ok(vec![0]),
        [first, rest @ ..] => rest.len() as u64 * 8 + u64::from(8 - first.leading_zeros()),
    };
    if bits > u64::from(width) {
        return Err(out_of_range(format!("the number has {bits} bits and its type {width}")));
    }
    Ok(significant.to_vec())
}

/// Shortens a number of type `int<W>` to its canonical form: no copies of the sign in front that a byte holds
/// alone.
///
/// # Errors
/// [`ErrorKind::OutOfRange`] if there are no bytes, or the number needs more than `width` bits.
pub fn canonical_signed_bytes(bytes: &[u8], width: u32) -> Result<Vec<u8>, EntityError> {
    let Some(first) = bytes.first() else {
        return Err(out_of_range("a number needs at least one byte".into()));
    };
    let sign = if first & 0x80 == 0 { 0x00 } else { 0xff };
    let is_copy = |pair: &&[u8]| pair[0] == sign && (pair[1] ^ sign) & 0x80 == 0;
    let copies = bytes.windows(2).take_while(is_copy).count();
    let significant = &bytes[copies..];
    let same = (significant[0] ^ sign).leading_zeros();
    let bits = significant.len() as u64 * 8 + 1 - u64::from(same);
    if bits > u64::from(width) {
        return Err(out_of_range(format!("the number has {bits} bits and its type {width}")));
    }
    Ok(significant.to_vec())
}

fn out_of_range(message: String) -> EntityError {
    EntityError::new(ErrorKind::OutOfRange, message)
}

/// Compares two numbers in canonical form.
pub(crate) fn compare_numbers(left: &[u8], right: &[u8]) -> Ordering {
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

/// Tells if the lowest bits of a number are zero.
pub(crate) fn has_low_zeros(bytes: &[u8], bits: u32) -> bool {
    let (whole, rest) = ((bits / 8) as usize, bits % 8);
    let mut from_low = bytes.iter().rev();
    let whole_are_zero = from_low.by_ref().take(whole).all(|byte| *byte == 0);
    let mask = (1u8 << rest) - 1;
    whole_are_zero && from_low.next().is_none_or(|byte| byte & mask == 0)
}

/// Tells if a number has only bits that a mask has.
pub(crate) fn is_within_mask(value: &[u8], mask: &[u8]) -> bool {
    let masks = mask.iter().rev().chain(std::iter::repeat(&0));
    value.iter().rev().zip(masks).all(|(byte, mask)| byte & !mask == 0)
}

/// Tells if a number in canonical form is the largest of its width.
pub(crate) fn is_all_ones(bytes: &[u8], width: u32) -> bool {
    let first = match width % 8 {
        0 => 0xff,
        bits => (1u8 << bits) - 1,
    };
    bytes.len() as u32 == width.div_ceil(8)
        && bytes.split_first().is_some_and(|(byte, rest)| *byte == first && rest.iter().all(|b| *b == 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_as_short_as_possible() {
        for (bytes, width, canonical) in [
            (&[0x63][..], 8, &[0x63][..]),
            (&[0x00, 0x63], 16, &[0x63]),
            (&[0x00, 0x00, 0x63], 12, &[0x63]),
            (&[0x30, 0x64], 16, &[0x30, 0x64]),
            (&[0x00, 0x00], 16, &[0x00]),
            (&[0x01], 1, &[0x01]),
            (&[0x0f, 0xff], 12, &[0x0f, 0xff]),
        ] {
            assert_eq!(canonical_bytes(bytes, width).unwrap(), canonical, "{bytes:x?} {width}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_out_of_range() {
        for (bytes, width) in [
            (&[0x01, 0x63][..], 8),
            (&[], 8),
            (&[0x01, 0x00, 0x63], 16),
            (&[0x10, 0x63], 12),
            (&[0x00, 0x40, 0x63], 12),
            (&[0x02], 1),
        ] {
            let error = canonical_bytes(bytes, width).unwrap_err();
            assert_eq!(error.kind, ErrorKind::OutOfRange, "{bytes:x?} {width}");
        }
    }

    #[test]
    fn signed_numbers_become_as_short_as_possible() {
        for (bytes, width, canonical) in [
            (&[0x63][..], 8, &[0x63][..]),
            (&[0x9d], 8, &[0x9d]),
            (&[0xff, 0x9d], 8, &[0x9d]),
            (&[0xfd, 0x1d], 12, &[0xfd, 0x1d]),
            (&[0x00, 0x00], 16, &[0x00]),
            (&[0xff, 0xff], 1, &[0xff]),
            (&[0x00, 0x80], 9, &[0x00, 0x80]),
        ] {
            assert_eq!(canonical_signed_bytes(bytes, width).unwrap(), canonical, "{bytes:x?} {width}");
        }
        for (bytes, width) in [(&[0x00, 0x9d][..], 8), (&[0x8d, 0x1d], 12), (&[], 16), (&[0x01], 1)] {
            assert!(canonical_signed_bytes(bytes, width).is_err(), "{bytes:x?} {width}");
        }
    }

    #[test]
    fn masks_and_prefixes_are_compared_from_the_low_end() {
        assert!(has_low_zeros(&[0x0a, 0x00, 0x00, 0x00], 24));
        assert!(!has_low_zeros(&[0x0a, 0x01, 0x00, 0x00], 24));
        assert!(has_low_zeros(&[0x00], 32));
        assert!(has_low_zeros(&[0x10], 4) && !has_low_zeros(&[0x10], 5));
        assert!(is_within_mask(&[0x10], &[0x0f, 0xf0]) && !is_within_mask(&[0x11], &[0xf0]));
        assert!(!is_within_mask(&[0x01, 0x00], &[0xff]));
        assert!(is_all_ones(&[0x0f, 0xff], 12) && !is_all_ones(&[0xff], 12) && is_all_ones(&[0xff], 8));
    }
}
