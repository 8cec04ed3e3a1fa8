//! Configurations of meters. Source: P4Runtime specification 1.4, section 9.4.

use crate::entities::error::EntityError;
use crate::proto::config::v1::meter_spec;
use crate::proto::v1::MeterConfig;

/// Checks that a meter's configuration fits its type.
pub(crate) fn check_meter(kind: meter_spec::Type, config: Option<&MeterConfig>) -> Result<(), EntityError> {
    let Some(config) = config else { return Ok(()) };
    let MeterConfig { cir, cburst, pir, pburst, eburst } = *config;
    if [cir, cburst, pir, pburst, eburst].iter().any(|value| *value < 0) {
        return Err(EntityError::invalid("rates and bursts of a meter cannot be negative"));
    }
    let has_one_rate = pir == cir && pburst == cburst;
    let is_right = match kind {
        meter_spec::Type::TwoRateThreeColor => eburst == 0,
        meter_spec::Type::SingleRateThreeColor => has_one_rate,
        meter_spec::Type::SingleRateTwoColor => has_one_rate && eburst == 0,
    };
    match is_right {
        true => Ok(()),
        false => Err(EntityError::invalid("the rates and bursts are not those of this type of meter")),
    }
}

/// Error about counters by color.
pub(crate) fn no_color_counters() -> EntityError {
    EntityError::unimplemented("meters do not count packets by color")
}
