//! Test runs (`BPF_PROG_TEST_RUN`) and live frames.
//!
//! A run with `repeat > 1` of an XDP program that is attached nowhere costs two updates of the XDP
//! dispatcher, about 16 ms, before and after; the packet is not restored between repeats. Live frames are
//! real: they leave by redirect and transmit, and are recycled without being rewritten.

use crate::error::{KernelError, Result};
use crate::program::KernelProgram;
use crate::sys::{self, PlainData, TestRunAttr, addr, addr_mut, uapi};

/// Input of a test run.
#[derive(Clone, Copy, Debug)]
pub struct TestRun<'a> {
    /// The packet; empty for programs without one.
    pub data: &'a [u8],
    /// The context structure of the type (`xdp_md`, `__sk_buff`, raw tracepoint arguments), or empty.
    pub context: &'a [u8],
    /// Number of repetitions; 0 counts as 1.
    pub repeat: u32,
    /// The CPU to run on, for the types that allow the choice.
    pub cpu: Option<u32>,
    /// Room for the packet that comes out; less than needed gives `ENOSPC`. Unused for live frames.
    pub data_room: usize,
    /// Send real frames through the stack; `data` is the frame that each copy starts as. XDP only.
    pub live_frames: bool,
    /// Frames a batch with live frames, up to 256; 0 leaves the kernel's 64.
    pub batch: u32,
}

impl Default for TestRun<'_> {
    fn default() -> Self {
        TestRun { data: &[], context: &[], repeat: 1, cpu: None, data_room: 0, live_frames: false, batch: 0 }
    }
}

impl<'a> TestRun<'a> {
    /// One run on a packet, with room for it to grow by 256 bytes.
    pub fn packet(data: &'a [u8]) -> Self {
        TestRun { data, data_room: data.len() + 256, ..Self::default() }
    }
}

/// Result of a test run. Buffers are kept from run to run by [`KernelProgram::test_run_into`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestOutput {
    /// The program's return value, of the last repeat.
    pub retval: u32,
    /// Mean nanoseconds per run as the kernel measured them, rounded down.
    pub duration_ns: u32,
    /// The packet afterwards.
    pub data: Vec<u8>,
    /// The context afterwards, as long as the one that was passed.
    pub context: Vec<u8>,
}

impl KernelProgram {
    /// Runs the program once or often.
    ///
    /// # Errors
    /// `ENOTSUPP` for types that cannot be test-run, `EINVAL` for packets shorter than an Ethernet header,
    /// `EINTR` if a signal cut a long run.
    pub fn test_run(&self, run: &TestRun<'_>) -> Result<TestOutput> {
        let mut out = TestOutput::default();
        self.test_run_into(run, &mut out)?;
        Ok(out)
    }

    /// Like [`KernelProgram::test_run`], reusing the buffers of `out`.
    ///
    /// # Errors
    /// As for [`KernelProgram::test_run`].
    pub fn test_run_into(&self, run: &TestRun<'_>, out: &mut TestOutput) -> Result<()> {
        let mut attr = TestRunAttr::zeroed();
        attr.prog_fd = self.raw();
        attr.data_in = addr(run.data);
        attr.data_size_in = self.size("packet", run.data.len())?;
        attr.ctx_in = addr(run.context);
        attr.ctx_size_in = self.size("context", run.context.len())?;
        attr.repeat = run.repeat;
        if let Some(cpu) = run.cpu {
            attr.flags |= uapi::BPF_F_TEST_RUN_ON_CPU;
            attr.cpu = cpu;
        }
        if run.live_frames {
            attr.flags |= uapi::BPF_F_TEST_XDP_LIVE_FRAMES;
            attr.batch_size = run.batch;
            out.data.clear();
            out.context.clear();
        } else {
            out.data.resize(run.data_room, 0);
            attr.data_out = addr_mut(&mut out.data);
            attr.data_size_out = self.size("packet", run.data_room)?;
            out.context.resize(run.context.len(), 0);
            attr.ctx_out = addr_mut(&mut out.context);
            attr.ctx_size_out = attr.ctx_size_in;
        }
        sys::call(sys::PROG_TEST_RUN, &mut attr, || self.doing("test-running"))?;
        out.retval = attr.retval;
        out.duration_ns = attr.duration;
        out.data.truncate(attr.data_size_out as usize);
        out.context.truncate(attr.ctx_size_out as usize);
        Ok(())
    }

    fn size(&self, what: &str, len: usize) -> Result<u32> {
        u32::try_from(len)
            .map_err(|_| KernelError::argument(self.doing("test-running"), format!("{what} of {len} bytes")))
    }
}
