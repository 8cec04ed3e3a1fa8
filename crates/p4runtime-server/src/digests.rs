//! Digests on their way to controllers. Source: P4Runtime specification 1.4, section 9.6.

use std::collections::BTreeMap;

use millstream_p4runtime::entities::EntityStore;
use millstream_p4runtime::proto::config::v1::{
    P4BitstringLikeTypeSpec, P4DataTypeSpec, P4Info, P4TypeInfo, p4_bitstring_like_type_spec,
    p4_data_type_spec, p4_new_type_spec, p4_new_type_translation,
};
use millstream_p4runtime::proto::v1::{DigestList, P4Data, P4StructLike, p4_data};
use num_bigint::BigUint;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::live_reads::number_bytes;

/// Digests of one kind that wait, at most.
const MOST_WAITING: usize = 1 << 16;
/// Digests of one kind whose receipt is awaited, at most.
const MOST_UNCONFIRMED: usize = 1 << 18;
/// Types within types, at most.
const DEEPEST_TYPE: usize = 64;

/// Digests of one kind.
#[derive(Default, Debug)]
struct DigestQueue {
    waiting: Vec<Vec<u8>>,
    /// Time of the oldest that waits.
    oldest: u64,
    /// The same, and what was sent without a receipt.
    known: FxHashSet<Vec<u8>>,
    /// Lists without a receipt, with the time at which they were sent.
    unconfirmed: BTreeMap<u64, (u64, Vec<Vec<u8>>)>,
    last_list: u64,
}

/// Digests of all kinds.
#[derive(Default, Debug)]
pub(crate) struct DigestQueues {
    queues: FxHashMap<u32, DigestQueue>,
    /// Digests for which there was no room.
    pub(crate) lost: u64,
}

impl DigestQueues {
    /// Adds a digest that the program sent. One that waits, or whose receipt is awaited, is not added again.
    pub(crate) fn add(&mut self, id: u32, data: Vec<u8>, now: u64) {
        let queue = self.queues.entry(id).or_default();
        if queue.known.contains(&data) {
            return;
        }
        if queue.waiting.len() >= MOST_WAITING || queue.known.len() >= MOST_UNCONFIRMED {
            self.lost += 1;
            return;
        }
        if queue.waiting.is_empty() {
            queue.oldest = now;
        }
        queue.known.insert(data.clone());
        queue.waiting.push(data);
    }

    /// Takes the lists that are due: full ones, and those whose oldest digest has waited long enough.
    pub(crate) fn take_due(&mut self, store: &EntityStore, info: &P4Info, now: u64) -> Vec<DigestList> {
        let mut lists = Vec::new();
        for (id, queue) in &mut self.queues {
            let Some(config) = store.digest(*id) else {
                *queue = DigestQueue { last_list: queue.last_list, ..DigestQueue::default() };
                continue;
            };
            queue.expire(now, config.ack_timeout_ns.unsigned_abs());
            let most = match config.max_list_size {
                1.. => config.max_list_size.unsigned_abs() as usize,
                _ => usize::MAX,
            };
            let timeout = config.max_timeout_ns.unsigned_abs();
            while queue.waiting.len() >= most
                || !queue.waiting.is_empty() && now.saturating_sub(queue.oldest) >= timeout
            {
                let rest = queue.waiting.split_off(most.min(queue.waiting.len()));
                let sent = std::mem::replace(&mut queue.waiting, rest);
                queue.oldest = now;
                queue.last_list += 1;
                let data = sent.iter().map(|bytes| digest_data(info, *id, bytes)).collect();
                lists.push(DigestList { digest_id: *id, list_id: queue.last_list, data, timestamp: 0 });
                queue.await_receipt(sent, now, config.ack_timeout_ns);
            }
        }
        lists
    }

    /// Notes the receipt of a list; false if none of this number is awaited.
    pub(crate) fn confirm(&mut self, id: u32, list: u64) -> bool {
        let Some(queue) = self.queues.get_mut(&id) else { return false };
        match queue.unconfirmed.remove(&list) {
            Some((_, data)) => {
                data.iter().for_each(|bytes| _ = queue.known.remove(bytes));
                true
            }
            // A receipt may come after its time.
            None => (1..=queue.last_list).contains(&list),
        }
    }
}

impl DigestQueue {
    fn await_receipt(&mut self, sent: Vec<Vec<u8>>, now: u64, timeout: i64) {
        if timeout > 0 {
            self.unconfirmed.insert(self.last_list, (now, sent));
            return;
        }
        sent.iter().for_each(|bytes| _ = self.known.remove(bytes));
    }

    /// Gives up on receipts that are late: the same data may be sent again.
    fn expire(&mut self, now: u64, timeout: u64) {
        while let Some(first) = self.unconfirmed.first_entry() {
            if now.saturating_sub(first.get().0) < timeout {
                break;
            }
            let (_, data) = first.remove();
            data.iter().for_each(|bytes| _ = self.known.remove(bytes));
        }
    }
}

/// Reads the packed fields of a digest by its type. Bits that do not fill a byte have zeros in front.
fn digest_data(info: &P4Info, id: u32, bytes: &[u8]) -> P4Data {
    let types = info.type_info.clone().unwrap_or_default();
    let is_own = |digest: &&millstream_p4runtime::proto::config::v1::Digest| {
        digest.preamble.as_ref().is_some_and(|preamble| preamble.id == id)
    };
    let spec = info.digests.iter().find(is_own).and_then(|digest| digest.type_spec.as_ref());
    let data = spec.and_then(|spec| {
        let mut measured = DigestReader { types: &types, bytes, at: 0 };
        measured.value(spec, DEEPEST_TYPE)?;
        let padding = (bytes.len() as u64 * 8).saturating_sub(measured.at);
        DigestReader { types: &types, bytes, at: padding }.value(spec, DEEPEST_TYPE)
    });
    data.unwrap_or_else(|| P4Data { data: Some(p4_data::Data::Bitstring(bytes.to_vec())) })
}

struct DigestReader<'d> {
    types: &'d P4TypeInfo,
    bytes: &'d [u8],
    /// Bits that were read.
    at: u64,
}

impl DigestReader<'_> {
    fn bits(&mut self, width: u32, is_signed: bool) -> Option<Vec<u8>> {
        let total = self.bytes.len() as u64 * 8;
        let end = self.at.checked_add(u64::from(width)).filter(|end| *end <= total)?;
        let number = BigUint::from_bytes_be(self.bytes) >> (total - end);
        let number = number & ((BigUint::from(1u8) << width) - 1u8);
        self.at = end;
        number_bytes(&number, width, is_signed)
    }

    fn bitstring(&mut self, spec: &P4BitstringLikeTypeSpec) -> Option<Vec<u8>> {
        match spec.type_spec.as_ref()? {
            p4_bitstring_like_type_spec::TypeSpec::Bit(spec) => {
                self.bits(spec.bitwidth.unsigned_abs(), false)
            }
            p4_bitstring_like_type_spec::TypeSpec::Int(spec) => self.bits(spec.bitwidth.unsigned_abs(), true),
            p4_bitstring_like_type_spec::TypeSpec::Varbit(_) => None,
        }
    }

    fn value(&mut self, spec: &P4DataTypeSpec, depth: usize) -> Option<P4Data> {
        use p4_data_type_spec::TypeSpec;
        let depth = depth.checked_sub(1)?;
        let data = match spec.type_spec.as_ref()? {
            TypeSpec::Bitstring(spec) => p4_data::Data::Bitstring(self.bitstring(spec)?),
            TypeSpec::Bool(_) => p4_data::Data::Bool(self.bits(1, false)? != [0]),
            TypeSpec::Tuple(spec) => {
                p4_data::Data::Tuple(self.members(spec.members.iter().collect(), depth)?)
            }
            TypeSpec::Struct(name) => {
                let spec = self.types.structs.get(&name.name)?;
                let members: Option<Vec<_>> = spec.members.iter().map(|m| m.type_spec.as_ref()).collect();
                p4_data::Data::Struct(self.members(members?, depth)?)
            }
            TypeSpec::SerializableEnum(name) => {
                let spec = self.types.serializable_enums.get(&name.name)?;
                let width = spec.underlying_type.as_ref()?.bitwidth.unsigned_abs();
                p4_data::Data::EnumValue(self.bits(width, false)?)
            }
            TypeSpec::NewType(name) => match self.types.new_types.get(&name.name)?.representation.as_ref()? {
                p4_new_type_spec::Representation::OriginalType(spec) => return self.value(spec, depth),
                p4_new_type_spec::Representation::TranslatedType(spec) => match spec.sdn_type.as_ref()? {
                    p4_new_type_translation::SdnType::SdnBitwidth(width) => {
                        p4_data::Data::Bitstring(self.bits(width.unsigned_abs(), false)?)
                    }
                    p4_new_type_translation::SdnType::SdnString(_) => return None,
                },
            },
            _ => return None,
        };
        Some(P4Data { data: Some(data) })
    }

    fn members(&mut self, specs: Vec<&P4DataTypeSpec>, depth: usize) -> Option<P4StructLike> {
        let members = specs.into_iter().map(|spec| self.value(spec, depth));
        Some(P4StructLike { members: members.collect::<Option<_>>()? })
    }
}
