//! Packets that the instrumented variant kept.

use millstream_kernel::{KernelError, KernelMap, possible_cpus};
use millstream_lab::os;
use millstream_specializer::transform::{PacketKind, SampleBuffer};

/// A packet as the program got it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketSample {
    /// Its bytes.
    pub packet: Vec<u8>,
    /// The context, as a test run takes it; empty if the kernel is to make it up.
    pub context: Vec<u8>,
}

/// Bytes of `struct __sk_buff` up to the last field that a test run takes.
const SKB: usize = 192;
/// Bytes of `struct xdp_md`.
const XDP: usize = 24;
/// Offset of `data_end` in it.
const XDP_DATA_END: usize = 4;

/// Empties the slots.
///
/// # Errors
/// Errors of the kernel.
pub fn clear(samples: &KernelMap) -> Result<(), KernelError> {
    let keys: Vec<u8> = (0..samples.info().max_entries).flat_map(u32::to_ne_bytes).collect();
    samples.update_batch(&keys, &vec![0; samples.value_len()? * samples.info().max_entries as usize])
}

/// Number of packets that were seen since the slots were emptied.
///
/// # Errors
/// Errors of the kernel.
pub fn seen(samples: &KernelMap) -> Result<u64, KernelError> {
    Ok(seen_by_cpu(samples)?.into_iter().sum())
}

fn seen_by_cpu(samples: &KernelMap) -> Result<Vec<u64>, KernelError> {
    let stride = samples.value_len()? / possible_cpus()?.max(1);
    let first = samples.lookup(&0u32.to_ne_bytes())?.unwrap_or_default();
    let count = |slot: &[u8]| {
        let bytes = slot.get(SampleBuffer::COUNT as usize..SampleBuffer::COUNT as usize + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    Ok(first.chunks_exact(stride).map(|slot| count(slot).unwrap_or(0)).collect())
}

/// The CPU with the fewest packets, of those that this thread may run on; the last of several.
///
/// # Errors
/// Errors of the kernel.
pub fn idlest(samples: &KernelMap) -> Result<Option<usize>, KernelError> {
    let seen = seen_by_cpu(samples)?;
    let busy = |cpu: &usize| seen.get(*cpu).copied().unwrap_or(0);
    Ok(os::allowed_cpus().into_iter().rev().min_by_key(busy))
}

/// The packets that were kept since the slots were emptied. No program may be writing them.
///
/// # Errors
/// Errors of the kernel.
pub fn read(samples: &KernelMap, kind: PacketKind) -> Result<Vec<PacketSample>, KernelError> {
    let stride = samples.value_len()? / possible_cpus()?.max(1);
    let entries = samples.entries()?;
    Ok(entries.iter().flat_map(|(_, all)| all.chunks_exact(stride)).filter_map(|s| sample(s, kind)).collect())
}

fn sample(slot: &[u8], kind: PacketKind) -> Option<PacketSample> {
    let word = |at: u32| slot.get(at as usize..at as usize + 4);
    let length = u32::from_ne_bytes(word(SampleBuffer::LENGTH)?.try_into().ok()?) as usize;
    let packet = slot.get(SampleBuffer::DATA as usize..)?.get(..length).filter(|p| !p.is_empty())?.to_vec();
    let mut context = vec![0; if kind == PacketKind::Xdp { XDP } else { SKB }];
    for (n, &field) in (0..).zip(kind.fields()) {
        context
            .get_mut(field as usize..field as usize + 4)?
            .copy_from_slice(word(SampleBuffer::FIELDS + 4 * n)?);
    }
    if kind == PacketKind::Xdp {
        context[XDP_DATA_END..XDP_DATA_END + 4].copy_from_slice(&(length as u32).to_ne_bytes());
    }
    Some(PacketSample { packet, context })
}

#[cfg(test)]
mod tests {
    use millstream_isa::MapType;
    use millstream_kernel::{MapSpec, UpdateMode, testing};

    use super::*;

    fn slot(length: u32, fields: &[u32], packet: &[u8]) -> Vec<u8> {
        let mut slot = vec![0; SampleBuffer::VALUE_SIZE as usize];
        slot[8..12].copy_from_slice(&length.to_ne_bytes());
        for (n, field) in fields.iter().enumerate() {
            slot[12 + 4 * n..][..4].copy_from_slice(&field.to_ne_bytes());
        }
        slot[48..48 + packet.len()].copy_from_slice(packet);
        slot
    }

    #[test]
    fn packets_come_with_what_their_context_said() {
        let found = sample(&slot(20, &[7, 3], &[9; 20]), PacketKind::Xdp).expect("a packet");
        assert_eq!(found.packet, [9; 20]);
        let words: Vec<u32> =
            found.context.chunks(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [0, 20, 0, 7, 3, 0]);
        let found = sample(&slot(14, &[1, 2, 3], &[8; 14]), PacketKind::Skb).expect("a packet");
        assert_eq!((found.context[8], found.context[32], found.context[48]), (1, 2, 3));
    }

    /// The judge keeps away from CPUs that handle packets, if possible.
    #[test]
    fn the_idlest_cpu_is_one_that_handles_fewest_packets() {
        if !testing::require() {
            return;
        }
        let spec = MapSpec {
            map_type: MapType::PERCPU_ARRAY,
            key_size: 4,
            value_size: SampleBuffer::VALUE_SIZE,
            max_entries: 1,
            ..MapSpec::default()
        };
        let (map, cpus) = (KernelMap::create(&spec).unwrap(), os::allowed_cpus());
        for idle in cpus {
            let slots = (0..possible_cpus().unwrap()).flat_map(|cpu| {
                let mut slot = vec![0; (SampleBuffer::VALUE_SIZE as usize).next_multiple_of(8)];
                slot[SampleBuffer::COUNT as usize] = if cpu == idle { 1 } else { 2 };
                slot
            });
            map.update(&[0; 4], &slots.collect::<Vec<u8>>(), UpdateMode::Any).unwrap();
            assert_eq!(idlest(&map).unwrap(), Some(idle));
        }
    }

    #[test]
    fn empty_slots_and_impossible_lengths_are_no_packets() {
        assert_eq!(sample(&slot(0, &[], &[]), PacketKind::Xdp), None);
        assert_eq!(sample(&slot(2001, &[], &[1; 100]), PacketKind::Xdp), None);
        assert_eq!(sample(&[0; 10], PacketKind::Xdp), None);
    }
}
