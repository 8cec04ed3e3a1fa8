// A program that takes CAP_BPF and CAP_NET_ADMIN, behind one that takes CAP_PERFMON.
#define SEC(name) __attribute__((section(name), used))

SEC("kprobe/do_nanosleep") int trace(void *ctx)
{
    return 0;
}

SEC("xdp") int receive(void *ctx)
{
    return 2;
}

char _license[] SEC("license") = "GPL";
