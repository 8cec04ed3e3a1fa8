//! Differences between the domains of the verifier's generations.

/// Rules by which a verifier computes with its facts about values. A rule that a verifier lacks gives it a
/// weaker fact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerifierRules {
    /// Bounds of a value and of its low half are deduced from each other, and a comparison adds to earlier
    /// facts (Linux 6.8). Without it, a comparison of one width forgets the bounds of the other.
    pub joint_bounds: bool,
    /// Bounds flow between two compared registers, and two ranges that do not meet decide a comparison (Linux
    /// 6.8).
    pub compared_registers: bool,
    /// `!=` with a constant at an end of a range moves that end (Linux 6.8).
    pub unequal_ends: bool,
    /// Or, exclusive or and products of two unknown operands (Linux 6.10).
    pub variable_bitwise: bool,
    /// Sums and differences both of whose ends wrap around (Linux 6.17).
    pub wrapped_sums: bool,
    /// Products of negative operands (Linux 6.14).
    pub signed_products: bool,
    /// Negation (Linux 6.18).
    pub negation: bool,
    /// Byte order operations (Linux 6.18).
    pub byte_order: bool,
}

impl VerifierRules {
    /// The rules of Linux 5.10 and 6.1.
    pub const LINUX_5_10: VerifierRules = VerifierRules {
        joint_bounds: false,
        compared_registers: false,
        unequal_ends: false,
        variable_bitwise: false,
        wrapped_sums: false,
        signed_products: false,
        negation: false,
        byte_order: false,
    };

    /// The rules of Linux 6.12.
    pub const LINUX_6_12: VerifierRules = VerifierRules {
        joint_bounds: true,
        compared_registers: true,
        unequal_ends: true,
        variable_bitwise: true,
        ..VerifierRules::LINUX_5_10
    };

    /// The rules of Linux 6.18 and later.
    pub const LINUX_6_18: VerifierRules = VerifierRules {
        wrapped_sums: true,
        signed_products: true,
        negation: true,
        byte_order: true,
        ..VerifierRules::LINUX_6_12
    };

    /// Returns true if another verifier has all rules of this one.
    pub fn is_within(self, other: VerifierRules) -> bool {
        let rules = |k: VerifierRules| {
            [
                k.joint_bounds,
                k.compared_registers,
                k.unequal_ends,
                k.variable_bitwise,
                k.wrapped_sums,
                k.signed_products,
                k.negation,
                k.byte_order,
            ]
        };
        rules(self).into_iter().zip(rules(other)).all(|(here, there)| here <= there)
    }
}

impl Default for VerifierRules {
    fn default() -> VerifierRules {
        VerifierRules::LINUX_6_18
    }
}
