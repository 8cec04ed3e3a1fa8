// Encryption, as externs of this compiler: not part of any architecture.

#ifndef MILLSTREAM_CRYPTO_P4
#define MILLSTREAM_CRYPTO_P4

#include <core.p4>

/// Encrypts the payload, which is what the parser left behind the headers, by AES with a key of 128 bits in counter
/// mode (NIST SP 800-38A, 6.5): the first block is encrypted with this counter, the next one with the next counter.
/// Decrypting is the same. For ingress and egress of v1model.
extern void aes_128_ctr(in bit<128> key, in bit<128> counter);

#endif
