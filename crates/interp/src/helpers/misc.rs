//! Helpers on time, randomness, identity, text and timers.

use millstream_isa::helpers::id;

use super::{CallbackCaller, EFAULT, EINVAL, ERANGE, Result, UNDEFINED, errno};
use crate::MachineState;
use crate::env::SideEffect;

impl MachineState {
    /// The helpers of this file; `None` for any other.
    pub(super) fn misc_helper(
        &mut self,
        id: i32,
        args: [u64; 5],
        caller: &mut dyn CallbackCaller,
    ) -> Result<Option<u64>> {
        let [a, b, c, d, e] = args;
        Ok(Some(match id {
            4 | 112 | 113 => self.probe_read(a, b, c)?,
            5 | 125 | 160 | 208 => self.env.now(),
            6 | 177 => self.trace(a, b)?,
            7 => u64::from(self.env.random()),
            8 => u64::from(self.env.cpu),
            14 => self.env.pid_tgid,
            15 => self.env.uid_gid,
            16 => self.current_comm(a, b)?,
            25 => self.perf_event_output(b, c, d, e)?,
            28 => self.csum_diff(args)?,
            42 => 0,
            45 | 114 | 115 => self.probe_read_str(a, b, c)?,
            // A cookie is unique and constant: one socket, one namespace.
            46 | 122 => 1,
            // There are no sockets to find; what takes one is reached with none.
            84 | 85 | 95 | 96 | 98 | 99 => self.no_socket()?,
            86 => 0,
            124 => self.no_such_object()?,
            93 | 94 => UNDEFINED,
            105 => self.parse_number(a, b, c, d, true)?,
            106 => self.parse_number(a, b, c, d, false)?,
            // Jiffies at 250 Hz.
            118 => self.env.now() / 4_000_000,
            169 | 170 | 172 => 0,
            171 => self.timer_start(a, b)?,
            181 => self.bpf_loop(a, b, c, d, caller)?,
            182 => self.strncmp(a, b, c)?,
            id::AES_128_CTR => self.aes_128_ctr(id, args)?,
            _ => return Ok(None),
        }))
    }

    /// Reads memory of the machine as kernel memory: what is not mapped reads as zeroes and an error.
    fn probe_read(&mut self, to: u64, len: u64, from: u64) -> Result {
        let len = u64::from(len as u32);
        let found = self.copy(from, len).ok();
        let result = if found.is_some() { 0 } else { EFAULT };
        self.fill(to, &found.unwrap_or_else(|| vec![0; len as usize]))?;
        errno(result)
    }

    /// The bytes of a string of at most `len` bytes with its NUL; `None` if it cannot be read.
    fn string(&mut self, from: u64, len: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for i in 0..len {
            let byte = *self.bytes(from.wrapping_add(i), 1, false).ok()?.first()?;
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

    fn probe_read_str(&mut self, to: u64, len: u64, from: u64) -> Result {
        let len = u64::from(len as u32);
        match self.string(from, len) {
            Some(text) => {
                self.fill(to, &text)?;
                Ok(text.len() as u64)
            }
            None => {
                self.fill(to, &vec![0; len as usize])?;
                errno(EFAULT)
            }
        }
    }

    fn trace(&mut self, format: u64, len: u64) -> Result {
        let bytes = self.copy(format, u64::from(len as u32))?;
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).into_owned();
        let len = text.len() as u64;
        self.env.events.push(SideEffect::Trace(text));
        Ok(len)
    }

    fn current_comm(&mut self, to: u64, len: u64) -> Result {
        let mut comm = self.env.comm.to_vec();
        comm.resize(len as u32 as usize, 0);
        self.fill(to, &comm)?;
        Ok(0)
    }

    fn timer_start(&mut self, timer: u64, nsecs: u64) -> Result {
        self.env.events.push(SideEffect::Timer { timer, nsecs });
        Ok(0)
    }

    /// `bpf_strncmp`.
    fn strncmp(&mut self, a: u64, len: u64, b: u64) -> Result {
        let len = u64::from(len as u32);
        let (Some(a), Some(b)) = (self.string(a, len), self.string(b, len + 1)) else { return errno(EFAULT) };
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
    fn parse_number(&mut self, text: u64, len: u64, flags: u64, out: u64, signed: bool) -> Result {
        let bytes = self.copy(text, len)?;
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
        self.fill(out, &self.byte_order().bytes_of_u64(value))?;
        Ok((at + digits) as u64)
    }
}
