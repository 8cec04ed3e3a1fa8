"""Optimizes, proves and specializes BPF programs, by libmillstream.

>>> import millstream
>>> optimized = millstream.optimize(open("router.o", "rb").read(), kernel="here")

The shared library is found as the system finds libraries; the variable MILLSTREAM_LIBRARY names a file instead.
Every function may be called from any thread; a `Session` is used by one thread at a time.
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
import select
from types import TracebackType
from typing import Any, NamedTuple, Optional, Sequence, Type

__all__ = [
    "Adoption", "Code", "Goal", "MillstreamError", "Program", "Proof", "Session", "optimize", "programs", "prove",
    "version",
]


class Code(enum.IntEnum):
    """Reason of an error: `enum millstream_code`."""

    NO = 1
    INPUT = 2
    UNDECIDED = 3
    UNSUPPORTED = 4
    BUG = 6


class Goal(enum.IntEnum):
    """Goal of an optimization: `enum millstream_goal`."""

    BALANCED = 0
    SIZE = 1
    LATENCY = 2
    VERIFY = 3


class Adoption(enum.IntEnum):
    """Program whose place a session may take: `enum millstream_adoption`."""

    NONE = 0
    SAME = 1
    ANY = 2


class MillstreamError(Exception):
    """An error of the library, with its code."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Program(NamedTuple):
    """A program of an object, and its predicted cost."""

    name: str
    section: str
    slots: int
    machine_bytes: int
    cycles: float


class Proof(NamedTuple):
    """Result of a proof: true, false, or None if neither was found; and a line for each program."""

    equivalent: Optional[bool]
    verdicts: list[str]


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("kernel", ctypes.c_char_p),
        ("goal", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("section", ctypes.c_char_p),
        ("slots", ctypes.c_uint32),
        ("machine_bytes", ctypes.c_uint32),
        ("millicycles", ctypes.c_uint64),
    ]


class _SessionOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("program", ctypes.c_char_p),
        ("pins", ctypes.c_char_p),
        ("adopt", ctypes.c_uint32),
        ("egress", ctypes.c_uint32),
        ("generic", ctypes.c_uint32),
        ("milliseconds", ctypes.c_uint32),
    ]


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ.get("MILLSTREAM_LIBRARY", "libmillstream.so.0"))
    void, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    pointer = ctypes.POINTER
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "version": (text, []),
        "last_error": (text, []),
        "free": (None, [void]),
        "optimize": (ctypes.c_int, [text, size, pointer(_Options), pointer(void), pointer(size)]),
        "programs": (ctypes.c_int, [text, size, pointer(pointer(_Program)), pointer(size)]),
        "prove": (ctypes.c_int, [text, size, text, size, ctypes.c_uint32, pointer(void)]),
        "session_start": (
            ctypes.c_int,
            [text, size, pointer(text), size, pointer(_SessionOptions), pointer(void)],
        ),
        "session_fd": (ctypes.c_int, [void]),
        "session_next": (ctypes.c_int, [void, pointer(void)]),
        "session_stop": (ctypes.c_int, [void, ctypes.c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"millstream_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


def _error(code: int) -> MillstreamError:
    return MillstreamError(Code(code), _library.millstream_last_error().decode())


def _check(code: int) -> None:
    if code != 0:
        raise _error(code)


def _taken(memory: ctypes.c_void_p, length: Optional[int] = None) -> bytes:
    """The bytes behind a pointer that the library gave, which is released; without a length, up to a zero."""
    try:
        if length is None:
            return ctypes.cast(memory, ctypes.c_char_p).value or b""
        return ctypes.string_at(memory, length)
    finally:
        _library.millstream_free(memory)


def version() -> str:
    """The version of the library."""
    return _library.millstream_version().decode()


def optimize(elf: bytes, kernel: str = "any", goal: Goal = Goal.BALANCED) -> bytes:
    """Optimizes an object; returns the object file. `kernel` is `any`, `here` or a version such as `6.1`."""
    options = _Options(ctypes.sizeof(_Options), kernel.encode(), goal, 0)
    made, length = ctypes.c_void_p(), ctypes.c_size_t()
    _check(
        _library.millstream_optimize(
            elf, len(elf), ctypes.byref(options), ctypes.byref(made), ctypes.byref(length)
        )
    )
    return _taken(made, length.value)


def programs(elf: bytes) -> list[Program]:
    """Lists the programs of an object with their predicted costs."""
    found, count = ctypes.POINTER(_Program)(), ctypes.c_size_t()
    _check(_library.millstream_programs(elf, len(elf), ctypes.byref(found), ctypes.byref(count)))
    try:
        return [
            Program(p.name.decode(), p.section.decode(), p.slots, p.machine_bytes, p.millicycles / 1000)
            for p in found[: count.value]
        ]
    finally:
        _library.millstream_free(found)


def prove(before: bytes, after: bytes, milliseconds: int = 0) -> Proof:
    """Proves that the programs of two objects behave alike; each has so many milliseconds (0: 20 seconds)."""
    verdicts = ctypes.c_void_p()
    code = _library.millstream_prove(
        before, len(before), after, len(after), milliseconds, ctypes.byref(verdicts)
    )
    answers: dict[int, Optional[bool]] = {0: True, Code.NO: False, Code.UNDECIDED: None}
    if code not in answers:
        raise _error(code)
    return Proof(answers[code], _taken(verdicts).decode().splitlines())


class Session:
    """A program on interfaces that is specialized while it runs, by a thread of the library."""

    def __init__(
        self,
        elf: bytes,
        interfaces: Sequence[str],
        program: Optional[str] = None,
        pins: Optional[str] = None,
        adopt: Adoption = Adoption.NONE,
        egress: bool = False,
        generic: bool = False,
        milliseconds: int = 0,
    ) -> None:
        self._handle: Optional[ctypes.c_void_p] = None
        options = _SessionOptions(
            ctypes.sizeof(_SessionOptions),
            program.encode() if program else None,
            pins.encode() if pins else None,
            adopt,
            egress,
            generic,
            milliseconds,
        )
        names = (ctypes.c_char_p * len(interfaces))(*[name.encode() for name in interfaces])
        handle = ctypes.c_void_p()
        _check(
            _library.millstream_session_start(
                elf, len(elf), names, len(interfaces), ctypes.byref(options), ctypes.byref(handle)
            )
        )
        self._handle = handle

    def fileno(self) -> int:
        """The descriptor, which is readable while there is a report; for select, poll and asyncio."""
        return _library.millstream_session_fd(self._open())

    def next(self) -> Optional[dict[str, Any]]:
        """The next report; None if there is none now. Raises the error by which the session has ended."""
        report = ctypes.c_void_p()
        code = _library.millstream_session_next(self._open(), ctypes.byref(report))
        if code == Code.NO:
            return None
        _check(code)
        return json.loads(_taken(report))

    def wait(self, seconds: float) -> bool:
        """Waits for a report; returns true if there is one."""
        return bool(select.select([self], [], [], seconds)[0])

    def stop(self, keep_original: bool = False) -> None:
        """Ends the session; the interfaces get back what they had, or keep the unspecialized program."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _check(_library.millstream_session_stop(handle, keep_original))

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError("the session was stopped")
        return self._handle

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()
