//! Filling in `.kconfig`: the settings of the running kernel that an object asks for.
//!
//! The rules are libbpf's: a boolean is 1 for `y`; a tristate 1 for `y` and 2 for `m`; a character is the
//! letter itself; a string is its text without quotes, cut to fit; a number must fit its type. A setting that
//! the kernel does not have is an error, or zero if the extern is weak.

use millstream_btf::{Btf, Int, TypeId, TypeKind};
use millstream_object::{Extern, ExternKind, MapId, Object, ObjectMap};

use crate::error::Error;
use crate::kernel_types;

/// The contents of a `.kconfig` map.
pub(crate) fn contents(object: &Object, id: MapId, map: &ObjectMap) -> Result<Vec<u8>, Error> {
    let mut out = vec![0u8; map.spec.value_size as usize];
    for ext in &object.externs {
        let ExternKind::Kconfig { map, offset, size, type_id } = ext.kind else { continue };
        if map != id {
            continue;
        }
        let range = offset as usize..(offset as usize).saturating_add(size as usize);
        let slot = out.get_mut(range).ok_or_else(|| setting(ext, "its variable lies outside .kconfig"))?;
        let Some(value) = value_of(ext)? else { continue };
        let btf = object.btf.as_ref().ok_or_else(|| setting(ext, "the object has no BTF"))?;
        write(ext, btf, type_id, &value, slot)?;
    }
    Ok(out)
}

fn setting(ext: &Extern, reason: impl Into<String>) -> Error {
    Error::Setting { name: ext.name.clone(), reason: reason.into() }
}

/// The setting as text; `None` for a weak one that this kernel does not have.
fn value_of(ext: &Extern) -> Result<Option<String>, Error> {
    let found = match ext.name.as_str() {
        "LINUX_KERNEL_VERSION" => Some(kernel_types::version_code()?.to_string()),
        // Attach cookies are in every kernel since 5.15, which has all else that this project needs.
        "LINUX_HAS_BPF_COOKIE" => Some("y".to_owned()),
        "LINUX_HAS_SYSCALL_WRAPPER" => {
            let wrapped = kernel_types::symbol("__x64_sys_bpf")?.is_some();
            Some(if wrapped { "y" } else { "n" }.to_owned())
        }
        name => kernel_types::configuration()?.get(name).cloned(),
    };
    if found.is_none() && !ext.weak {
        return Err(setting(ext, "this kernel's configuration does not have it"));
    }
    Ok(found)
}

fn write(ext: &Extern, btf: &Btf, ty: TypeId, value: &str, out: &mut [u8]) -> Result<(), Error> {
    let wrong = |what: &str| setting(ext, format!("{value} is no value for {what}"));
    let resolved = btf.resolved(ty).map_err(|e| setting(ext, e.to_string()))?;
    let number = match (&resolved.kind, value) {
        (TypeKind::Array(_), text) => return string(text, out).ok_or_else(|| wrong("a string")),
        (TypeKind::Int(i), "y" | "n") if i.boolean => i64::from(value == "y"),
        (TypeKind::Int(i), "y" | "n" | "m") if i.character || i.size == 1 => i64::from(value.as_bytes()[0]),
        (TypeKind::Int(i), "y" | "n") => {
            return Err(wrong(&format!("an integer of {} bytes", i.size)));
        }
        (TypeKind::Int(i), text) => {
            let n = parse_number(text).ok_or_else(|| wrong("an integer"))?;
            if !fits(n, i) {
                return Err(wrong(&format!("an integer of {} bytes", i.size)));
            }
            n as i64
        }
        (TypeKind::Enum(_), "n") => 0,
        (TypeKind::Enum(_), "y") => 1,
        (TypeKind::Enum(_), "m") => 2,
        _ => return Err(wrong("its type")),
    };
    let bytes = number.to_le_bytes();
    let len = out.len();
    let bytes = bytes.get(..len).ok_or_else(|| wrong("a variable of more than 8 bytes"))?;
    out.copy_from_slice(bytes);
    Ok(())
}

fn string(text: &str, out: &mut [u8]) -> Option<()> {
    let text = text.strip_prefix('"')?.strip_suffix('"')?;
    let n = text.len().min(out.len().checked_sub(1)?);
    out[..n].copy_from_slice(&text.as_bytes()[..n]);
    Some(())
}

/// Decimal, hexadecimal or octal, with a sign.
fn parse_number(text: &str) -> Option<i128> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |t| (true, t));
    let n = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16).ok()?
    } else if let Some(octal) = digits.strip_prefix('0').filter(|o| !o.is_empty()) {
        u64::from_str_radix(octal, 8).ok()?
    } else {
        digits.parse().ok()?
    };
    Some(if negative { -i128::from(n) } else { i128::from(n) })
}

fn fits(n: i128, int: &Int) -> bool {
    let bits = int.size.saturating_mul(8).min(64);
    let (low, high) =
        if int.signed { (-(1i128 << (bits - 1)), 1i128 << (bits - 1)) } else { (0, 1i128 << bits) };
    (low..high).contains(&n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_three_bases_and_must_fit() {
        assert_eq!(parse_number("0x10"), Some(16));
        assert_eq!(parse_number("010"), Some(8));
        assert_eq!(parse_number("-5"), Some(-5));
        assert_eq!(parse_number("y"), None);
        let byte = Int { size: 1, signed: false, character: false, boolean: false, offset: 0, bits: 8 };
        assert!(fits(255, &byte) && !fits(256, &byte) && !fits(-1, &byte));
        assert!(fits(-128, &Int { signed: true, ..byte }));
    }

    #[test]
    fn strings_are_unquoted_and_cut() {
        let mut out = [9u8; 4];
        string("\"abcdef\"", &mut out).unwrap();
        assert_eq!(&out, b"abc\x09", "the caller's zero ends it");
        assert!(string("abc", &mut out).is_none());
    }
}
