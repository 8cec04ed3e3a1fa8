//! Ids of the helpers that other crates name, looked up in the table by name when this crate is compiled.

use super::table::HELPERS;

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// The row of the helper of this name; a name without a row does not compile.
const fn id_of(name: &str) -> i32 {
    let mut id = 1;
    while !is_same(HELPERS[id].name.as_bytes(), name.as_bytes()) {
        id += 1;
    }
    id as i32
}

macro_rules! ids {
    ($($constant:ident $name:literal)*) => {
        $(#[doc = concat!("`bpf_", $name, "`")] pub const $constant: i32 = id_of($name);)*
    };
}

ids! {
    MAP_LOOKUP_ELEM "map_lookup_elem"
    MAP_UPDATE_ELEM "map_update_elem"
    MAP_DELETE_ELEM "map_delete_elem"
    KTIME_GET_NS "ktime_get_ns"
    TRACE_PRINTK "trace_printk"
    GET_PRANDOM_U32 "get_prandom_u32"
    GET_SMP_PROCESSOR_ID "get_smp_processor_id"
    TAIL_CALL "tail_call"
    CLONE_REDIRECT "clone_redirect"
    REDIRECT "redirect"
    PERF_EVENT_OUTPUT "perf_event_output"
    SKB_LOAD_BYTES "skb_load_bytes"
    SKB_STORE_BYTES "skb_store_bytes"
    SKB_CHANGE_TAIL "skb_change_tail"
    SKB_PULL_DATA "skb_pull_data"
    CSUM_DIFF "csum_diff"
    GET_CURRENT_TASK "get_current_task"
    XDP_ADJUST_HEAD "xdp_adjust_head"
    REDIRECT_MAP "redirect_map"
    XDP_ADJUST_META "xdp_adjust_meta"
    XDP_ADJUST_TAIL "xdp_adjust_tail"
    KTIME_GET_BOOT_NS "ktime_get_boot_ns"
    COPY_FROM_USER "copy_from_user"
    KTIME_GET_COARSE_NS "ktime_get_coarse_ns"
    IMA_INODE_HASH "ima_inode_hash"
    FOR_EACH_MAP_ELEM "for_each_map_elem"
    SYS_BPF "sys_bpf"
    TIMER_SET_CALLBACK "timer_set_callback"
    LOOP "loop"
    XDP_GET_BUFF_LEN "xdp_get_buff_len"
    XDP_LOAD_BYTES "xdp_load_bytes"
    XDP_STORE_BYTES "xdp_store_bytes"
    COPY_FROM_USER_TASK "copy_from_user_task"
    IMA_FILE_HASH "ima_file_hash"
    DYNPTR_FROM_MEM "dynptr_from_mem"
}

/// Encryption of memory by AES in counter mode: address and length, address of the key, address of the counter. A
/// helper of this project's engines that the kernel does not have, so it has no row.
pub const AES_128_CTR: i32 = 1 << 20;
