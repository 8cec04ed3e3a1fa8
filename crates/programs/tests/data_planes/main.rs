//! The data planes in the kernel.

mod balancer;
mod firewall;
mod layout;
mod nat;
mod rig;
mod router;
mod switch;
