//! Chains of programs as one optimized program: a dispatcher with its components in place.

use millstream_object::{ChainComponent, FuncId, FusedProgram, Object, fuse};
use millstream_passes::PassPipeline;

use crate::{OptError, OptimizeOptions, optimize};

/// Passes after which the frames of components have no fixed places, so that components can be inlined.
const INLINING: [&str; 5] = ["simplify-cfg", "split-stack", "mem2reg", "inline", "dead-functions"];

/// Makes one optimized program of a host's program and the components that replace functions of it (see
/// [`fuse`]). Components are inlined as far as the stack permits; one that makes tail calls stays a function.
///
/// The host's constants must have been settled ([`Object::settle`]) for the chain's length and masks to be folded.
/// Of the options, `passes`, `inline` and `keep_longer` are set here.
///
/// # Errors
/// [`OptError::Fuse`] for chains that cannot be one program, and other [`OptError`]s if a pass fails.
pub fn optimize_chain(
    host: &Object,
    program: FuncId,
    components: &[ChainComponent<'_>],
    options: &OptimizeOptions,
) -> Result<FusedProgram, OptError> {
    let FusedProgram { object, maps } = fuse(host, program, components)?;
    let usual = PassPipeline::default_o2();
    let usual = usual.passes().iter().map(|pass| pass.name());
    // Code that runs for some packets only may be folded away: the prediction for the unfolded chain, of which
    // most is never run, is no measure.
    let options = OptimizeOptions {
        passes: INLINING.into_iter().chain(usual).map(str::to_owned).collect(),
        inline: Some(true),
        keep_longer: true,
        ..options.clone()
    };
    Ok(FusedProgram { object: optimize(&object, &options)?.object, maps })
}
