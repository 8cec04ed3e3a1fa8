r6 = r1
r7 = 0
*(u32 *)(r10 - 4) = r7
r2 = r10
r2 += -4
r1 = 0 ll
call bpf_map_lookup_elem#1
if r0 == 0 goto out
r3 = *(u64 *)(r0 + 0)
r3 += 1
*(u64 *)(r0 + 0) = r3
