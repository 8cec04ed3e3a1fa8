//! The data planes in the kernel.

mod layout;
mod nat;
mod rig;
mod router;
mod switch;
