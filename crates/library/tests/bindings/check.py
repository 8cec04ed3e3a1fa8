"""Calls every function of the package that needs no kernel: check.py OBJECT EXPECTED."""

import sys

import millstream


def failure(call) -> millstream.MillstreamError:
    try:
        call()
    except millstream.MillstreamError as error:
        return error
    raise AssertionError("no error")


elf, expected = (open(path, "rb").read() for path in sys.argv[1:])
assert millstream.version()
made = millstream.optimize(elf)
assert made == expected
assert millstream.optimize(elf, kernel="6.1", goal=millstream.Goal.SIZE)
before, after = millstream.programs(elf), millstream.programs(made)
assert [p.name for p in before] == [p.name for p in after] and before[0].slots >= after[0].slots
assert millstream.prove(elf, elf).equivalent is True
assert failure(lambda: millstream.optimize(b"not ELF")).code == millstream.Code.INPUT
assert "one" in str(failure(lambda: millstream.optimize(elf, kernel="one")))
assert failure(lambda: millstream.prove(elf, b"")).code == millstream.Code.INPUT
assert "no-such-if0" in str(failure(lambda: millstream.Session(elf, ["no-such-if0"])))
