"""What the scripts of this directory share: objects below a directory, commands and their answers, and files of figures."""

import datetime
import gzip
import json
import os
import pathlib
import platform
import subprocess
import sys
import time


def head(command):
    """What every file of figures begins with; the command as anybody can run it, without paths."""
    return {
        "schema": 1,
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpu": processor(),
        "cpus": os.cpu_count(),
        "mitigations": mitigations(),
        "command": command,
    }


def processor():
    """Its name, as the kernel has it."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def mitigations():
    """The kernel's mitigations that calls, returns and indirect jumps pay for."""
    named = []
    for name in ("spectre_v2", "retbleed", "spec_rstack_overflow"):
        path = pathlib.Path("/sys/devices/system/cpu/vulnerabilities") / name
        kept = path.read_text().split(";")[0].strip() if path.exists() else ""
        if kept not in ("", "Not affected"):
            named.append(f"{name}: {kept}")
    return "; ".join(named)


def objects(directory):
    """Objects below a directory with their names there; counted on a terminal."""
    files = sorted(directory.rglob("*.o"))
    for n, path in enumerate(files):
        if sys.stderr.isatty():
            print(f"\r{n + 1}/{len(files)}", end="", file=sys.stderr)
        yield str(path.relative_to(directory)), path


def complaint(done):
    """Why `millstream` did not do it: the first cause, which names no path."""
    causes = [line.split("─▶", 1)[1].strip() for line in done.stderr.splitlines() if "─▶" in line]
    return causes[0] if causes else f"exit code {done.returncode}"


def run(*command):
    """A command's report as JSON, or its complaint; and how long it took, in seconds."""
    started = time.monotonic()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    seconds = time.monotonic() - started
    try:
        return json.loads(done.stdout), None, seconds
    except ValueError:
        return None, complaint(done), seconds


def opt_arguments(parser):
    """What scripts that run `millstream opt` are told: how much it does, what for, and where the figures go."""
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--level", choices=("O2", "super"), default="O2")
    parser.add_argument("--goal")
    parser.add_argument("--for", dest="kernels", help="as of `opt`: any, here")
    parser.add_argument("--budget", help="of -O super, for each program")
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path)


def opt_flags(args):
    """The flags of `millstream opt` for these arguments."""
    flags = ["-O", "super"] if args.level == "super" else ["--stats"]
    said = (("--goal", args.goal), ("--for", args.kernels), ("--budget", args.budget if args.level == "super" else None))
    return flags + [word for flag, value in said if value for word in (flag, value)]


def opt_words(args):
    """These arguments as they were given to a script."""
    said = (("level", args.level), ("goal", args.goal), ("for", args.kernels), ("budget", args.budget))
    return " ".join(f"--{key} {value}" for key, value in said if value)


def prefixes(path):
    """IPv4 prefixes at the beginning of a file's lines, each once; the file may be compressed by gzip."""
    found = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            word = line.split()[0] if line.split() else ""
            address, _, length = word.partition("/")
            if length.isdigit() and address.count(".") == 3:
                found[word] = None
    return list(found)


def keep(found, *paths):
    """Figures to standard output, and to those of the files that were asked for."""
    print(json.dumps(found, indent=1))
    for path in filter(None, paths):
        write(path, found)


def write(path, what):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what, indent=1) + "\n")
