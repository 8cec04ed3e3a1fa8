//! A laboratory without a NIC: namespaces, live-frame traffic, measurement.
