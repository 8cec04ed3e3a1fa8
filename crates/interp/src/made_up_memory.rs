//! Memory of the kernel with made-up contents.

use millstream_isa::ByteOrder;

/// First address of the kernel's memory with made-up contents ([`crate::ExecutionEnv::made_up`]).
pub const KERNEL_MEMORY: u64 = 0xffff_8880_0000_0000;

/// Bytes of the kernel's memory that are made up at a time.
pub(crate) const PAGE: u64 = 4096;

/// A page of the kernel's memory: numbers, large and small, and addresses of more of it.
pub(crate) fn havoc_page(seed: u64, address: u64, order: ByteOrder) -> Vec<u8> {
    let words = (0..PAGE).step_by(8).map(|at| {
        let question = mixed(seed ^ (address + at));
        if question & 3 == 0 { pointer(question) } else { number(question) }
    });
    words.flat_map(|word| order.bytes_of_u64(word)).collect()
}

/// A number of the kind that programs compare with.
pub(crate) fn number(question: u64) -> u64 {
    let value = question >> 8;
    match question & 7 {
        0 | 1 => 0,
        2 | 3 => value & 0xf,
        4 => value & 0xffff,
        5 => (value & 0xf).wrapping_neg(),
        _ => value,
    }
}

/// An address of the kernel's memory.
pub(crate) fn pointer(question: u64) -> u64 {
    KERNEL_MEMORY | (question >> 24 & 0xfff_ffc0)
}

/// Well mixed bits of a number (the finalizer of splitmix64).
pub(crate) fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}
