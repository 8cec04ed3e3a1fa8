//! Ciphers: helpers of this engine, which the kernel does not have.

use aes::Aes128;
use ctr::cipher::{KeyIvInit, StreamCipher};

use super::{Fault, MachineState, Result};
use crate::helpers;

/// Encrypts bytes in place by AES in counter mode (NIST SP 800-38A, 6.5); decrypting is the same.
pub fn encrypt_aes_128_ctr(key: &[u8; 16], counter: &[u8; 16], data: &mut [u8]) {
    // The counter wraps within its 128 bits, so the key stream never ends.
    ctr::Ctr128BE::<Aes128>::new(key.into(), counter.into()).apply_keystream(data);
}

/// Encrypts memory: address and length, key, counter.
pub(super) fn aes_128_ctr(
    state: &mut MachineState,
    id: i32,
    [data, len, key, counter, _]: [u64; 5],
) -> Result {
    let block = |bytes: Vec<u8>| {
        let why = "not a block of 16 bytes";
        <[u8; 16]>::try_from(bytes).map_err(|_| Fault::Argument { id, why })
    };
    let (key, counter) = (block(helpers::copy(state, key, 16)?)?, block(helpers::copy(state, counter, 16)?)?);
    let mut bytes = helpers::copy(state, data, len)?;
    encrypt_aes_128_ctr(&key, &counter, &mut bytes);
    helpers::fill(state, data, &bytes)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::encrypt_aes_128_ctr;

    /// SP 800-38A, F.5.1.
    #[test]
    fn the_vectors_of_the_standard_are_encrypted_as_it_says() {
        let bytes = |text: &str| -> Vec<u8> {
            let digits: Vec<u8> =
                text.bytes().map(|digit| (digit as char).to_digit(16).unwrap() as u8).collect();
            digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
        };
        let key: [u8; 16] = bytes("2b7e151628aed2a6abf7158809cf4f3c").try_into().unwrap();
        let counter: [u8; 16] = bytes("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff").try_into().unwrap();
        let plain = bytes("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51");
        let mut data = plain.clone();
        encrypt_aes_128_ctr(&key, &counter, &mut data);
        assert_eq!(data, bytes("874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"));
        encrypt_aes_128_ctr(&key, &counter, &mut data);
        assert_eq!(data, plain);
    }
}
