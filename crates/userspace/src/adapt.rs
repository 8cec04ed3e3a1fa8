//! Adaptation of `click` and `native`. docs/adaptation.md.

use millstream_adapt::{AdaptMode, EngineAdaptation};
use millstream_console::adapt_args::{AdaptArgs, AdaptChoice};
use millstream_native::VariantSupport;

/// More code that an engine has to be able to get.
pub(crate) fn variant_support(args: AdaptArgs) -> VariantSupport {
    if args.choice().is_some() { VariantSupport::Installed } else { VariantSupport::None }
}

/// Adaptation of a run.
pub(crate) fn engine_adaptation(args: AdaptArgs) -> EngineAdaptation {
    let mode = args.choice().map(|choice| match choice {
        AdaptChoice::Install => AdaptMode::Install,
        AdaptChoice::Suggest => AdaptMode::Suggest,
    });
    EngineAdaptation::new(mode, args.curves())
}
