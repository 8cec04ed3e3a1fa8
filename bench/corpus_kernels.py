#!/usr/bin/env python3
"""Optimizes every object below a directory once, and asks several kernels about each program, before and after.

    bench/corpus_kernels.py DIRECTORY --state FOLDER [--kernels here,5.10,6.1,6.12,7.2] [--stats] [--millstream PATH]
        [--limit SECONDS] [--only GLOB]... [--sample N] [--largest SLOTS] [--goal GOAL] [--above N] [--growth FACTOR]
        [--collect] [--output FILE]

`here` is this machine's kernel; the others boot in virtual machines by scripts/vmrun, from MILLSTREAM_KERNELS, which
`scripts/kernels --unpack` fills. The results of each step are kept in FOLDER, so that a run that was interrupted goes on.
An object that takes longer than the limit counts as a failure, and costs no more than that. --stats also runs
`opt --stats` on each object. --only takes objects whose paths match, --sample so many of them, evenly; --largest keeps large
ones from virtual machines, in which a verifier takes ten times as long without KVM. --collect asks nobody: it summarizes
what FOLDER has, for each kernel on the objects that it was asked about. Needs root.

The summary names, for each kernel, programs that loaded before and not after, and those above 1,000 verified instructions
(--above) that cost the verifier more than 1.2 times as much (--growth); and objects that `opt` refused or was slow on.
--goal is the goal of `opt`, by default its own.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import hashlib
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

import record

LARGE = 1000  # verified instructions: below, a few instructions are a large share
SECONDS = 2.0  # of a processor, for 10,000 slots
SLOTS = 10_000
SMALLEST = 1000  # slots: below, starting the process is most of the time
GROUP = 8  # files that one process verifies
BATCH = 150  # objects in one virtual machine
SHOWN = 40

# Verifies objects of a list in groups; those of a group that is not done in time, one by one.
JOB = """
while read -r group files; do
    timeout "$LIMIT" "$MILLSTREAM" verify --json --all $files >"$OUT/$group.json" 2>"$OUT/$group.err" </dev/null
    if (($? >= 124)); then
        rm -f "$OUT/$group.json"
        for file in $files; do
            name=${file%.o}
            timeout "$LIMIT" "$MILLSTREAM" verify --json --all "$file" >"$OUT/one-${name/\\//-}.json" 2>"$OUT/$group.err" </dev/null
        done
    fi
done <groups
true
"""


class Rows:
    """Answers that are kept, a line of JSON each: the last one of a name counts."""

    def __init__(self, path):
        self.path, self.lock, self.rows = path, threading.Lock(), {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # The run ended while it was written.
                self.rows[row["object"]] = row
        self.file = path.open("a")

    def add(self, row):
        with self.lock:
            self.rows[row["object"]] = row
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()


def limited(command, limit):
    """Exit code, output, messages and processor seconds of a command; the code is None if it was not done in time."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        late = threading.Event()
        timer = threading.Timer(limit, lambda: (late.set(), child.kill()))
        timer.start()
        _, status, used = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        texts = [file.read().decode(errors="replace") for file in (out, err)]
        return None if late.is_set() else child.returncode, *texts, used.ru_utime + used.ru_stime


def reason(code, messages, limit):
    """Why a command failed, in one line."""
    if code is None:
        return f"not done in {limit} s"
    done = subprocess.CompletedProcess([], code, "", messages)
    told = record.complaint(done)
    plain = [line.strip(" ×") for line in messages.splitlines() if line.strip(" ×")]
    return f"{told}: {plain[0]}" if told.startswith("exit code") and plain else told


def optimize(args, name, path, stats):
    """One object through `opt`: its slots, the processor seconds, and why it failed if it did."""
    folder = args.state / ("stats" if stats else "optimized")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    command = [args.millstream, "opt", str(path), "-o", str(target), "--json"] + (["--stats"] if stats else [])
    command += ["--goal", args.goal] if args.goal else []
    code, out, messages, seconds = limited(command, args.limit)
    row = {"object": name, "code": code, "seconds": round(seconds, 3), "written": target.exists()}
    try:
        report = json.loads(out)
        row["slots"] = sum(f["before"] for f in report["functions"])
        row["kept"] = [f["name"] for f in report["functions"] if f["outcome"] not in ("rewritten", "removed", "nothing_to_do")]
    except ValueError:
        row["reason"] = reason(code, messages, args.limit)
    if stats:
        target.unlink(missing_ok=True)
    return row


def optimize_all(args, objects, stats):
    rows = Rows(args.state / ("stats.jsonl" if stats else "opt.jsonl"))
    missing = [(name, path) for name, path in objects if name not in rows.rows]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda pair: optimize(args, *pair, stats), missing):
            rows.add(row)
    return rows.rows


def verdicts(folder):
    """Accepted programs of each file that the job tried, with verified instructions."""
    found = {}
    for path in folder.glob("*.json"):
        try:
            report = json.loads(path.read_text())
        except ValueError:
            continue
        for answer in report.get("objects", [report]):
            file = "/".join(pathlib.PurePath(answer["object"]).parts[-2:])
            found[file] = {
                f"{p['section']}: {p['name']}": p.get("verified_insns") if p["verdict"] == "accepted" else p.get("reason", p["verdict"])
                for p in answer.get("programs", [])
            }
    return found


def judge(args, kernel, batch, millstream):
    """What a kernel says about the programs of objects, before and after; nothing of those with which a machine ends early."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files, out = folder / "files", folder / "out"
        out.mkdir()
        listed = []
        for side, where in (("before", args.directory), ("after", args.state / "optimized")):
            (files / side).mkdir(parents=True)
            for n, name in enumerate(batch):
                source, target = where / name, files / side / f"{n}.o"
                if not source.exists():
                    continue
                # Symbols for debuggers are most of an object, and no kernel reads them.
                if subprocess.run(["llvm-strip-19", "-g", "-o", target, source], stderr=subprocess.DEVNULL).returncode:
                    shutil.copyfile(source, target)
                listed.append((n, f"{side}/{n}.o"))
        listed = [file for _, file in sorted(listed)]
        groups = [listed[n : n + GROUP] for n in range(0, len(listed), GROUP)]
        (files / "groups").write_text("".join(f"{n} {' '.join(group)}\n" for n, group in enumerate(groups)))
        (files / "job").write_text(JOB)
        if kernel == "here":
            settings = {"LIMIT": str(args.limit), "MILLSTREAM": str(millstream), "OUT": str(out)}
            subprocess.run(["bash", "job"], cwd=files, env=os.environ | settings, check=True)
        else:
            kernels = pathlib.Path(os.environ["MILLSTREAM_KERNELS"])
            inside = f"cd /ms/files; export LIMIT={args.limit} MILLSTREAM=/ms/millstream OUT=/out; . ./job"
            inputs = ["-i", f"{files}:/ms/files", "-i", f"{millstream}:/ms/millstream"]
            command = [args.vmrun, "-c", "1", "-m", "3500", "-t", str(args.machine), "-o", out, *inputs, kernels / kernel, inside]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                print(f"{kernel}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
                if len(batch) > 1:
                    middle = len(batch) // 2
                    return judge(args, kernel, batch[:middle], millstream) | judge(args, kernel, batch[middle:], millstream)
        found = verdicts(out)
        return {name: {side: found.get(f"{side}/{n}.o") for side in ("before", "after")} for n, name in enumerate(batch)}


def digest_of(args, name):
    return hashlib.sha256((args.state / "optimized" / name).read_bytes()).hexdigest()[:16]


def answered(args, kernel, names):
    """A kernel's rows, and the objects whose optimized form of now it was asked about."""
    rows = Rows(args.state / f"kernel-{kernel}.jsonl")
    return rows, [name for name in names if rows.rows.get(name, {}).get("digest") == digest_of(args, name)]


def judge_all(args, kernel, names):
    rows, known = answered(args, kernel, names)
    # An object that was optimized again is asked about again.
    known = set(known)
    missing = [name for name in names if name not in known]
    with tempfile.TemporaryDirectory() as folder:
        millstream = pathlib.Path(folder) / "millstream"
        subprocess.run(["strip", "-g", "-o", millstream, args.millstream], check=True)
        for n in range(0, len(missing), BATCH):
            started = time.monotonic()
            batch = missing[n : n + BATCH]
            for name, sides in judge(args, kernel, batch, millstream).items():
                rows.add({"object": name, "digest": digest_of(args, name), **sides})
            print(f"{kernel}: {n + len(batch)}/{len(missing)}, {time.monotonic() - started:.0f} s", flush=True)
    return rows.rows


def of_kernel(args, rows, names):
    """A kernel's verdicts in figures."""
    accepted, objects, lost, large, grown, unanswered = 0, 0, {}, [], {}, []
    for name in names:
        row = rows.get(name)
        if row is None or row["before"] is None or row["after"] is None:
            unanswered.append(name)
            continue
        before = {program: cost for program, cost in row["before"].items() if isinstance(cost, int) or cost is None}
        objects += bool(before)
        accepted += len(before)
        for program, cost in before.items():
            after = row["after"].get(program, "not in the object")
            if isinstance(after, str):
                lost[f"{name}: {program}"] = after.strip().splitlines()[-1] if after.strip() else after
            elif cost is not None and after is not None and cost > args.above:
                large.append((cost, after))
                if after > args.growth * cost:
                    grown[f"{name}: {program}"] = [cost, after]
    sums = [sum(side) for side in zip(*large)] or [0, 0]
    ratios = [after / before for before, after in large]
    return {
        "objects": len(names) - len(unanswered),
        "objects_not_answered": unanswered,
        "objects_with_an_accepted_program": objects,
        "programs_accepted_before": accepted,
        "rejected_after": lost,
        "large_programs": len(large),
        "large_above": args.above,
        "median_ratio": round(statistics.median(ratios), 4) if ratios else None,
        "verified_before": sums[0],
        "verified_after": sums[1],
        "verified_ratio": round(sums[1] / sums[0], 4) if sums[0] else None,
        "above_growth": grown,
    }


def of_opt(rows, names):
    """How `opt` went, in figures."""
    done = [rows[name] for name in names if name in rows]
    rates = {r["object"]: r["seconds"] * SLOTS / r["slots"] for r in done if r.get("slots", 0) >= SMALLEST}
    slow = {name: [rows[name]["slots"], rows[name]["seconds"]] for name, rate in rates.items() if rate > SECONDS}
    ordered = sorted(rates.values())
    return {
        "objects": len(done),
        "slots": sum(r.get("slots", 0) for r in done),
        "refused": {r["object"]: r.get("reason", f"exit code {r['code']}") for r in done if r["code"] != 0},
        "not_written": [r["object"] for r in done if not r["written"]],
        "codes": dict(collections.Counter(str(r["code"]) for r in done)),
        "seconds_for_10000_slots": {"median": round(ordered[len(ordered) // 2], 2), "worst": round(ordered[-1], 2)} if ordered else None,
        "slow": dict(sorted(slow.items(), key=lambda item: -rates[item[0]])[:SHOWN]),
    }


def command(args):
    """The command as anybody can run it."""
    words = ["bench/corpus_kernels.py DIRECTORY --state FOLDER --kernels", args.kernels]
    words += [f"--goal {args.goal}"] if args.goal else []
    words += [f"--above {args.above}"] if args.above != LARGE else []
    words += ["--stats"] * args.stats + ["--collect"] * args.collect + [f"--only '{glob}'" for glob in args.only]
    return " ".join(words)


def commit():
    """The commit of this script's repository."""
    folder = pathlib.Path(__file__).parent
    return subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def release(kernel):
    """The release of a kernel, as `uname -r` prints it."""
    if kernel == "here":
        return platform.release()
    modules = pathlib.Path(os.environ["MILLSTREAM_KERNELS"]) / kernel / "lib" / "modules"
    return next(path.name for path in modules.iterdir())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--state", type=pathlib.Path, required=True, help="folder of what was found so far")
    parser.add_argument("--kernels", default="here")
    parser.add_argument("--stats", action="store_true")
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--vmrun", default="scripts/vmrun")
    parser.add_argument("--limit", type=int, default=120, help="seconds for an object")
    parser.add_argument("--machine", type=int, default=3000, help="seconds for a virtual machine")
    parser.add_argument("--largest", type=int, default=20_000, help="slots of an object that a virtual machine is asked about")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="glob of paths below the directory")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--goal", help="goal of `opt`")
    parser.add_argument("--above", type=int, default=LARGE, help="verified instructions of a large program")
    parser.add_argument("--growth", type=float, default=1.2, help="factor of verified instructions that is named")
    parser.add_argument("--collect", action="store_true", help="ask nobody: summarize the state")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()

    args.state.mkdir(parents=True, exist_ok=True)
    objects = list(record.objects(args.directory))
    if args.only:
        objects = [(name, path) for name, path in objects if any(fnmatch.fnmatch(name, glob) for glob in args.only)]
    if args.sample and args.sample < len(objects):
        objects = [objects[n * len(objects) // args.sample] for n in range(args.sample)]
    names = [name for name, _ in objects]
    rows = Rows(args.state / "opt.jsonl").rows if args.collect else optimize_all(args, objects, stats=False)
    written = [name for name in names if rows.get(name, {}).get("written")]
    kernels = {}
    for kernel in args.kernels.split(","):
        if args.collect:
            known, names_asked = answered(args, kernel, written)
            kernels[kernel] = of_kernel(args, known.rows, names_asked)
            continue
        small = [name for name in written if kernel == "here" or rows[name].get("slots", 0) <= args.largest]
        kernels[kernel] = of_kernel(args, judge_all(args, kernel, small), small)
    summary = {
        **record.head(command(args)),
        "commit": commit(),
        "kernels_asked": {kernel: release(kernel) for kernel in args.kernels.split(",")},
        "opt": of_opt(rows, names),
        **({"opt_stats": of_opt(optimize_all(args, objects, stats=True), names)} if args.stats else {}),
        "kernels": kernels,
    }
    record.keep(summary, args.output)


if __name__ == "__main__":
    main()
