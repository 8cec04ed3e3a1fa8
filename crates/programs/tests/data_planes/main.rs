//! The data planes in the kernel.

mod layout;
mod rig;
mod router;
