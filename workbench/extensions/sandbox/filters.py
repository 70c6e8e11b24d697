"""Which of the system's calls a sandbox may make: a list of those that Python needs, and nothing else (seccomp, classic
BPF).

A call that is not on the list is "not permitted" (EPERM); one of another architecture ends the process. Numbers are
those of Linux for x86-64 and for 64-bit ARM. Standard library only.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping

_ALLOWED = {  # name: (x86_64, aarch64), None where there is none
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "close": (3, 57),
    "close_range": (436, 436),
    "lseek": (8, 62),
    "open": (2, None),
    "openat": (257, 56),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "umask": (95, 166),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "rt_sigtimedwait": (128, 137),
    "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133),
    "pause": (34, None),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "setrlimit": (160, 164),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getpgrp": (111, None),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "set_tid_address": (218, 96),
    "arch_prctl": (158, None),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "flock": (73, 32),
    "eventfd2": (290, 19),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "shutdown": (48, 210),
    "getsockopt": (55, 209),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    "getrandom": (318, 278),
    "restart_syscall": (219, 128),
    "wait4": (61, 260),
    "waitid": (247, 95),
}
# What changes files: their owner may do the last of these to any of them, whatever Landlock says of reading and writing.
_FILES = {
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "utimensat": (280, 88),
    "futimesat": (261, None),
    "utimes": (235, None),
    "utime": (132, None),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
}
_PROCESSES = {
    "fork": (57, None),
    "vfork": (58, None),
    "tkill": (200, 130),
    "tgkill": (234, 131),
}
_PROGRAMS = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "fadvise64": (221, 223),
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "fgetxattr": (193, 10),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "timer_create": (222, 107),
    "timer_settime": (223, 110),
    "timer_delete": (226, 111),
}
_OF_ROOT = {
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
}
_MORE = {"files": _FILES, "processes": _PROCESSES, "programs": _PROGRAMS, "root": _OF_ROOT}
_SOCKET = (41, 198)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKETPAIR = (53, 199)
_IOCTL = (16, 29)
_PRLIMIT = (302, 261)
_PRCTL = (157, 167)
_KILL_CALL = (62, 129)
_FCNTL = (72, 25)
# With which a process keeps others' signals out (calls.keep_signals_in): they take rights, and give none.
_LANDLOCK = ((444, 444), (446, 446))

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_EPERM = 1
_ENOSYS = 38
_EAFNOSUPPORT = 97
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_NEW_NAMESPACES = 0x7E020000 | 0x80  # every CLONE_NEW* flag
_AF_UNIX = 1
_SOCK_STREAM = 1
_SOCK_FLAGS = 0x80000 | 0x800  # closed on exec, does not block
_EVERYBODY = 0xFFFFFFFF
_FIONBIO = 0x5421
_FIOCLEX = 0x5451
_FIONCLEX = 0x5450
_TCGETS = 0x5401
# Of fcntl: descriptors, their flags, locks, how much a pipe holds. Others have the kernel send a signal of one's choice to any
# process (F_SETOWN, F_SETSIG), tell what happens in a folder of the machine (F_NOTIFY), or keep others from a file (F_SETLEASE).
_OF_DESCRIPTORS = (*range(8), *range(36, 39), *range(1030, 1033))
_PR_SET_NAME = 15
_PR_GET_NAME = 16


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _when(number: int, then: list[bytes]) -> list[bytes]:
    """`then`, which returns, for this call; else on with what follows."""
    return [_instruction(_EQUAL, number, 0, len(then)), *then]


def _only(index: int, values: tuple[int, ...]) -> list[bytes]:
    """Allowed where argument `index` (its low half) is one of these."""
    tests = [
        _instruction(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)
    ]
    return [
        _instruction(_LOAD, 16 + 8 * index),
        *tests,
        _refuse(_EPERM),
        _instruction(_RETURN, _ALLOW),
    ]


def _stream_pairs() -> list[bytes]:
    """`socketpair` of two that are bound to each other for good. One of datagrams could send to any socket that has a
    path, files and all: Landlock does not look at those."""
    streams = [_SOCK_STREAM | some for some in (0, 0x80000, 0x800, _SOCK_FLAGS)]
    return [
        _instruction(_LOAD, 16),
        _instruction(_EQUAL, _AF_UNIX, 1, 0),
        _refuse(_EPERM),
        *_only(1, tuple(streams)),
    ]


def _not_to_all() -> list[bytes]:
    """`kill`, but not of everybody at once: a sandbox's forks are processes beside each other."""
    return [
        _instruction(_LOAD, 16),
        _instruction(_EQUAL, _EVERYBODY, 0, 1),
        _refuse(_EPERM),
        _instruction(_RETURN, _ALLOW),
    ]


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


def _allowed(more: Mapping[str, bool]) -> list[tuple[int | None, ...]]:
    """The numbers of the calls on the list, with those of these groups."""
    allowed = list(_ALLOWED.values())
    for name, calls in _MORE.items():
        allowed += calls.values() if more[name] else ()
    return allowed


def why_unknown() -> str:
    """Why no filter is made for the processor that this runs on, or for this Python; "": one is."""
    machine = os.uname().machine if sys.platform == "linux" else ""
    if machine in _ARCHITECTURES and sys.maxsize > 2**32:
        return ""
    known = "it is made for Linux on x86-64 and 64-bit ARM (aarch64), and this is"
    if not machine:
        return f"{known} {sys.platform}"
    if machine not in _ARCHITECTURES:
        return f"{known} Linux on a processor of the kind {machine}"
    # Its calls have other numbers, and the filter would end the process at the first one.
    return f"{known} Linux in a Python of 32 bits"


def filter_program(
    processes: bool, programs: bool = False, root: bool = False, files: bool = True
) -> bytes:
    """The program by which the kernel looks at every call.

    files: files are changed, which only a sandbox with a disk of its own may do.
    processes: children, threads and signals are allowed, which only a sandbox with a process space of its own is.
    programs: and other programs may be started, under the same list.
    root: and files given to the sandbox's users, as its root does; what it may change of itself is bounded by the
        capabilities that it is left.
    """
    column, architecture = _ARCHITECTURES[os.uname().machine]
    more = {"files": files, "processes": processes, "programs": programs, "root": root}
    rows = _only_calls_of(architecture)
    for numbers in _allowed(more):
        if numbers[column] is not None:
            rows += _when(numbers[column], [_instruction(_RETURN, _ALLOW)])
    # Its flags cannot be read here; C libraries go back to clone.
    rows += _when(_CLONE3[column], [_refuse(_ENOSYS)])
    if processes:
        rows += _when(_CLONE[column], _without_namespaces())
        rows += _when(_KILL_CALL[column], _not_to_all())
        for numbers in _LANDLOCK:
            rows += _when(numbers[column], [_instruction(_RETURN, _ALLOW)])
    if root:
        # useradd takes this for a kernel without audits.
        rows += _when(_SOCKET[column], [_refuse(_EAFNOSUPPORT)])
    rows += _when(_SOCKETPAIR[column], _stream_pairs())
    rows += _when(_IOCTL[column], _only(1, (_FIONBIO, _FIOCLEX, _FIONCLEX, _TCGETS)))
    rows += _when(_FCNTL[column], _only(1, _OF_DESCRIPTORS))
    rows += _when(_PRLIMIT[column], _only(0, (0,)))  # of oneself only
    rows += _when(_PRCTL[column], _only(0, (_PR_SET_NAME, _PR_GET_NAME)))
    return b"".join([*rows, _refuse(_EPERM)])


def _only_calls_of(architecture: int) -> list[bytes]:
    return [
        _instruction(_LOAD, 4),
        _instruction(_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, 0),
        _instruction(_AT_LEAST, 0x40000000, 0, 1),
        _refuse(_ENOSYS),
    ]


def _without_namespaces() -> list[bytes]:
    """`clone` is allowed where it makes no namespace."""
    return [
        _instruction(_LOAD, 16),
        _instruction(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _refuse(_EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
