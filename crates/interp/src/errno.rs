//! Results of helpers that fail: the kernel's error numbers, negated.

pub(crate) const ENOENT: i64 = -2;
pub(crate) const E2BIG: i64 = -7;
pub(crate) const EACCES: i64 = -13;
pub(crate) const EFAULT: i64 = -14;
pub(crate) const EEXIST: i64 = -17;
pub(crate) const EINVAL: i64 = -22;
pub(crate) const ENOSPC: i64 = -28;
pub(crate) const ERANGE: i64 = -34;
pub(crate) const EOPNOTSUPP: i64 = -95;
