//! Loads objects into the kernel: maps, relocations, CO-RE, programs.
