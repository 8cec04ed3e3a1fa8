//! BTF and BTF.ext: reading, writing and CO-RE relocation.
