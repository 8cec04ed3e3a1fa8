#!/usr/bin/env python3
"""Holds the interpreter against the public bpf_conformance suite.

    bench/conformance.py RUNNER TESTS [--millstream PATH] [--output FILE]

RUNNER is `bpf_conformance_runner` of github.com/Alan-Jowett/bpf_conformance, TESTS its directory of tests. All of its
instruction groups are tried, four times: programs as they are, through the IR and back (`--roundtrip`), with all
passes in between (`--optimize`), and as terms of the prover that are evaluated (`--terms`). Standard output is the summary as JSON.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import record

WAYS = {"interpreter": "", "roundtrip": "--roundtrip", "optimize": "--optimize", "terms": "--terms"}
GROUPS = ["callx", "packet"]  # those that the runner leaves out unless asked


def suite(runner, tests, millstream, flags, folder):
    """How many passed, of how many, and the tests that did not."""
    plugin = pathlib.Path(folder, "plugin")
    plugin.write_text(f'#!/bin/sh\nexec "{millstream}" exec {flags} "$@"\n')
    plugin.chmod(0o755)
    command = [runner, "--test_file_directory", tests, "--plugin_path", str(plugin), "--cpu_version", "v4"]
    done = subprocess.run(command + ["--include_groups", *GROUPS], capture_output=True, text=True)
    found = re.search(r"Passed (\d+) out of (\d+) tests", done.stdout)
    if not found:
        sys.exit(f"the runner says nothing of its tests:\n{done.stdout}{done.stderr}")
    failed = re.findall(r'^(?:FAIL|ERROR): "?([^"\n]+?)"?(?: .*)?$', done.stdout, re.MULTILINE)
    return {"passed": int(found[1]), "of": int(found[2]), "failed": [pathlib.Path(f).name for f in failed]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runner")
    parser.add_argument("tests")
    parser.add_argument("--millstream", type=pathlib.Path, default="target/release/millstream")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        results = {
            name: suite(args.runner, args.tests, args.millstream.resolve(), flags, folder)
            for name, flags in WAYS.items()
        }
    summary = {
        **record.head("bench/conformance.py RUNNER TESTS"),
        "results": results,
    }
    record.keep(summary, args.output)


if __name__ == "__main__":
    main()
