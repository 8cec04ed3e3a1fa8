//! Variants of our data planes in the kernel: the same packets, verdicts and counters as the originals.

mod data_planes;
mod rig;
mod router;
mod shadow_table;
