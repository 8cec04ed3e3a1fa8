#!/usr/bin/env python3
"""Loads every object below a directory with other loaders, as it is and as `millstream opt` writes it.

    bench/loaders.py DIRECTORY [--millstream PATH] [--output FILE]

The loaders are libbpf (every program that it can load alone), `bpftool prog loadall` (whole objects), and
`ip link set dev DEVICE xdpgeneric object FILE program NAME` (each XDP program, on a veth pair made for it). Needs
root. Standard output is the summary as JSON: how many load before and after, and which of those that did before do not
after ("lost"). Each attempt has a BPF file system of its own, so that no pinned map stays or is found by the next.
--output also keeps the summary in a file.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import record

XDP = 6  # BPF_PROG_TYPE_XDP
DEVICE = f"mlsload{os.getpid() % 100000}"
PINS = "/sys/fs/bpf/all"
ALONE = ["unshare", "--mount", "sh", "-c", 'mount -t bpf bpf /sys/fs/bpf && exec "$@"', "sh"]


def libbpf():
    """The library, silent."""
    lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in [
        ("libbpf_set_print", pointer, [pointer]),
        ("bpf_object__open_file", pointer, [text, pointer]),
        ("bpf_object__next_program", pointer, [pointer, pointer]),
        ("bpf_object__load", integer, [pointer]),
        ("bpf_object__close", None, [pointer]),
        ("bpf_program__name", text, [pointer]),
        ("bpf_program__type", integer, [pointer]),
        ("bpf_program__set_autoload", integer, [pointer, ctypes.c_bool]),
    ]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.libbpf_set_print(None)
    return lib


def child(path):
    """Loads each program of an object alone, unless they load together: {name: [type, loaded]} on standard output."""
    lib = libbpf()

    def attempt(only):
        opened = lib.bpf_object__open_file(os.fsencode(path), None)
        if not opened:
            return None
        programs, found, at = [], [], lib.bpf_object__next_program(opened, None)
        while at:
            name = lib.bpf_program__name(at).decode(errors="replace")
            found.append((name, lib.bpf_program__type(at)))
            programs.append(at)
            at = lib.bpf_object__next_program(opened, at)
        for n, program in enumerate(programs):
            lib.bpf_program__set_autoload(program, only is None or n == only)
        loaded = lib.bpf_object__load(opened) == 0
        lib.bpf_object__close(opened)
        return found, loaded

    whole = attempt(None)
    if whole is None:
        return print("{}")
    found, loaded = whole
    each = {name: [kind, loaded or attempt(n)[1]] for n, (name, kind) in enumerate(found)}
    print(json.dumps(each))


def run(*command, timeout=1200):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "timeout")


def by_libbpf(path):
    done = run(*ALONE, sys.executable, __file__, "--child", str(path))
    return json.loads(done.stdout) if done.returncode == 0 else {}


def by_bpftool(path):
    done = run(*ALONE, "bpftool", "prog", "loadall", str(path), PINS)
    return done.returncode == 0


def by_ip(path, name):
    done = run(*ALONE, "ip", "link", "set", "dev", DEVICE, "xdpgeneric", "object", str(path), "program", name)
    run("ip", "link", "set", "dev", DEVICE, "xdpgeneric", "off")
    return done.returncode == 0


def everything(path):
    """What loads, as a set of names for each loader, and how many programs libbpf finds."""
    programs = by_libbpf(path)
    return len(programs), {
        "libbpf": {name for name, (_, loaded) in programs.items() if loaded},
        "bpftool": {"*"} if by_bpftool(path) else set(),
        "ip": {name for name, (kind, _) in programs.items() if kind == XDP and by_ip(path, name)},
    }


def compare(counts, name, before, after):
    for loader in before:
        c = counts.setdefault(loader, {"before": 0, "after": 0, "lost": [], "gained": []})
        c["before"] += len(before[loader])
        c["after"] += len(after[loader])
        c["lost"] += sorted(f"{name}: {p}" for p in before[loader] - after[loader])
        c["gained"] += sorted(f"{name}: {p}" for p in after[loader] - before[loader])


def versions():
    def first(*command):
        return run(*command).stdout.splitlines()[0]

    return {"bpftool": first("bpftool", "version"), "ip": first("ip", "-V"), "library": re.sub(r"\s+", " ", " ".join(
        run("bpftool", "version").stdout.splitlines()[1:2]))}


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()

    counts, failed, programs, objects, started = {}, {}, 0, 0, time.time()
    run("ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE + "p")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, path in record.objects(args.directory):
                objects += 1
                out = pathlib.Path(folder, path.name)  # loaders name global data after the file
                done = run(args.millstream, "opt", str(path), "-o", str(out))
                if not out.exists():
                    failed[name] = record.complaint(done)
                    continue
                found, before = everything(path)
                programs += found
                compare(counts, name, before, everything(out)[1])
                out.unlink()
    finally:
        run("ip", "link", "del", DEVICE)
    summary = {
        **record.head("bench/loaders.py DIRECTORY"),
        "versions": versions(),
        "seconds": round(time.time() - started, 1),
        "objects": objects,
        "objects_not_written": failed,
        "programs_that_libbpf_finds": programs,
        "loaders": counts,
    }
    record.keep(summary, args.output)


if __name__ == "__main__":
    main()
