"""The system's calls that a sandbox is shut in by: Linux only, by ctypes. Standard library only, as all that runs in a sandbox.

Each raises OSError, with the name of what was asked for.
"""

from __future__ import annotations

import ctypes
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)

# Of mount(2), unshare(2), prctl(2), mount_setattr(2).
MS_REC = 0x4000
MS_BIND = 0x1000
MS_PRIVATE = 1 << 18
MS_NOSUID = 2
MS_NODEV = 4
MS_RDONLY = 1
MNT_DETACH = 2
NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
ATTR_RDONLY = 1
ATTR_NOSUID = 2
ATTR_NODEV = 4
AT_RECURSIVE = 0x8000
ADDR_NO_RANDOMIZE = 0x0040000
LAST_CAPABILITY = 40
LAST_DESCRIPTOR = 0x7FFFFFFF
CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_FOWNER = 3
_CLOSE_RANGE = 436
_MOUNT_SETATTR = 442
_LANDLOCK = (444, 445, 446)
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _checked(
        LIBC.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
        ),
        f"mount {kind or source} on {target}",
    )


def unmount(target: str) -> None:
    _checked(LIBC.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def protect_mount(target: str, attributes: int, deep: bool = True) -> None:
    """Read-only and such, for a mount and, where `deep`, for all that is mounted below it."""
    value = struct.pack("QQQQ", attributes, 0, 0, 0)
    _checked(
        LIBC.syscall(
            _MOUNT_SETATTR, -100, target.encode(), AT_RECURSIVE if deep else 0, value, len(value)
        ),
        f"mount_setattr {target}",
    )


def pivot_root() -> None:
    """The working directory becomes the root; what was there before is gone."""
    _checked(LIBC.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def close_range(first: int, last: int) -> None:
    _checked(LIBC.syscall(_CLOSE_RANGE, first, last, 0), "close_range")


def unshare(flags: int) -> None:
    _checked(LIBC.unshare(flags), "unshare")


def prctl(option: int, first: int = 0, second: object = 0) -> None:
    _checked(LIBC.prctl(option, ctypes.c_ulong(first), second, 0, 0), f"prctl {option}")


def fix_addresses() -> None:
    """No random addresses, from the next program on: what a program prints of an object is then the same twice."""
    now = LIBC.personality(ctypes.c_ulong(0xFFFFFFFF))
    _checked(LIBC.personality(ctypes.c_ulong(now | ADDR_NO_RANDOMIZE)), "personality")


def drop_capabilities(kept: tuple[int, ...] = ()) -> None:
    """All of them but `kept` (numbers below 32), and for good."""
    for number in set(range(LAST_CAPABILITY + 1)) - set(kept):
        # Not permitted without any: then there is nothing to drop.
        LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    bits = sum(1 << number for number in kept)
    header = struct.pack("Ii", 0x20080522, 0)
    left = struct.pack("6I", bits, bits, 0, 0, 0, 0)
    _checked(LIBC.syscall(_CAPSET[os.uname().machine], header, left), "capset")


def keep_privileges_down() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def install_filter(program: bytes) -> None:
    """A seccomp filter, a row of eight bytes for each instruction (`filters`)."""
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(held))
    prctl(PR_SET_SECCOMP, 2, described)


# ------------------------------------------------------------------------------------------------ Landlock


def landlock_version() -> int:
    """0 where the system has none."""
    return max(0, LIBC.syscall(_LANDLOCK[0], None, 0, 1))


SIGNALS_SINCE = 6  # the version that keeps signals in
_KEEP_SIGNALS = 2


def keep_signals_in() -> None:
    """From here on this process and those that it begins signal nobody else, and nobody else's children. Of two that part
    by a fork, each does it. Where the kernel has no means for it (before 6.12), nothing is done. Raises OSError: it has been done as often as it can be."""
    if landlock_version() >= SIGNALS_SINCE:
        _restrict(struct.pack("3Q", 0, 0, _KEEP_SIGNALS), [])


def landlock(readable: list[int]) -> None:
    """From here on this process reads below these folders, and does nothing else with any file."""
    version = landlock_version()
    if not version:
        raise OSError("this kernel has no Landlock")
    files = (1 << 13) - 1
    for bit, since in ((13, 2), (14, 3), (15, 5)):
        if version >= since:
            files |= 1 << bit
    # Handled: all that is done with files, TCP, and from version 6 on abstract sockets and signals.
    handled = [files]
    if version >= 4:
        handled.append(3)
    if version >= 6:
        handled.append(3)
    _restrict(struct.pack(f"{len(handled)}Q", *handled), readable)


def _restrict(rules: bytes, readable: list[int]) -> None:
    ruleset = _checked(LIBC.syscall(_LANDLOCK[0], rules, len(rules), 0), "landlock_create_ruleset")
    for fd in readable:
        rule = struct.pack("=Qi", 1 << 2 | 1 << 3, fd)  # read files, list folders
        _checked(LIBC.syscall(_LANDLOCK[1], ruleset, 1, rule, 0), "landlock_add_rule")
    _checked(LIBC.syscall(_LANDLOCK[2], ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
