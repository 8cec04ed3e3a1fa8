//! A twin of a hash map: its entries in rows of one array, found by a perfect hash, so that a lookup is two
//! loads and one comparison, without a call and without a chain.
//!
//! Keys are hashed to buckets; each bucket has a seed such that no two keys of the map get the same row (hash
//! and displace: Belazzougui, Botelho and Dietzfelbinger, ESA 2009). A row has a mark (1 if there is an
//! entry), the key, and the value. Adding a key may move the few keys of its bucket. When rows become scarce
//! the twin is useless, and a larger one is made.

use std::collections::BTreeSet;

use smallvec::SmallVec;

/// Odd, with about as many ones as zeros in every part.
pub(super) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// A second multiplier, for the place of a row.
pub(super) const PLACER: u64 = 0xd6e8_feb8_6659_fd93;
/// Rows for each bucket.
const BUCKET: u32 = 8;
/// The fewest rows.
const LEAST: u32 = 128;
/// Bytes per chunk, the unit in which changes are reported.
const CHUNK: usize = 512;

/// Layout of a key and its data in memory: behind a word that says if, or since when, they are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowLayout {
    /// Bytes of keys.
    pub key: u32,
    /// Bytes of values.
    pub value: u32,
}

impl RowLayout {
    /// Offset of the value.
    pub(super) const fn value_at(self) -> u32 {
        8 + self.key.next_multiple_of(8)
    }

    /// Bytes of a row: a part of a cache line, or whole ones.
    pub(super) const fn bytes(self) -> u32 {
        let bytes = self.value_at() + self.value.next_multiple_of(8);
        if bytes <= 32 { 32 } else { bytes.next_multiple_of(64) }
    }
}

/// Shape of a table of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerfectHashLayout {
    /// One of them.
    pub row: RowLayout,
    /// Number of rows, a power of two.
    pub count: u32,
}

impl PerfectHashLayout {
    /// A shape with room for this many entries, and half as many more.
    fn for_entries(row: RowLayout, entries: usize) -> Option<PerfectHashLayout> {
        let count = u32::try_from(entries.checked_mul(2)?).ok()?.max(LEAST).checked_next_power_of_two()?;
        Some(PerfectHashLayout { row, count })
    }

    /// The shape that takes this many bytes.
    pub(super) fn of_bytes(row: RowLayout, bytes: u32) -> Option<PerfectHashLayout> {
        let all = std::iter::successors(Some(LEAST), |count| count.checked_mul(2));
        let shapes = all.map(|count| PerfectHashLayout { row, count });
        shapes.take_while(|s| s.bytes() <= u64::from(bytes)).find(|s| s.bytes() == u64::from(bytes))
    }

    /// Bits of a bucket's number.
    pub(super) fn bucket_bits(self) -> u32 {
        (self.count / BUCKET).trailing_zeros()
    }

    /// Bits of a row's number.
    pub(super) fn row_bits(self) -> u32 {
        self.count.trailing_zeros()
    }

    /// Offset of the first row: behind the seeds, 2 bytes each.
    pub(super) fn rows_at(self) -> u32 {
        (2 * self.count / BUCKET).next_multiple_of(64)
    }

    /// Bytes of the whole table.
    pub fn bytes(self) -> u64 {
        u64::from(self.rows_at()) + u64::from(self.count) * u64::from(self.row.bytes())
    }
}

/// A twin of a hash map.
#[derive(Clone, Debug)]
pub struct PerfectHashTable {
    shape: PerfectHashLayout,
    /// Contents of the memory.
    bytes: Vec<u8>,
    /// The rows of each bucket's keys.
    buckets: Vec<SmallVec<[u32; 4]>>,
    taken: Vec<bool>,
    entries: usize,
    changed: BTreeSet<u32>,
}

/// Factor of the n-th word of a key in its hash: odd; 1 for the first.
pub(super) const fn factor(n: u32) -> u64 {
    if n == 0 { 1 } else { MULTIPLIER.rotate_left(11 * n) | 1 }
}

/// A key's words as code has them, padded with zeros.
pub(super) fn key_words(key: &[u8]) -> impl Iterator<Item = u64> {
    key.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    })
}

/// Hash of a key's words: a sum, so that no word has to wait for another. Its halves are mixed, since keys
/// may differ in the last bytes of a word alone. Its highest bits select the key's place in a twin.
pub(super) fn hash(key: &[u8]) -> u64 {
    let parts = (0..).zip(key_words(key)).map(|(n, word)| word.wrapping_mul(factor(n)));
    let sum = parts.fold(0, u64::wrapping_add);
    (sum ^ sum >> 32).wrapping_mul(MULTIPLIER)
}

impl PerfectHashTable {
    /// The widest keys and values.
    pub const WIDEST: (u32, u32) = (48, 256);

    /// The rows of these `count` entries. `None` if they take more than `most` bytes, or keys or values have
    /// other sizes.
    pub fn of<'e>(
        row: RowLayout,
        entries: impl IntoIterator<Item = (&'e [u8], &'e [u8])>,
        count: usize,
        most: u64,
    ) -> Option<PerfectHashTable> {
        let shape = PerfectHashLayout::for_entries(row, count).filter(|s| s.bytes() <= most)?;
        let buckets = vec![SmallVec::new(); (shape.count / BUCKET) as usize];
        let mut rows = PerfectHashTable {
            shape,
            bytes: vec![0; shape.bytes() as usize],
            buckets,
            taken: vec![false; shape.count as usize],
            entries: 0,
            changed: BTreeSet::new(),
        };
        for (key, value) in entries {
            rows.set(key, Some(value))?;
        }
        rows.changed.clear();
        Some(rows)
    }

    /// Sets the value of a key, or removes the key. `None` if there is no room: this twin is useless from
    /// then on.
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Option<()> {
        let RowLayout { key: key_size, value: value_size } = self.shape.row;
        let fits = value.is_none_or(|v| v.len() == value_size as usize);
        if key.len() != key_size as usize || !fits {
            return None;
        }
        let bucket = (hash(key) >> (64 - self.shape.bucket_bits())) as usize;
        let held = self.buckets[bucket].iter().position(|row| self.key(*row) == key);
        match (held, value) {
            (Some(at), Some(value)) => self.write_value(self.buckets[bucket][at], value),
            (Some(at), None) => {
                let row = self.buckets[bucket].remove(at);
                self.clear(row);
                self.entries -= 1;
            }
            (None, Some(value)) => {
                self.entries += 1;
                // Beyond three quarters seeds become hard to find.
                if self.entries > self.shape.count as usize / 4 * 3 {
                    return None;
                }
                self.add(bucket, key, value)?;
            }
            (None, None) => {}
        }
        Some(())
    }

    /// Adds a key to a bucket; the bucket's others move if its row is taken.
    fn add(&mut self, bucket: usize, key: &[u8], value: &[u8]) -> Option<()> {
        let row = self.row_of(hash(key), self.seed(bucket));
        if !self.taken[row as usize] {
            self.write(bucket, row, key, value);
            return Some(());
        }
        let rows = std::mem::take(&mut self.buckets[bucket]);
        let entry = |row: u32| (self.key(row).to_vec(), self.value(row).to_vec());
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = rows.iter().map(|row| entry(*row)).collect();
        entries.push((key.to_vec(), value.to_vec()));
        rows.iter().for_each(|row| self.clear(*row));
        let hashes: Vec<u64> = entries.iter().map(|(key, _)| hash(key)).collect();
        let seed = (0..=u16::MAX).find(|seed| self.are_free(&hashes, *seed))?;
        let at = 2 * bucket;
        self.put(at, &seed.to_le_bytes());
        for ((key, value), hash) in entries.iter().zip(hashes) {
            self.write(bucket, self.row_of(hash, seed), key, value);
        }
        Some(())
    }

    fn are_free(&self, hashes: &[u64], seed: u16) -> bool {
        let rows: SmallVec<[u32; 8]> = hashes.iter().map(|h| self.row_of(*h, seed)).collect();
        let free = |(n, row): (usize, &u32)| !self.taken[*row as usize] && !rows[..n].contains(row);
        rows.iter().enumerate().all(free)
    }

    fn row_of(&self, hash: u64, seed: u16) -> u32 {
        ((hash ^ u64::from(seed)).wrapping_mul(PLACER) >> (64 - self.shape.row_bits())) as u32
    }

    fn seed(&self, bucket: usize) -> u16 {
        u16::from_le_bytes([self.bytes[2 * bucket], self.bytes[2 * bucket + 1]])
    }

    fn start(&self, row: u32) -> usize {
        self.shape.rows_at() as usize + row as usize * self.shape.row.bytes() as usize
    }

    fn key(&self, row: u32) -> &[u8] {
        &self.bytes[self.start(row) + 8..][..self.shape.row.key as usize]
    }

    fn value(&self, row: u32) -> &[u8] {
        let at = self.start(row) + self.shape.row.value_at() as usize;
        &self.bytes[at..][..self.shape.row.value as usize]
    }

    fn write(&mut self, bucket: usize, row: u32, key: &[u8], value: &[u8]) {
        let at = self.start(row);
        self.put(at, &1u64.to_le_bytes());
        self.put(at + 8, key);
        self.write_value(row, value);
        self.taken[row as usize] = true;
        self.buckets[bucket].push(row);
    }

    fn write_value(&mut self, row: u32, value: &[u8]) {
        self.put(self.start(row) + self.shape.row.value_at() as usize, value);
    }

    fn clear(&mut self, row: u32) {
        self.put(self.start(row), &[0; 8]);
        self.taken[row as usize] = false;
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if self.bytes[at..at + bytes.len()] != *bytes {
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            self.changed.extend((at / CHUNK) as u32..=((at + bytes.len() - 1) / CHUNK) as u32);
        }
    }

    /// Shape of the rows.
    pub fn shape(&self) -> PerfectHashLayout {
        self.shape
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.bytes.len().div_ceil(CHUNK) as u32
    }

    /// Offset of a chunk in memory, and its bytes.
    pub fn chunk(&self, number: u32) -> (usize, Vec<u8>) {
        let at = number as usize * CHUNK;
        (at, self.bytes[at..self.bytes.len().min(at + CHUNK)].to_vec())
    }

    /// The chunks that have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millstream_rng::Rng;

    use super::*;

    const ROW: RowLayout = RowLayout { key: 13, value: 6 };

    /// The lookup, as variants do it in code.
    fn lookup(memory: &[u8], shape: PerfectHashLayout, key: &[u8]) -> Option<Vec<u8>> {
        let hash = hash(key);
        let bucket = (hash >> (64 - shape.bucket_bits())) as usize;
        let seed = u16::from_le_bytes([memory[2 * bucket], memory[2 * bucket + 1]]);
        let row = (hash ^ u64::from(seed)).wrapping_mul(PLACER) >> (64 - shape.row_bits());
        let row = &memory[shape.rows_at() as usize + row as usize * shape.row.bytes() as usize..];
        let held = row[0] == 1 && row[8..8 + key.len()] == *key;
        held.then(|| row[shape.row.value_at() as usize..][..shape.row.value as usize].to_vec())
    }

    /// Keys are added and removed. After each change every key is found with its value and others are not,
    /// and the chunks reported as changed cover all changes.
    #[test]
    fn keys_come_and_go_one_by_one() {
        let mut rng = Rng::new(1);
        // In their last bytes only, as addresses of one network do.
        let key = |n: u64| [&[10u8; 10][..], &(n as u32).to_be_bytes()[1..]].concat();
        let mut table: BTreeMap<Vec<u8>, Vec<u8>> = (0..300).map(|n| (key(n), vec![n as u8; 6])).collect();
        let entries = table.iter().map(|(k, v)| (k.as_slice(), v.as_slice()));
        let mut rows = PerfectHashTable::of(ROW, entries, table.len(), 1 << 20).unwrap();
        let shape = rows.shape();
        assert_eq!(PerfectHashLayout::of_bytes(ROW, shape.bytes() as u32), Some(shape));
        let whole =
            |rows: &PerfectHashTable| (0..rows.chunks()).flat_map(|n| rows.chunk(n).1).collect::<Vec<u8>>();
        let mut memory = whole(&rows);
        for _ in 0..3_000 {
            let (key, value) = (key(rng.below(700)), vec![rng.next_u32() as u8; 6]);
            let value = (!rng.below(2).is_multiple_of(2)).then_some(value);
            rows.set(&key, value.as_deref()).unwrap();
            match value {
                Some(value) => drop(table.insert(key.clone(), value)),
                None => drop(table.remove(&key)),
            }
            for number in rows.take_changed() {
                let (at, bytes) = rows.chunk(number);
                memory[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(lookup(&memory, shape, &key).as_ref(), table.get(&key));
        }
        assert!(memory == whole(&rows), "all changes were told");
        assert!((0..700).all(|n| lookup(&memory, shape, &key(n)).as_ref() == table.get(&key(n))));
    }

    /// Name of a form of keys, size in bytes, and a function from numbers to keys.
    type Form = (&'static str, u32, fn(u64) -> Vec<u8>);

    /// Numbers, addresses and ports, in any part of the key and any order, the key of zeros among them.
    #[test]
    fn keys_of_any_form_have_rows() {
        let forms: [Form; 7] = [
            ("index", 4, |n| (n as u32).to_le_bytes().into()),
            ("address", 4, |n| (0x0a00_0000 + n as u32).to_be_bytes().into()),
            ("network", 4, |n| ((n as u32) << 14).to_be_bytes().into()),
            ("long", 8, |n| n.to_be_bytes().into()),
            ("port behind", 8, |n| (n << 48).to_le_bytes().into()),
            ("even", 8, |n| (n << 12).to_le_bytes().into()),
            ("flow", 16, |n| [&[0; 6][..], &(n as u32).to_be_bytes(), &[0; 6]].concat()),
        ];
        for (name, size, key) in forms {
            for count in [16, 500, 5_000] {
                let mut numbers: Vec<u64> = (0..count).collect();
                let row = RowLayout { key: size, value: 8 };
                for turn in 0..3 {
                    let keys: Vec<(Vec<u8>, [u8; 8])> =
                        numbers.iter().map(|n| (key(*n), n.to_le_bytes())).collect();
                    let entries = keys.iter().map(|(key, n)| (key.as_slice(), n.as_slice()));
                    let rows = PerfectHashTable::of(row, entries, keys.len(), 1 << 24);
                    let rows = rows.unwrap_or_else(|| panic!("{name}, {count} keys, order {turn}"));
                    let memory: Vec<u8> = (0..rows.chunks()).flat_map(|n| rows.chunk(n).1).collect();
                    let find = |key: &[u8]| lookup(&memory, rows.shape(), key);
                    for (key, n) in &keys {
                        assert_eq!(find(key).as_deref(), Some(n.as_slice()), "{name}");
                    }
                    assert_eq!(find(&key(count)), None, "{name}");
                    match turn {
                        0 => numbers.reverse(),
                        _ => (1..numbers.len()).for_each(|n| numbers.swap(n, n * 7919 % n)),
                    }
                }
            }
        }
    }

    #[test]
    fn what_has_no_room_has_no_twin() {
        let all: Vec<[u8; 13]> =
            (0..1_000u32).map(|n| std::array::from_fn(|i| (n >> (i % 4 * 8)) as u8)).collect();
        let entries = || all.iter().map(|key| (key.as_slice(), &[0u8; 6][..]));
        assert!(
            PerfectHashTable::of(ROW, entries(), all.len(), 10_000).is_none(),
            "more memory than it may have"
        );
        let mut rows = PerfectHashTable::of(ROW, entries().take(10), 10, 1 << 20).unwrap();
        let added = entries().position(|(key, value)| rows.set(key, Some(value)).is_none());
        assert!(added.is_some_and(|n| (60..=100).contains(&n)), "{added:?}");
        assert!(rows.set(&[0; 4], None).is_none());
    }
}
