//! The possible CPUs, which fix the size of per-CPU values.

use std::sync::OnceLock;

use crate::error::{KernelError, Result};

const PATH: &str = "/sys/devices/system/cpu/possible";

/// Number of possible CPUs. A per-CPU map value read from user space is this many values of its size rounded
/// up to 8 bytes.
///
/// # Errors
/// If the kernel's list cannot be read or understood.
pub fn possible_cpus() -> Result<usize> {
    static COUNT: OnceLock<usize> = OnceLock::new();
    if let Some(&n) = COUNT.get() {
        return Ok(n);
    }
    let text = list()?;
    let n = count(&text).ok_or_else(|| unclear(&text))?;
    Ok(*COUNT.get_or_init(|| n))
}

/// One more than the highest number that a possible CPU has. Lists may have gaps.
///
/// # Errors
/// As for [`possible_cpus`].
pub fn cpu_numbers() -> Result<usize> {
    let text = list()?;
    let highest = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<usize>().ok());
    highest.map(|n| n + 1).ok_or_else(|| unclear(&text))
}

fn list() -> Result<String> {
    std::fs::read_to_string(PATH).map_err(|source| KernelError::Read { path: PATH.to_owned(), source })
}

fn unclear(text: &str) -> KernelError {
    KernelError::argument(format!("reading {PATH}"), format!("{text:?} is not a list of CPUs"))
}

/// The number of CPUs in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0usize, |sum, range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (low.parse::<u32>().ok()?, high.parse::<u32>().ok()?);
        sum.checked_add(high.checked_sub(low)? as usize + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::{count, cpu_numbers, possible_cpus};

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-3\n"), Some(4));
        assert_eq!(count("0-3,8-11"), Some(8));
        assert_eq!(count(""), None);
        assert_eq!(count("x"), None);
        assert!(cpu_numbers().unwrap() >= possible_cpus().unwrap());
    }
}
