#!/usr/bin/env python3
"""Makes kernel objects of P4 programs, for XDP and for TC, and loads each of them as it was made in several kernels.

    bench/p4_kernels.py NAME=FOLDER... --state FOLDER [--include DIR]... [--kernels here,6.1,6.12,7.2] [--again]
        [--millstream PATH] [--limit SECONDS] [--jobs N] [--output FILE]

Each NAME=FOLDER is a set of programs: all `.p4` files below the folder. Sets of others, such as `testdata/p4_16_samples`
of p4c and the solutions of the tutorials, are not part of this repository. `here` is this machine's kernel; the others boot
in virtual machines by scripts/vmrun, one machine for all objects, from MILLSTREAM_KERNELS, which `scripts/kernels --unpack`
fills. Objects and answers are kept in the state's folder, and an object that is the same as before is not asked about
again; --again makes all anew. Needs root.

The result has, for each kernel, how many objects its verifier accepts, and why it rejects others; and the programs that
become no object, by reason.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import record
from corpus_kernels import JOB, Rows, commit, release, verdicts

HOOKS = ("xdp", "tc")
GROUP = 16  # objects that one process verifies


def first_reason(messages, program):
    """The first error of a build, without its place."""
    errors = [line.split("×", 1)[1].strip() for line in messages.splitlines() if "×" in line]
    text = errors[0] if errors else messages.strip().splitlines()[0]
    return re.sub(r"^\S*:\d+(:\d+)?: ", "", text).replace(f"{program.parent}/", "").removeprefix("the program: ")


def build(args, name, program):
    """Objects of a program, by their names below the state, and why there are none for a hook."""
    objects, refused = [], {}
    for hook in HOOKS:
        target = args.state / hook / f"{name.replace('/', '-')}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        words = [args.millstream, "p4", "build", program, "-o", target, "--for", hook]
        words += [f"-I{folder}" for folder in args.include]
        try:
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=args.limit)
        except subprocess.TimeoutExpired:
            refused[hook] = f"not done in {args.limit} s"
            continue
        if done.returncode:
            refused[hook] = first_reason(done.stderr, program)
        else:
            objects.append(f"{hook}/{target.name}")
    return objects, refused


def ask(args, kernel, names):
    """Verified instructions of each object's program, or why the kernel rejects it."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files, out = folder / "files", folder / "out"
        out.mkdir()
        for hook in HOOKS:
            (files / hook).mkdir(parents=True)
        for name in names:
            shutil.copyfile(args.state / name, files / name)
        groups = [names[n : n + GROUP] for n in range(0, len(names), GROUP)]
        (files / "groups").write_text("".join(f"{n} {' '.join(group)}\n" for n, group in enumerate(groups)))
        (files / "job").write_text(JOB)
        millstream = folder / "millstream"
        subprocess.run(["strip", "-g", "-o", millstream, args.millstream], check=True)
        if kernel == "here":
            settings = {"LIMIT": str(args.limit), "MILLSTREAM": str(millstream), "OUT": str(out)}
            subprocess.run(["bash", "job"], cwd=files, env=os.environ | settings, check=True)
        else:
            kernels = pathlib.Path(os.environ["MILLSTREAM_KERNELS"])
            inside = f"cd /ms/files; export LIMIT={args.limit} MILLSTREAM=/ms/millstream OUT=/out; . ./job"
            words = [args.vmrun, "-c", "1", "-m", "3500", "-t", args.machine, "-o", out, "-i", f"{files}:/ms/files"]
            words += ["-i", f"{millstream}:/ms/millstream", kernels / kernel, inside]
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                sys.exit(f"{kernel}: {done.stderr.strip().splitlines()[-1:]}")
        found = verdicts(out)
        return {name: next(iter(found[name].values())) for name in names if found.get(name)}


def ask_all(args, kernel, names):
    """The answers of a kernel; objects that are as they were keep theirs."""
    rows = Rows(args.state / f"kernel-{kernel}.jsonl")
    digests = {name: hashlib.sha256((args.state / name).read_bytes()).hexdigest()[:16] for name in names}
    missing = [name for name in names if args.again or rows.rows.get(name, {}).get("digest") != digests[name]]
    if missing:
        print(f"{kernel}: {len(missing)} objects", file=sys.stderr)
        for name, answer in ask(args, kernel, missing).items():
            rows.add({"object": name, "digest": digests[name], "answer": answer})
    return {name: rows.rows[name]["answer"] for name in names if rows.rows.get(name, {}).get("digest") == digests[name]}


def shown(name):
    """An object's name as the result has it: its program, and its hook."""
    hook, file = name.split("/", 1)
    return f"{file.removesuffix('.o')} ({hook})"


def of_kernel(kernel, answers, names):
    """The answers of a kernel in figures."""
    rejected = {shown(name): answer.strip().splitlines()[-1] for name, answer in answers.items() if isinstance(answer, str)}
    costs = sorted((answer, name) for name, answer in answers.items() if isinstance(answer, int))
    return {
        "release": release(kernel),
        "objects": len(answers),
        "accepted": len(answers) - len(rejected),
        "rejected": rejected,
        "not_answered": [shown(name) for name in names if name not in answers],
        "verified_instructions": {
            "median": costs[len(costs) // 2][0] if costs else None,
            "most": {shown(name): cost for cost, name in costs[:-6:-1]},
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--state", type=pathlib.Path, required=True, help="folder of objects and answers")
    parser.add_argument("--include", action="append", default=[], help="folder of included files")
    parser.add_argument("--kernels", default="here,6.1,6.12,7.2")
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--vmrun", default="scripts/vmrun")
    parser.add_argument("--limit", type=int, default=300, help="seconds for a program, or for a group of objects")
    parser.add_argument("--machine", type=int, default=3600, help="seconds for a virtual machine")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="ask about all objects")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    sets = [(name, pathlib.Path(folder)) for name, _, folder in (text.partition("=") for text in args.sets)]
    files = [(name, folder, path) for name, folder in sets for path in sorted(folder.rglob("*.p4")) if path.exists()]
    programs = [(name, f"{name}/{path.relative_to(folder).with_suffix('')}", path) for name, folder, path in files]

    names, counts, refused = [], {name: {"programs": 0, "objects": 0} for name, _ in sets}, {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for (of, name, _), (objects, reasons) in zip(programs, pool.map(lambda entry: build(args, *entry[1:]), programs)):
            names += objects
            counts[of]["programs"] += 1
            counts[of]["objects"] += len(objects)
            for reason in set(reasons.values()):
                hooks = [hook for hook in HOOKS if reasons.get(hook) == reason]
                refused.setdefault(reason, []).append(name if len(hooks) == len(HOOKS) else f"{name} ({hooks[0]})")

    kernels = {kernel: of_kernel(kernel, ask_all(args, kernel, names), names) for kernel in args.kernels.split(",")}
    words = " ".join(f"{name}={'programs/p4' if name == 'millstream' else 'FOLDER'}" for name, _ in sets)
    report = {
        **record.head(f"bench/p4_kernels.py {words} --state FOLDER --kernels {args.kernels}"),
        "commit": commit(),
        "sets": counts,
        "kernels": kernels,
        "refused": dict(sorted(refused.items(), key=lambda item: -len(item[1]))),
    }
    for kernel, row in kernels.items():
        print(f"{kernel}: {row['accepted']} of {row['objects']} accepted, {len(row['not_answered'])} not answered")
    if args.output:
        record.write(args.output, report)


if __name__ == "__main__":
    main()
