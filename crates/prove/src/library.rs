//! Functions of the C library that compilers call on their own.
//!
//! A compiler that does not expand one of these calls it by name, with the meaning of the C standard: it
//! writes bytes, and neither reads nor changes anything else. That is known without any description of the
//! function, and no kernel function has such a name.

use millstream_isa::Reg;

use crate::ProofError;
use crate::exec::SymbolicExecutor;
use crate::sizes::MOST_BYTES;
use crate::state::SymbolicState;

/// Runs `memset`, `memcpy` or `memmove`; `false` if the function is none of them, or if the number of
/// bytes is large or not known.
pub(crate) fn c_function(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    name: &str,
) -> Result<bool, ProofError> {
    if !matches!(name, "memset" | "memcpy" | "memmove") {
        return Ok(false);
    }
    let [to, from, count] = [Reg::R1, Reg::R2, Reg::R3].map(|r| executor.get(state, r));
    let count =
        executor.w.values.numeric(&mut executor.w.terms, count).and_then(|t| executor.w.terms.value(t));
    let Some(count) = count.filter(|count| *count <= MOST_BYTES) else { return Ok(false) };
    let bytes = if name == "memset" {
        let byte = executor.w.values.numeric(&mut executor.w.terms, from);
        let byte = byte.ok_or_else(|| ProofError::new("memset puts what is not defined"))?;
        vec![executor.w.terms.extract(byte, 7, 0); count as usize]
    } else if count == 0 {
        Vec::new()
    } else {
        executor.read(state, from, count)?
    };
    if count > 0 {
        executor.write(state, to, &bytes, None)?;
    }
    executor.returned(state, to);
    Ok(true)
}
