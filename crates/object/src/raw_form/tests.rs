//! Small programs of our own: read, damaged, written back.

use super::{Object, RawInput};
use crate::error::ObjectError;
use crate::ids::RelocKind;
use crate::kinds::{AttachType, ProgramType};
use millstream_isa::MapType;
use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use proptest::prelude::*;

const MAPS: &str = "routes { type = 11, key_size = 8, value_size = 4, max_entries = 16, fd = 0 }\n\
                    cpu-caches { type = 12, key_size = 4, value_size = 4, max_entries = 8, fd = 1\n\
                    \n\
                    cache { type = 9, key_size = 40, value_size = 16, max_entries = 1000, fd = 7 }\n";

/// The bytes of a program in the kernel's notation.
fn assembled(source: &str) -> Vec<u8> {
    let insns = assemble(source).expect("it assembles");
    encode_all(&insns).into_iter().flat_map(RawInsn::to_bytes).collect()
}

/// Looks a key up in the map of number 7.
fn program() -> Vec<u8> {
    let source = "r1 = 0\n*(u64 *)(r10 - 40) = r1\nr2 = r10\nr2 += -40\nr1 = 0 ll\n\
        call bpf_map_lookup_elem#1\nr0 = 2\nexit";
    let mut bytes = assembled(source);
    bytes[4 * 8 + 1] |= 1 << 4;
    bytes[4 * 8 + 4] = 7;
    bytes
}

fn read(name: &str, maps: Option<&str>, desc: Option<&str>) -> Result<Object, ObjectError> {
    let insns = program();
    let files = RawInput { insns: &insns, maps: maps.map(str::as_bytes), desc: desc.map(str::as_bytes) };
    Object::parse_raw(name, files, None)
}

#[test]
fn what_raw_files_leave_out_is_filled_in() {
    let object = read("dir/katran_xdp-balancer.insns", Some(MAPS), None).expect("it can be read");
    let [p] = object.programs.as_slice() else { panic!("{:?}", object.programs) };
    assert_eq!((p.name.as_str(), p.section.as_str()), ("katran_xdp-balancer", "xdp/balancer"));
    assert_eq!((p.kind.program_type, object.license.as_str()), (ProgramType::XDP, "GPL"));
    let [routes, outer, cache] = object.maps.as_slice() else { panic!("{:?}", object.maps) };
    assert_eq!((routes.spec.map_type, routes.spec.flags), (MapType::LPM_TRIE, 1));
    assert_eq!(outer.inner.as_ref(), Some(&cache.spec));
    assert_eq!((cache.name.as_str(), cache.spec.key_size, cache.spec.flags), ("cache", 40, 0));
    let kinds: Vec<_> = object.functions[0].relocs.iter().map(|r| (r.insn, r.kind)).collect();
    assert_eq!(kinds, [(4, RelocKind::Map(crate::MapId(2)))]);
}

#[test]
fn a_program_is_written_as_it_was_read() {
    let desc = "{ pgm_input_type = 1, }\n{ max_pkt_sz = 68, }";
    let object = read("x_socket-0.insns", Some(MAPS), Some(desc)).expect("it can be read");
    let files = object.write_raw().expect("it can be written");
    assert_eq!(files.insns, program());
    assert_eq!(
        (files.maps.as_deref(), files.desc.as_deref()),
        (Some(MAPS.as_bytes()), Some(desc.as_bytes()))
    );
    // As ELF, too, and from there in the raw form again, with numbers of its own.
    let elf = object.write().expect("as ELF");
    let again = Object::parse("x.o", &elf).expect("what is written can be read");
    assert_eq!(again.maps, object.maps);
    let raw = again.write_raw().expect("raw again");
    let files = RawInput { insns: &raw.insns, maps: raw.maps.as_deref(), desc: raw.desc.as_deref() };
    let last = Object::parse_raw("x_socket-0.insns", files, None).expect("and read again");
    assert_eq!(
        (&last.functions[0].insns, &last.functions[0].relocs),
        (&object.functions[0].insns, &object.functions[0].relocs)
    );
}

#[test]
fn functions_that_are_called_are_found_and_linked_again() {
    let source = "call pc+2\nr0 += 1\nexit\nr0 = 1\nexit";
    let insns = assembled(source);
    let files = RawInput { insns: &insns, ..RawInput::default() };
    let object = Object::parse_raw("xdp.insns", files, None).expect("it can be read");
    assert_eq!((object.functions.len(), object.programs.len()), (2, 1));
    assert_eq!(object.write_raw().expect("it can be written").insns, insns);
}

#[test]
fn the_section_is_found_in_the_name_of_the_file_or_by_the_description() {
    let kind = |name: &str, desc: Option<&str>| {
        let object = read(name, Some(MAPS), desc).expect("it can be read");
        (object.programs[0].section.clone(), object.programs[0].kind.program_type)
    };
    let named = |name: &str| kind(name, None);
    let tracepoint = ("tracepoint/xdp/xdp_exception".to_owned(), ProgramType::TRACEPOINT);
    assert_eq!(named("xdp_monitor_kern_tracepoint-xdp-xdp_exception.insns"), tracepoint);
    assert_eq!(
        named("syscall_tp_kern_tracepoint-syscalls-sys_enter_open.insns").0,
        "tracepoint/syscalls/sys_enter_open"
    );
    assert_eq!(
        named("xdp_router_ipv4_kern_xdp_router_ipv4.insns"),
        ("xdp_router_ipv4".into(), ProgramType::XDP)
    );
    assert_eq!(named("sockex3_kern_socket-1.insns"), ("socket/1".into(), ProgramType::SOCKET_FILTER));
    assert_eq!(named("bpf_network_from-network.insns").1, ProgramType::SCHED_CLS);
    assert_eq!(named("bpf_xdp_from-netdev.insns").1, ProgramType::XDP);
    assert_eq!(named("xdp.insns").1, ProgramType::XDP);
    assert_eq!(named("some_tcp_thing.insns"), ("program".into(), ProgramType::UNSPEC));
    let object = read("bpf_sock_recvmsg4.insns", Some(MAPS), None).expect("it can be read");
    assert_eq!(object.programs[0].kind.attach_type, Some(AttachType::CGROUP_UDP4_RECVMSG));
    let described = |n: u32| kind("some_thing.insns", Some(&format!("{{ pgm_input_type = {n}, }}"))).1;
    assert_eq!([0, 1, 2, 3].map(described)[2..], [ProgramType::XDP, ProgramType::SCHED_CLS]);
    assert_eq!(described(1), ProgramType::UNSPEC);
    assert_eq!(kind("x_socket-0.insns", Some("{ pgm_input_type = 2 }")).1, ProgramType::SOCKET_FILTER);
}

#[test]
fn a_section_that_is_given_counts_more_than_the_name() {
    let insns = program();
    let files = RawInput { insns: &insns, maps: Some(MAPS.as_bytes()), desc: None };
    let object = |section| Object::parse_raw("x_xdp.insns", files, Some(section));
    assert_eq!(object("tc").expect("tc").programs[0].kind.program_type, ProgramType::SCHED_CLS);
    let error = object("license").expect_err("no code").to_string();
    assert_eq!(error, "section license: a section of this name holds no programs");
}

#[test]
fn errors_name_the_file_and_the_place() {
    let error = |maps: &str| read("x_xdp.insns", Some(maps), None).expect_err(maps).to_string();
    let line = |what: &str| format!(".maps file, line 2: {what}");
    let with = |text: &str| error(&format!("\n{text}\n"));
    assert_eq!(with("routes"), line("a map is `name { ... }`"));
    assert_eq!(with("{ type = 1 }"), line("the map has no name"));
    assert_eq!(with("a { type = 1, colour = 2 }"), line("a map has no `colour`"));
    assert_eq!(
        with("a { type = 1, key_size = -2 }"),
        line("`key_size` is `-2`, which is no number of its size")
    );
    assert_eq!(with("a { type = 1, key_size }"), line("`key = value` is expected, not ` key_size `"));
    assert_eq!(with("a { type = 1, type = 1 }"), line("`type` is said twice"));
    assert_eq!(with("a { type = 1, fd = 0 }"), line("`key_size` is missing"));
    let long = with(&format!("a {{ {} = 1 }}", "x".repeat(100_000)));
    assert!(long.len() < 100 && long.contains("xxx...`"), "{long}");
    let twice = "a { type = 1, key_size = 4, value_size = 4, max_entries = 1, fd = 7";
    assert_eq!(error(&format!("{twice}\n{twice}")), line("there are two maps `a`"));
    assert_eq!(error(&format!("{twice}\nb{}", &twice[1..])), line("there are two maps with fd = 7"));
    assert_eq!(error(""), "function x_xdp, instruction 4: no map of the .maps file has fd = 7");
    let desc = |text: &str| read("x_xdp.insns", Some(MAPS), Some(text)).expect_err(text).to_string();
    assert_eq!(
        desc("\n\n{ pgm_input_type = 4, }"),
        ".desc file, line 3: there is no `pgm_input_type` 4, only 0 to 3"
    );
    let noted = read("x_xdp.insns", Some(MAPS), Some("{ other = 4, }")).expect("only noted");
    assert_eq!(noted.notes, [".desc file, line 1: `other` is not known, and ignored"]);
}

#[test]
fn instructions_that_raw_files_cannot_mean_are_refused() {
    let error = |insns: &[u8]| {
        let files = RawInput { insns, ..RawInput::default() };
        Object::parse_raw("x_xdp.insns", files, None).expect_err("refused").to_string()
    };
    assert_eq!(error(&[]), "function x_xdp, instruction 0: the file is empty");
    assert_eq!(error(&[0x95; 13]), "function x_xdp, instruction 1: the file ends inside it");
    assert!(error(&[0x18, 0, 0, 0, 0, 0, 0, 0]).contains("instruction 0: ld_imm64 without its second slot"));
    let mut global = [0; 16];
    global[..2].copy_from_slice(&[0x18, 0x21]);
    assert!(error(&global).contains("source register 2"), "{}", error(&global));
    assert!(error(&[0x85, 0x20, 0, 0, 9, 0, 0, 0]).contains("kernel function"));
}

#[test]
fn what_the_raw_form_cannot_say_is_not_written() {
    let object = read("x_xdp.insns", Some(MAPS), None).expect("it can be read");
    let elf = object.write().expect("as ELF");
    let mut again = Object::parse("x.o", &elf).expect("what is written can be read");
    again.maps[2].spec.flags = 2;
    let error = again.write_raw().expect_err("flags").to_string();
    assert_eq!(error, "the object cannot be written: the raw form cannot say how map cache is made");
    again.programs.clear();
    assert!(again.write_raw().expect_err("none").to_string().contains("holds one program"));
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(
        insns in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        text in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut code, mut maps) = (program(), MAPS.as_bytes().to_vec());
        insns.iter().for_each(|(at, value)| *at.get_mut(&mut code) = *value);
        text.iter().for_each(|(at, value)| *at.get_mut(&mut maps) = *value);
        let desc = &maps[..cut.index(maps.len())];
        let files = RawInput { insns: &code, maps: Some(&maps), desc: Some(desc) };
        for files in [files, RawInput { desc: None, ..files }] {
            let Ok(object) = Object::parse_raw("x_xdp.insns", files, None) else { continue };
            for p in &object.programs {
                let _ = object.link(p.func);
            }
            if let Ok(elf) = object.write() {
                prop_assert!(Object::parse("x.o", &elf).is_ok());
            }
            if let Ok(raw) = object.write_raw() {
                let files = RawInput { insns: &raw.insns, maps: raw.maps.as_deref(), desc: None };
                prop_assert!(Object::parse_raw("x_xdp.insns", files, None).is_ok());
            }
        }
    }
}
