"""What the scripts of this directory share: the objects below a directory, what a program complained of, and files of figures."""

import datetime
import json
import platform
import sys


def head(command):
    """What every file of figures begins with; the command as anybody can run it, without paths."""
    return {
        "schema": 1,
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "command": command,
    }


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


def keep(found, *paths):
    """Figures to standard output, and to those of the files that were asked for."""
    print(json.dumps(found, indent=1))
    for path in filter(None, paths):
        write(path, found)


def write(path, what):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what, indent=1) + "\n")
