//! Helpers on time, randomness, identity, text and timers.

use millstream_isa::helpers::id;

use super::{CallbackCaller, EFAULT, EINVAL, ERANGE, Result, UNDEFINED, cipher, errno, maps, packet};
use crate::env::SideEffect;
use crate::{MachineState, helpers};

/// The helpers of this file; `None` for any other.
pub(super) fn misc_helper(
    state: &mut MachineState,
    id: i32,
    args: [u64; 5],
    caller: &mut dyn CallbackCaller,
) -> Result<Option<u64>> {
    let [a, b, c, d, e] = args;
    Ok(Some(match id {
        4 | 112 | 113 => probe_read(state, a, b, c)?,
        5 | 125 | 160 | 208 => state.env.now(),
        6 | 177 => trace(state, a, b)?,
        7 => u64::from(state.env.random()),
        8 => u64::from(state.env.cpu),
        14 => state.env.pid_tgid,
        15 => state.env.uid_gid,
        16 => current_comm(state, a, b)?,
        25 => packet::perf_event_output(state, b, c, d, e)?,
        28 => packet::csum_diff(state, args)?,
        42 => 0,
        45 | 114 | 115 => probe_read_str(state, a, b, c)?,
        // A cookie is unique and constant: one socket, one namespace.
        46 | 122 => 1,
        // There are no sockets to find; what takes one is reached with none.
        84 | 85 | 95 | 96 | 98 | 99 => packet::no_socket()?,
        86 => 0,
        124 => packet::no_such_object()?,
        93 | 94 => UNDEFINED,
        105 => parse_number(state, a, b, c, d, true)?,
        106 => parse_number(state, a, b, c, d, false)?,
        // Jiffies at 250 Hz.
        118 => state.env.now() / 4_000_000,
        169 | 170 | 172 => 0,
        171 => timer_start(state, a, b)?,
        181 => maps::bpf_loop(state, a, b, c, d, caller)?,
        182 => strncmp(state, a, b, c)?,
        id::AES_128_CTR => cipher::aes_128_ctr(state, id, args)?,
        _ => return Ok(None),
    }))
}

/// Reads memory of the machine as kernel memory: what is not mapped reads as zeroes and an error.
fn probe_read(state: &mut MachineState, to: u64, len: u64, from: u64) -> Result {
    let len = u64::from(len as u32);
    let found = helpers::copy(state, from, len).ok();
    let result = if found.is_some() { 0 } else { EFAULT };
    helpers::fill(state, to, &found.unwrap_or_else(|| vec![0; len as usize]))?;
    errno(result)
}

/// The bytes of a string of at most `len` bytes with its NUL; `None` if it cannot be read.
fn string(state: &mut MachineState, from: u64, len: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for i in 0..len {
        let byte = *state.bytes(from.wrapping_add(i), 1, false).ok()?.first()?;
        out.push(byte);
        if byte == 0 {
            return Some(out);
        }
    }
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
    Some(out)
}

fn probe_read_str(state: &mut MachineState, to: u64, len: u64, from: u64) -> Result {
    let len = u64::from(len as u32);
    match string(state, from, len) {
        Some(text) => {
            helpers::fill(state, to, &text)?;
            Ok(text.len() as u64)
        }
        None => {
            helpers::fill(state, to, &vec![0; len as usize])?;
            errno(EFAULT)
        }
    }
}

fn trace(state: &mut MachineState, format: u64, len: u64) -> Result {
    let bytes = helpers::copy(state, format, u64::from(len as u32))?;
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    let len = text.len() as u64;
    state.env.events.push(SideEffect::Trace(text));
    Ok(len)
}

fn current_comm(state: &mut MachineState, to: u64, len: u64) -> Result {
    let mut comm = state.env.comm.to_vec();
    comm.resize(len as u32 as usize, 0);
    helpers::fill(state, to, &comm)?;
    Ok(0)
}

fn timer_start(state: &mut MachineState, timer: u64, nsecs: u64) -> Result {
    state.env.events.push(SideEffect::Timer { timer, nsecs });
    Ok(0)
}

/// `bpf_strncmp`.
fn strncmp(state: &mut MachineState, a: u64, len: u64, b: u64) -> Result {
    let len = u64::from(len as u32);
    let (Some(a), Some(b)) = (string(state, a, len), string(state, b, len + 1)) else { return errno(EFAULT) };
    for i in 0..len as usize {
        let (x, y) = (a.get(i).copied().unwrap_or(0), b.get(i).copied().unwrap_or(0));
        if x != y {
            return errno(if x < y { -1 } else { 1 });
        }
        if x == 0 {
            break;
        }
    }
    Ok(0)
}

/// `bpf_strtol` and `bpf_strtoul`: the number of characters consumed.
fn parse_number(state: &mut MachineState, text: u64, len: u64, flags: u64, out: u64, signed: bool) -> Result {
    let bytes = helpers::copy(state, text, len)?;
    let base = match flags {
        0 | 8 | 10 | 16 => flags as u32,
        _ => return errno(EINVAL),
    };
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let bytes = &bytes[..end];
    let mut at = bytes.iter().take_while(|b| b.is_ascii_whitespace()).count();
    let negative = bytes.get(at) == Some(&b'-');
    if negative && !signed {
        return errno(EINVAL);
    }
    at += usize::from(negative);
    let hex = bytes.get(at) == Some(&b'0') && matches!(bytes.get(at + 1), Some(b'x' | b'X'));
    let octal = !hex && bytes.get(at) == Some(&b'0');
    let base = match base {
        0 if hex => 16,
        0 if octal => 8,
        0 => 10,
        base => base,
    };
    at += if hex && base == 16 { 2 } else { 0 };
    let digits = bytes[at..].iter().take_while(|b| char::from(**b).is_digit(base)).count();
    let text = String::from_utf8_lossy(&bytes[at..at + digits]);
    let Ok(value) = u64::from_str_radix(&text, base) else {
        return errno(if digits == 0 { EINVAL } else { ERANGE });
    };
    let limit = if !signed { u64::MAX } else { i64::MAX as u64 + u64::from(negative) };
    if value > limit {
        return errno(ERANGE);
    }
    let value = if negative { value.wrapping_neg() } else { value };
    helpers::fill(state, out, &state.byte_order().bytes_of_u64(value))?;
    Ok((at + digits) as u64)
}
