//! Processors of workers.

use millstream_lab::os;

/// Binds a worker to a processor of its own, as long as there are enough.
pub fn bind(worker: u32) -> std::io::Result<()> {
    let cpus = os::allowed_cpus();
    match cpus.get(worker as usize % cpus.len().max(1)) {
        Some(cpu) => os::pin_to_cpu(*cpu),
        None => Ok(()),
    }
}
