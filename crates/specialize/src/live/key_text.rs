//! Text form of map keys: by their BTF types, and by names that are usual for addresses.
//!
//! Programs copy addresses out of headers as they are, into fields that they often declare as plain numbers.
//! The name of such a field, or of a map with such keys, says that it is an address.

use millstream_btf::{Btf, Composite, TypeId, TypeKind};
use millstream_isa::MapType;
use millstream_object::{MapDefinition, Object};

/// Words of names that are usual for addresses.
const ADDRESS_WORDS: [&str; 21] = [
    "addr",
    "address",
    "addresses",
    "daddr",
    "dip",
    "dst",
    "dstip",
    "gateway",
    "gw",
    "ip",
    "ips",
    "ipv",
    "nexthop",
    "saddr",
    "sip",
    "src",
    "srcip",
    "vip",
    "vips",
    "dest",
    "host",
];

/// Formats a key. For a longest-prefix map the length comes last, as people write it.
pub(super) fn key_text(object: &Object, (name, spec): (&str, &MapDefinition), key: &[u8]) -> String {
    let typed = object.btf.as_ref().zip(spec.key_type);
    let Some((btf, ty)) = typed else {
        return format!("0x{}", hex::encode(key));
    };
    if spec.map_type == MapType::LPM_TRIE
        && let Some((length, address)) = key.split_first_chunk::<4>()
        && let Ok(TypeKind::Struct(fields)) = btf.resolved(ty).map(|t| t.kind)
        && let [_, rest] = fields.members.as_slice()
    {
        // The data of a prefix is an address, whatever it is called.
        let (length, text) = (u32::from_ne_bytes(*length), value_text(btf, rest.ty, "address", address));
        let full = length as usize == 8 * address.len();
        return if full { text } else { format!("{text}/{length}") };
    }
    value_text(btf, ty, name, key)
}

/// The text of a value that has a name.
fn value_text(btf: &Btf, ty: TypeId, name: &str, bytes: &[u8]) -> String {
    let is_whole = btf.size_of(ty).is_ok_and(|size| size == bytes.len() as u64);
    let Ok(resolved) = btf.resolved(ty) else { return btf.value_text(ty, bytes) };
    match resolved.kind {
        TypeKind::Struct(_) if is_whole && btf.str(resolved.name) == "in6_addr" => address(bytes),
        TypeKind::Struct(fields) if is_whole => structure_text(btf, &fields, bytes),
        TypeKind::Int(int) if is_whole && bytes.len() == 4 && !int.signed && is_address(name) => {
            Some(address_text(bytes))
        }
        TypeKind::Array(_) | TypeKind::Union(_) if is_whole && bytes.len() == 16 && is_address(name) => {
            address(bytes)
        }
        _ => None,
    }
    .unwrap_or_else(|| btf.value_text(ty, bytes))
}

/// Formats a structure, if one of its fields is shown differently than its type alone says.
fn structure_text(btf: &Btf, fields: &Composite, bytes: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    for member in &fields.members {
        if member.bit_size != 0 || member.bit_offset % 8 != 0 {
            return None;
        }
        let (start, size) = (member.bit_offset as usize / 8, btf.size_of(member.ty).ok()? as usize);
        let part = bytes.get(start..start.checked_add(size)?)?;
        let name = btf.str(member.name);
        if name.contains("pad") && part.iter().all(|b| *b == 0) {
            continue;
        }
        parts.push(format!("{name} {}", value_text(btf, member.ty, name, part)).trim_start().to_owned());
    }
    Some(format!("{{{}}}", parts.join(", ")))
}

fn address(bytes: &[u8]) -> Option<String> {
    [4, 16].contains(&bytes.len()).then(|| address_text(bytes))
}

/// The address of these 4 or 16 bytes.
fn address_text(bytes: &[u8]) -> String {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Ipv4Addr::from(bytes).to_string();
    }
    <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).to_string()).unwrap_or_default()
}

/// Tells whether a name, of a field or a map, is usual for addresses: one of its words is.
fn is_address(name: &str) -> bool {
    name.split('_').any(|word| {
        let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
        ADDRESS_WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
    })
}

#[cfg(test)]
mod tests {
    use millstream_btf::{Array, BtfBuilder, Member};

    use super::*;

    #[test]
    fn numbers_that_are_called_addresses_are_shown_as_addresses() {
        let mut b = BtfBuilder::new();
        let (word, half, signed) =
            (b.int("unsigned int", 4, false), b.int("unsigned short", 2, false), b.int("int", 4, true));
        let be16 = b.add("__be16", TypeKind::Typedef(half));
        let words = b.add("", TypeKind::Array(Array { element: word, index: word, len: 4 }));
        let inside = [("in6_u", words, 0)].map(|(name, ty, bit_offset)| {
            let name = b.string(name);
            Member { name, ty, bit_offset, bit_size: 0 }
        });
        let in6 = b.add(
            "in6_addr",
            TypeKind::Struct(Composite { size: 16, bit_fields: false, members: inside.to_vec() }),
        );
        let fields = [
            ("src_ip", word, 0),
            ("daddr", word, 32),
            ("port", be16, 64),
            ("pad", half, 80),
            ("vip6", words, 96),
            ("n", signed, 224),
        ];
        let members = fields.map(|(name, ty, bit_offset)| {
            let name = b.string(name);
            Member { name, ty, bit_offset, bit_size: 0 }
        });
        let key = b.add(
            "key",
            TypeKind::Struct(Composite { size: 32, bit_fields: false, members: members.to_vec() }),
        );
        let btf = Btf::parse(&b.write().unwrap()).unwrap();
        let mut bytes = vec![10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 0];
        let long = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        bytes.extend(long);
        bytes.extend([255; 4]);
        let text = "{src_ip 10.0.0.1, daddr 10.0.0.2, port 80, vip6 2001:db8::1, n -1}";
        assert_eq!(value_text(&btf, key, "", &bytes), text);
        assert_eq!(value_text(&btf, in6, "", &long), "2001:db8::1");
        assert_eq!(value_text(&btf, word, "blocked_ips", &[192, 0, 2, 1]), "192.0.2.1");
        assert_eq!(value_text(&btf, word, "counters", &[1, 0, 0, 0]), "1");
        assert_eq!(value_text(&btf, word, "description", &[1, 0, 0, 0]), "1");
        assert_eq!(value_text(&btf, signed, "ip", &[1, 0, 0, 0]), "1");
        // The size differs from that of the type.
        assert_eq!(value_text(&btf, word, "ip", &[1, 2, 3]), "0x010203");
    }
}
