//! Variants of our data planes in the kernel: the same packets, verdicts and counters as the originals.

mod others;
mod rig;
mod router;
mod twin;
