//! `millstream exec`: runs a raw program in the interpreter.
//!
//! The calling convention is that of the plugins of the public bpf_conformance runner: instructions in
//! hexadecimal on standard input, memory in hexadecimal as the first argument, `r0` in hexadecimal on
//! standard output.

use std::io::{self, Read};
use std::process::ExitCode;
use std::time::Duration;

use miette::{Context as _, IntoDiagnostic, Result, miette};
use millstream_bpf::raw::{lift_raw, lower_raw};
use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram};
use millstream_interp::{ContextKind, MachineState};
use millstream_isa::{ByteOrder, RawInsn, decode_all};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};
use millstream_prove::{ProofLimits, SymbolicProgram};

/// Reads instructions as hexadecimal bytes from standard input and prints r0 in hexadecimal.
#[derive(clap::Args, Debug)]
pub struct ExecArgs {
    /// Memory as hexadecimal bytes: r1 is its address, r2 its length
    memory: Option<String>,
    /// Stop with an error after this many instructions
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    fuel: u64,
    /// Lift the program to the IR and lower it back before running it
    #[arg(long)]
    roundtrip: bool,
    /// Also run the default passes in between; implies --roundtrip
    #[arg(long)]
    optimize: bool,
    /// Do not run it: evaluate what it computes as terms of the prover
    #[arg(long, conflicts_with = "count")]
    terms: bool,
    /// The program is for big-endian machines, and runs on memory of that order
    #[arg(long)]
    big_endian: bool,
    /// Print the number of executed instructions to standard error
    #[arg(long)]
    count: bool,
}

/// Runs the command.
pub fn run(args: &ExecArgs) -> Result<ExitCode> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .into_diagnostic()
        .wrap_err("cannot read the program from standard input")?;
    let code = bytes(&text).wrap_err("the program on standard input")?;
    let memory = bytes(args.memory.as_deref().unwrap_or_default()).wrap_err("the memory argument")?;
    let order = if args.big_endian { ByteOrder::Big } else { ByteOrder::Little };
    let slots = RawInsn::slice_from_bytes_in(&code, order)
        .ok_or_else(|| miette!(help = "an instruction is 8 bytes", "the program has {} bytes", code.len()))?;
    let slots =
        if args.roundtrip || args.optimize { roundtrip(&slots, order, args.optimize)? } else { slots };
    if args.terms {
        outln!("{:x}", evaluated(&slots, order, &memory)?);
        return Ok(ExitCode::SUCCESS);
    }
    let program = DecodedProgram::new(&slots).into_diagnostic().wrap_err("the program on standard input")?;

    let mut machine = MachineState::new(ContextKind::Raw).with_byte_order(order);
    machine.fuel = args.fuel;
    let length = memory.len() as u64;
    let address = if memory.is_empty() { 0 } else { machine.add_memory(memory) };
    let result = BytecodeInterpreter::new(&[program]).run(&mut machine, 0, [address, length, 0, 0, 0]);
    if args.count {
        errln!("{} instructions executed", machine.executed);
    }
    let r0 = result.into_diagnostic()?;
    outln!("{r0:x}");
    Ok(ExitCode::SUCCESS)
}

/// Value of the prover's term for `r0` on these bytes. If the program's behaviour on arbitrary bytes is not
/// decided within the limits, as in loops over them, the term is built for these bytes.
fn evaluated(slots: &[RawInsn], order: ByteOrder, memory: &[u8]) -> Result<u64> {
    let insns: Vec<_> = decode_all(slots).into_diagnostic()?.into_iter().map(|(_, insn)| insn).collect();
    let limits = ProofLimits { time: Duration::from_secs(5), instructions: 20_000, ..ProofLimits::default() };
    let open = SymbolicProgram::on_memory(&insns, order, memory.len(), None, &limits);
    let open = open.and_then(|e| e.run(&[memory]));
    let values = open.or_else(|_| {
        let limits = ProofLimits { time: Duration::from_secs(60), instructions: 10_000_000, ..limits };
        SymbolicProgram::on_memory(&insns, order, memory.len(), Some(memory), &limits)?.run(&[memory])
    });
    values.into_diagnostic()?.first().map(|v| v.result).ok_or_else(|| miette!("nothing came of it"))
}

/// The program after lifting and lowering, with or without the passes.
fn roundtrip(slots: &[RawInsn], order: ByteOrder, optimize: bool) -> Result<Vec<RawInsn>> {
    let mut module = lift_raw(slots, None).into_diagnostic()?;
    if optimize {
        let mut session = PassSession::new(TargetInfo { byte_order: order, ..TargetInfo::bpf(4) });
        PassPipeline::default_o2().run(&mut module, &mut session).into_diagnostic()?;
    }
    lower_raw(&module).into_diagnostic()
}

/// Parses hexadecimal digits, with white space anywhere between bytes.
fn bytes(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(miette!("an odd number of hexadecimal digits"));
    }
    let digit = |d: u8| {
        char::from(d).to_digit(16).ok_or_else(|| miette!("`{}` is no hexadecimal digit", char::from(d)))
    };
    pairs.iter().map(|[high, low]| Ok((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn hexadecimal_with_spaces_or_without() {
        assert_eq!(bytes("b7 00 0a\nFF").unwrap(), [0xb7, 0, 10, 0xff]);
        assert_eq!(bytes("b7000aff").unwrap(), [0xb7, 0, 10, 0xff]);
        assert_eq!(bytes("abc").unwrap_err().to_string(), "an odd number of hexadecimal digits");
        assert_eq!(bytes("0x").unwrap_err().to_string(), "`x` is no hexadecimal digit");
    }
}
