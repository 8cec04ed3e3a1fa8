#!/usr/bin/env python3
"""Click's own test suite, run with Millstream in place of Click.

    bench/click_suite.py FOLDER|FILE... [--millstream PATH] [--wrappers FOLDER] [--expected FILE] [--table FILE] [--json]

FOLDER is `test/` of a checkout of kohler/click, which stays as it is: every FILE.clicktest and FILE.testie is run in a folder of its own, with the
wrappers `click` and `click-flatten` of `dist/click` first in PATH. `click-buildtool provides CLASS` answers by the classes of Millstream.

The format is that of Click's `clicktest` (its documentation is at the end of that script): %script, %require, %file, %stdin, %expect, %expectv,
%expectx, %stdout, %stderr, %ignore, %ignorev, %ignorex, %info, %cut, %include, %eot, %eof, and regular expressions in double braces. A file
passes if its script ends with exit code 0 and every expected output is there.

The table has a row for each file: `pass`, `fail` with the first difference, or `skip` with the requirement that does not hold (or because the file
passes with a click that always fails). --expected names files that must pass, one a line (`bench/click_suite.txt` has those that do); the exit code is 1 if one of them does not.

--table writes a page of the documentation with the files that do not pass. `bench/click_suite_reasons.txt` has the reasons; without one there, the
page has the reason that the run gives.
"""

import argparse
import base64
import fnmatch
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

# Time limit for one file, in seconds.
LIMIT = 60
# The shell that runs scripts as `sh`: some tests need a printf(1) with `\x`, which dash lacks.
SHELL = shutil.which("bash") or "/bin/sh"
BLANKS = re.compile(r"[ \f\r\t\v]+")
BRACES = re.compile(r"\{\{(.*?)\}\}")
BUILDTOOL = """#!/bin/sh
# Answers `click-buildtool provides NAME...` by the classes that Millstream has.
[ "$1" = provides ] || exit 1
shift
for name; do grep -qx "$name" "$CLICK_CLASSES" || exit 1; done
"""
NETCAT = """#!/usr/bin/env python3
# Stands in for nc(1) where there is none: `nc HOST PORT`, standard input and output.
import socket, sys, threading
if len(sys.argv) != 3:
    sys.exit("nc: expected HOST PORT")
link = socket.create_connection(sys.argv[1:])
def send():
    for data in iter(lambda: sys.stdin.buffer.read1(4096), b""):
        link.sendall(data)
threading.Thread(target=send, daemon=True).start()
try:
    for data in iter(lambda: link.recv(4096), b""):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
except ConnectionResetError:
    pass
"""
REASONS = pathlib.Path(__file__).with_name("click_suite_reasons.txt")
PAGE = """# Click's own test suite

The repository of Click has a folder of tests. `bench/click_suite.py` runs them with Millstream in place of Click:

<!-- not run: it needs the sources of Click -->

    bench/click_suite.py PATH/TO/kohler-click/test --millstream target/release/millstream \\
        --expected bench/click_suite.txt --table docs/click-suite.md

Of {all} files {passed} pass, {failed} fail and {skipped} are skipped. A file is skipped if its own requirement does
not hold, or if it passes even when every call of click fails. This page is written by the script.

| file | result | why |
|---|---|---|
{rows}
"""


class Section:
    """A file of a test, or its expected or ignored lines."""

    def __init__(self, kind, flags, name, data):
        self.kind, self.flags, self.name, self.data = kind, flags, name, data


def arguments(text):
    """Flags, length in bytes and file names of a section."""
    flags, length, names = set(), None, []
    for word in text.split():
        if word[0] == "-" and len(word) > 1 and not names:
            flags |= set(word[1:])
        elif re.fullmatch(r"\+\d+", word) and not names:
            length = int(word[1:])
        else:
            names.append(word)
    return flags, length, names


def sections(path):
    """Tests of a file: for each its sections, in order."""
    lines = path.read_text(encoding="latin-1").split("\n")
    lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    kinds = {"stdin": ("file", "stdin"), "input": ("file", "stdin"), "stdout": ("expect", "stdout"), "output": ("expect", "stdout"),
             "stderr": ("expect", "stderr"), "test": ("script", ""), "desc": ("info", ""), "verbatim": ("expectv", "")}
    found, at = [], 0
    while at < len(lines):
        head = re.match(r"%\s*(\w+)\s*(.*?)\s*$", lines[at])
        at += 1
        if not head:
            continue
        kind, name = kinds.get(head[1].lower(), (head[1].lower(), ""))
        if kind == "eof":
            break
        if kind == "eot":
            yield found
            found = []
            continue
        if kind == "include":
            lines[at:at] = (path.parent / head[2]).read_text(encoding="latin-1").splitlines(keepends=True)
            continue
        flags, length, names = arguments(head[2])
        data = ""
        if length is not None:
            rest = "".join(lines[at:])
            data, lines, at = rest[:length], rest[length:].splitlines(keepends=True), 0
        else:
            while at < len(lines) and not lines[at].startswith("%"):
                data += re.sub(r"^\\%", "%", lines[at])
                at += 1
        if "d" in flags:
            data = re.sub(r"^.", "", data, flags=re.MULTILINE)
        if "e" in flags:
            data = base64.b64decode(data).decode("latin-1")
        for one in [name] if name else names or ["all" if kind.startswith("ignore") else ""]:
            found.append(Section(kind, flags, one, data))
    if found:
        yield found


def expression(line, quoted):
    """The regular expression of an expected line; text outside of double braces is literal if `quoted`."""
    literal = re.escape if quoted else str
    line = re.sub(r"\s*\{\{\?.*?\}\}\s*", "", line)
    parts = BRACES.split(line)
    return "".join(f"(?:{part})" if at % 2 else literal(part) for at, part in enumerate(parts))


def without_blanks(line):
    """A line without white space outside of double braces."""
    parts = re.split(r"(\{\{.*?\}\})", line)
    return "".join(part if part.startswith("{{") else BLANKS.sub("", part) for part in parts)


def is_ignored(line, ignores):
    """True if an %ignore section has the line."""
    for section in ignores:
        text = BLANKS.sub("", line) if "w" in section.flags else line.rstrip()
        for pattern in filter(str.strip, section.data.split("\n")):
            if section.kind == "ignorev":
                pattern = re.escape(pattern)
            elif section.kind == "ignore":
                pattern = expression(pattern, True)
            else:
                pattern = re.sub(r"\s*\{\{\?.*?\}\}\s*", "", pattern)
            if re.fullmatch(pattern, text, re.IGNORECASE if "i" in section.flags else 0):
                return True
    return False


def difference(section, text, ignores):
    """The first line that is not as expected: None if there is none."""
    if text == section.data:
        return None
    if section.kind == "expectv":
        return f"{len(text)} bytes differ from the expected {len(section.data)}"
    there = [line.rstrip() for line in text.split("\n")]
    there = [line for line in there if line and not line.startswith("clicktest_subtest ") and not is_ignored(line, ignores)]
    wanted = [line.rstrip() for line in section.data.split("\n") if line.strip()]
    if "w" in section.flags:
        there, wanted = [BLANKS.sub("", line) for line in there], [without_blanks(line) for line in wanted]
    for at in range(max(len(there), len(wanted))):
        if at == len(wanted):
            return f"not expected: {there[at]}"
        if at == len(there):
            return f"missing: {wanted[at]}"
        plain = section.kind == "expect" and "{{" not in wanted[at]
        case = re.IGNORECASE if "i" in section.flags else 0
        same = there[at] == wanted[at] if plain else re.fullmatch(expression(wanted[at], section.kind == "expect"), there[at], case)
        if not same:
            return f"expected {wanted[at]!r}, got {there[at]!r}"
    return None


def shell(script, folder, environment, stdin):
    """Runs a script as clicktest does: the first command that fails ends it."""
    command = subprocess.Popen(["sh", "-e", "-c", script], executable=SHELL, cwd=folder, env=environment, stdin=stdin,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = command.communicate(timeout=LIMIT)
        code = command.returncode
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        out, err = command.communicate()
        code = None
    return code, out.decode("latin-1"), err.decode("latin-1")


def of_kind(test, *kinds):
    return [section for section in test if section.kind in kinds]


def outcome(test, environment):
    """Result of a test, and its reason."""
    with tempfile.TemporaryDirectory(prefix="clicksuite") as name:
        folder = pathlib.Path(name) / "run"
        folder.mkdir()
        needed = "".join(section.data for section in of_kind(test, "require"))
        if needed and shell(needed, folder, environment, subprocess.DEVNULL)[0] != 0:
            lines = [line.strip() for line in needed.splitlines() if line.strip() and not line.startswith("#")]
            return "skip", f"its requirement does not hold: {'; '.join(lines)}"
        stdin = pathlib.Path(name) / "stdin"
        stdin.write_bytes(b"")
        for section in of_kind(test, "file"):
            path = stdin if section.name == "stdin" else folder / section.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(section.data.encode("latin-1"))
        for section in of_kind(test, "expect", "expectx", "expectv"):
            (folder / section.name).parent.mkdir(parents=True, exist_ok=True)
        head = 'clicktest_subtest () { echo clicktest_subtest "$@"; echo clicktest_subtest "$@" >&2; }\n'
        with open(stdin, "rb") as given:
            code, out, err = shell(head + "".join(section.data for section in of_kind(test, "script")), folder, environment, given)
        if code is None:
            return "fail", f"it takes more than {LIMIT} s"
        reason = mismatch(test, folder, {"stdout": out, "stderr": err})
        if code != 0:
            said = [line for line in err.splitlines() if line.strip()]
            return "fail", f"exit code {code}: {said[-1] if said else 'nothing is said'}"
        return ("fail", reason) if reason else ("pass", "")


def mismatch(test, folder, streams):
    """Reason why the outputs of a test are not those that it expects: None if they are."""
    expected = {}
    for section in of_kind(test, "expect", "expectx", "expectv"):
        expected.setdefault(section.name, []).append(section)
    for name, alternatives in expected.items():
        path = folder / name
        if name not in streams and not path.is_file():
            return f"{name} is not written"
        text = streams[name] if name in streams else path.read_bytes().decode("latin-1")
        ignores = [section for section in of_kind(test, "ignore", "ignorev", "ignorex") if section.name in (name, "all")]
        found = [difference(section, text, ignores) for section in alternatives]
        if all(found):
            return f"{name}: {found[0]}"
    return None


def classes(millstream):
    """Names of Millstream's element classes."""
    done = subprocess.run([millstream, "click", "-q", "-h", "classes", "-e", ""], capture_output=True, text=True, check=False)
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--millstream", default="target/release/millstream")
    parser.add_argument("--wrappers", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "dist/click")
    parser.add_argument("--expected", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    files = []
    for path in args.paths:
        files += sorted([*path.rglob("*.clicktest"), *path.rglob("*.testie")]) if path.is_dir() else [path]
    millstream = shutil.which(args.millstream) or sys.exit(f"{args.millstream}: there is no such command")
    with tempfile.TemporaryDirectory(prefix="clicksuite") as tools:
        tools = pathlib.Path(tools)
        for wrapper in args.wrappers.resolve().iterdir():
            os.symlink(wrapper, tools / wrapper.name)
        (tools / "click-buildtool").write_text(BUILDTOOL)
        (tools / "click-buildtool").chmod(0o755)
        for path in args.paths:
            # Tests of clicktest itself run the one of the suite.
            if (path / "clicktest").is_file():
                os.symlink((path / "clicktest").resolve(), tools / "clicktest")
        if not shutil.which("nc"):
            (tools / "nc").write_text(NETCAT)
            (tools / "nc").chmod(0o755)
        (tools / "classes").write_text(classes(millstream))
        environment = {**os.environ, "LC_ALL": "C", "MILLSTREAM": os.path.abspath(millstream), "CLICK_CLASSES": str(tools / "classes"),
                       "PATH": f"{tools}:{os.environ['PATH']}", "rundir": os.getcwd(), "VALGRIND": ""}
        rows = run(files, environment, args)
    report(rows, args)


def vacuous(test, environment):
    """True if a test passes although every call of click fails."""
    return outcome(test, {**environment, "MILLSTREAM": "false"})[0] == "pass"


def run(files, environment, args):
    """A row for each file: its name, result and reason."""
    rows = []
    for at, path in enumerate(files):
        if sys.stderr.isatty():
            print(f"\r{at}/{len(files)} {path.name:<60}", end="", file=sys.stderr)
        results = [outcome(test, environment) for test in sections(path)]
        if all(kind == "pass" for kind, _ in results) and all(vacuous(test, environment) for test in sections(path)):
            results = [("skip", "it passes without a working click, too")]
        worst = next((r for kind in ("fail", "skip") for r in results if r[0] == kind), ("pass", ""))
        rows.append({"file": f"{path.parent.name}/{path.name}", "result": worst[0], "reason": worst[1]})
        if not args.json:
            print(f"{worst[0]:<5} {rows[-1]['file']:<55} {worst[1][:200]}", flush=True)
    return rows


def page(rows):
    """The page of documentation: which files do not pass, and why."""
    lines = [line.split(": ", 1) for line in REASONS.read_text().splitlines() if line and not line.startswith("#")]
    counts = {kind: sum(row["result"] == kind for row in rows) for kind in ("pass", "fail", "skip")}
    table = []
    for row in rows:
        if row["result"] != "pass":
            known = next((reason for pattern, reason in lines if fnmatch.fnmatch(row["file"], pattern)), row["reason"][:150])
            name = row["file"].removesuffix(".clicktest").removesuffix(".testie")
            table.append(f"| `{name}` | {row['result']} | {known.replace('|', chr(92) + '|')} |")
    return PAGE.format(all=len(rows), passed=counts["pass"], failed=counts["fail"], skipped=counts["skip"], rows="\n".join(table))


def report(rows, args):
    """Prints the sums; the exit code says if an expected file does not pass."""
    if args.table:
        args.table.write_text(page(rows))
    passed = {row["file"] for row in rows if row["result"] == "pass"}
    if args.json:
        print(json.dumps({"schema": 1, "passed": len(passed), "files": rows}, indent=1))
    else:
        counts = {kind: sum(row["result"] == kind for row in rows) for kind in ("pass", "fail", "skip")}
        print(f"{len(rows)} files: {counts['pass']} pass, {counts['fail']} fail, {counts['skip']} are skipped")
    if args.expected:
        ran = {row["file"] for row in rows}
        lost = [name for name in args.expected.read_text().split() if name in ran and name not in passed]
        for name in lost:
            print(f"{name} does not pass", file=sys.stderr)
        sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
