//! Errors of parsers.

use millstream_ir::Value;
use millstream_p4::SourceSpan;

use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::pipeline::MarkKind;
use crate::values::Scalar;

/// Stops the parser with an error unless a condition holds.
pub(crate) fn require(l: &mut Lowerer<'_>, truth: Value, error: &str, span: SourceSpan) -> Lowered<()> {
    let failed = l.emitter.split(truth);
    let good = l.emitter.block;
    l.emitter.enter(failed);
    fail_parser(l, error, span)?;
    l.emitter.enter(good);
    Ok(())
}

/// Ends the block: the parser stops with an error.
pub(crate) fn fail_parser(l: &mut Lowerer<'_>, error: &str, span: SourceSpan) -> Lowered<()> {
    l.mark(MarkKind::ParserError(error.to_owned()), span);
    let code = l.source.errors.get(error).copied().unwrap_or_default();
    let code = l.emitter.constant(code);
    stop_parser(l, code, span)
}

/// Ends the block: the parser stops with an error that is a value.
pub(crate) fn stop_parser(l: &mut Lowerer<'_>, code: Value, span: SourceSpan) -> Lowered<()> {
    let packet = l.packet(span)?;
    let Some(parser) = &l.stage.parser else {
        return refuse(span, "this is only supported in a parser");
    };
    let reject = parser.reject;
    let value = Scalar { words: vec![code], value_type: packet.error.value_type.clone() };
    l.emitter.store_scalar(&packet.error, &value);
    l.emitter.jump(reject);
    Ok(())
}
