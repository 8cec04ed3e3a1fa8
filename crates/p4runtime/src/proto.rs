//! Messages and service of P4Runtime 1.4, generated from the `.proto` files of this crate. Fields that 1.5
//! adds are part of them, so that what controllers ask for by them is refused, and not ignored.

/// Packages of P4Runtime.
pub mod p4 {
    /// Messages that describe a program.
    pub mod config {
        /// Version 1 of them.
        pub mod v1 {
            #![allow(missing_docs)]
            tonic::include_proto!("p4.config.v1");
        }
    }

    /// Version 1 of the service.
    pub mod v1 {
        #![allow(missing_docs)]
        tonic::include_proto!("p4.v1");
    }
}

/// Packages that P4Runtime uses.
pub mod google {
    /// Results of calls.
    pub mod rpc {
        #![allow(missing_docs)]
        tonic::include_proto!("google.rpc");
    }
}

pub use google::rpc;
pub use p4::{config, v1};
