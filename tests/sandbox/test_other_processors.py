"""What a sandbox is shut in by on a processor that is not this machine's: numbers of calls from the kernel's own headers, and the
filter's program by an interpreter of its instructions."""

from __future__ import annotations

import re
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.extensions.sandbox import calls, filters, pool
from workbench.extensions.sandbox.pool import SandboxPool

COLUMNS = {"x86_64": 0, "aarch64": 1}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path(
        "/usr/include/asm-generic/unistd.h"
    ),  # 64-bit ARM has the numbers of all new processors
}
OTHERS = {"i386": 0x40000003, "arm": 0x40000028, "riscv64": 0xC00000F3}
ALONE = {
    "socket": filters._SOCKET,
    "clone": filters._CLONE,
    "clone3": filters._CLONE3,
    "socketpair": filters._SOCKETPAIR,
    "ioctl": filters._IOCTL,
    "fcntl": filters._FCNTL,
    "prlimit64": filters._PRLIMIT,
    "prctl": filters._PRCTL,
    "kill": filters._KILL_CALL,
    "landlock_create_ruleset": filters._LANDLOCK[0],
    "landlock_restrict_self": filters._LANDLOCK[1],
}
NAMED = {
    name: row
    for group in (filters._ALLOWED, *filters._MORE.values())
    for name, row in group.items()
}
ALLOW, KILL = "allow", "kill"
KINDS = [  # of filter_program: processes, programs, root, files
    (False, False, False, False),
    (True, False, False, True),
    (True, True, False, True),
    (True, True, True, True),
]


def numbers_of(machine: str) -> dict[str, int]:
    """Name -> number of each call, as the kernel's header has it."""
    if not HEADERS[machine].exists():
        pytest.skip(f"no {HEADERS[machine]} here (apt install linux-libc-dev)")
    found = re.findall(
        r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", HEADERS[machine].read_text(), re.MULTILINE
    )
    numbers = {name: int(number) for name, number in found}
    if machine == "aarch64":
        numbers["newfstatat"] = numbers.pop("fstatat")
    return numbers


def misnumbered(machine: str, table: dict[str, tuple[int | None, ...]]) -> dict[str, tuple]:
    """Calls whose number is not the kernel's, with both. A header may be older than a call, which it then lacks."""
    numbers = numbers_of(machine)
    newest = max(numbers.values())
    wrong = {}
    for name, row in table.items():
        ours, theirs = row[COLUMNS[machine]], numbers.get(name)
        if ours != theirs and not (theirs is None and ours is not None and ours > newest):
            wrong[name] = (ours, theirs)
    return wrong


@pytest.mark.parametrize("machine", COLUMNS)
def test_each_call_has_the_kernel_s_number(machine):
    assert len(NAMED) > 120
    assert misnumbered(machine, NAMED | ALONE) == {}
    by_hand = {
        "pivot_root": calls._PIVOT_ROOT[machine],
        "capset": calls._CAPSET[machine],
        "close_range": calls._CLOSE_RANGE,
        "mount_setattr": calls._MOUNT_SETATTR,
        "landlock_create_ruleset": calls._LANDLOCK[0],
        "landlock_add_rule": calls._LANDLOCK[1],
        "landlock_restrict_self": calls._LANDLOCK[2],
    }
    assert misnumbered(machine, {name: (number, number) for name, number in by_hand.items()}) == {}


@pytest.mark.parametrize("machine", COLUMNS)
def test_negative_control_another_number_is_noticed(machine):
    odd = {"read": (63, 0), "mkdir": (84, 83), "openat": (56, 257)}
    assert set(misnumbered(machine, odd)) == set(odd)


def decided(
    program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()
) -> str | int:
    """What the kernel does with a call: ALLOW, KILL, or the error that it answers with."""
    six = (*arguments, *(0,) * 6)[:6]
    facts = struct.pack("<iIQ6Q", number, architecture, 0, *(value & 2**64 - 1 for value in six))
    rows = [struct.unpack("HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    held = at = 0
    while True:
        code, if_true, if_false, value = rows[at]
        at += 1
        if code == filters._RETURN:
            kind, error = value & 0xFFFF0000, value & 0xFFFF
            return {filters._ALLOW: ALLOW, filters._KILL: KILL, filters._ERRNO: error}[kind]
        if code == filters._LOAD:
            (held,) = struct.unpack_from("<I", facts, value)
            continue
        holds = {
            filters._EQUAL: held == value,
            filters._AT_LEAST: held >= value,
            filters._ANY_BIT: bool(held & value),
        }[code]
        at += if_true if holds else if_false


def program_for(monkeypatch, machine: str, kind: tuple[bool, ...]) -> bytes:
    monkeypatch.setattr(filters.os, "uname", lambda: SimpleNamespace(machine=machine))
    return filters.filter_program(*kind)


TRIED = {  # of calls whose arguments decide: what is tried, and where it is allowed
    "socketpair": [((1, 1), True), ((1, 0x80801), True), ((1, 2), False), ((2, 1), False)],
    "ioctl": [((0, 0x5421), True), ((0, 0x5401), True), ((0, 0x5412), False)],  # TIOCSTI
    # F_DUPFD, F_SETLKW, F_DUPFD_CLOEXEC; F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
    "fcntl": [((3, command), True) for command in (0, 7, 1030)]
    + [((3, command), False) for command in (8, 10, 15, 1024, 1026)],
    "prlimit64": [((0,), True), ((1,), False)],
    "prctl": [((15,), True), ((22,), False), ((38,), False)],
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("machine", COLUMNS)
def test_a_filter_allows_what_is_on_the_list_and_nothing_else(monkeypatch, machine, kind):
    processes, programs, root, files = kind
    program = program_for(monkeypatch, machine, kind)
    column, architecture = filters._ARCHITECTURES[machine]
    groups = {"files": files, "processes": processes, "programs": programs, "root": root}
    on_it = dict(filters._ALLOWED)
    for name, rows in filters._MORE.items():
        on_it |= rows if groups[name] else {}
    expected = {row[column] for row in on_it.values()} - {None}
    if processes:
        expected |= {
            row[column] for row in (filters._CLONE, filters._KILL_CALL, *filters._LANDLOCK)
        }
    allowed = {number for number in range(600) if decided(program, architecture, number) == ALLOW}
    # Of one's own limits: process 0 is the caller. And F_DUPFD is 0.
    assert allowed == expected | {filters._PRLIMIT[column], filters._FCNTL[column]}
    for name, cases in TRIED.items():
        for arguments, is_allowed in cases:
            said = decided(program, architecture, ALONE[name][column], arguments)
            assert (said == ALLOW) is is_allowed, (name, arguments)
    if processes:
        clone, kill = filters._CLONE[column], filters._KILL_CALL[column]
        assert (
            decided(program, architecture, clone, (0x10000000,)) == filters._EPERM
        )  # a user space
        assert decided(program, architecture, clone, (0x11,)) == ALLOW
        assert decided(program, architecture, kill, (-1, 9)) == filters._EPERM
        assert decided(program, architecture, kill, (77, 9)) == ALLOW
    assert decided(program, architecture, filters._CLONE3[column]) == filters._ENOSYS


@pytest.mark.parametrize("machine", COLUMNS)
def test_a_call_of_another_architecture_ends_the_process(monkeypatch, machine):
    program = program_for(monkeypatch, machine, KINDS[0])
    of_others = [row[1] for name, row in filters._ARCHITECTURES.items() if name != machine]
    for architecture in (*OTHERS.values(), *of_others):
        assert {decided(program, architecture, number) for number in (0, 63, 94, 231)} == {KILL}
    assert decided(program, filters._ARCHITECTURES[machine][1], 0x40000000 + 59) == filters._ENOSYS


def test_negative_control_the_interpreter_sees_a_filter_that_lacks_a_row(monkeypatch):
    whole = program_for(monkeypatch, "aarch64", KINDS[0])
    write = filters._ALLOWED["write"]
    monkeypatch.setitem(filters._ALLOWED, "write", (write[0], None))
    lacking = filters.filter_program(*KINDS[0])
    architecture = filters._ARCHITECTURES["aarch64"][1]
    assert decided(whole, architecture, write[1]) == ALLOW
    assert decided(lacking, architecture, write[1]) == filters._EPERM


@pytest.mark.parametrize(
    ("machine", "bits", "words"),
    [
        ("riscv64", 2**63 - 1, "on a processor of the kind riscv64"),
        ("aarch64_be", 2**63 - 1, "on a processor of the kind aarch64_be"),
        ("aarch64", 2**31 - 1, "in a Python of 32 bits"),
        ("x86_64", 2**31 - 1, "in a Python of 32 bits"),
    ],
)
@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_where_no_filter_is_made_for_the_processor_that_is_said(
    monkeypatch, tier, machine, bits, words
):
    monkeypatch.setattr(filters.os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(filters.sys, "maxsize", bits)
    why = SandboxPool().why_not(tier)
    assert words in why and "64-bit ARM" in why


LACKING = {  # what goes wrong in the process that begins sandboxes -> what is said
    "calls\ndef none(*_): raise OSError(22, 'prctl 36: Invalid argument')\ncalls.prctl = none\n": r"adopted \(.*prctl 36",
    "calls\nos._exit(3)\n": "has ended",
}


@pytest.mark.parametrize("broken", LACKING, ids=["a call that is not there", "an end"])
def test_a_system_that_lacks_a_call_is_named_at_once(monkeypatch, broken):
    """As under an emulator of another processor, which has not all of them."""
    place = "from workbench.extensions.sandbox import forkserver"
    assert place in pool.START
    before = f"from workbench.extensions.sandbox import {broken}"
    start = pool.START.replace(place, f"{before}{place}")
    monkeypatch.setattr(pool, "START", start)
    began = time.monotonic()
    for tier in ("namespaces", "landlock"):
        assert re.search(LACKING[broken], SandboxPool().why_not(tier))
    assert time.monotonic() - began < pool.BEGIN_S


def test_negative_control_for_this_processor_nothing_is_said():
    assert filters.why_unknown() == ""
