"""A root and users of a sandbox's own (`open_sandbox(users=True)`), beside the one that its code is run as.

Their numbers stand for a range of the machine's that is nobody's, so that no file or process outside is theirs. The
root may write the sandbox's /etc, and has three capabilities, over the files of the sandbox's own users alone. It cannot mount,
trace, signal or become another user: only the init process starts a process as one, and only when whoever opened the sandbox says
so. Standard library only.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Mapping

from workbench.extensions.sandbox import calls

INSIDE = 1000  # the number that the sandbox's code is run as
COUNT = 1 << 12  # numbers of a sandbox, from its root's, 0, on
FIRST = 0x70000000  # the machine's: a range for each sandbox, of those that no system gives out
SANDBOXES = 1 << 16
OF_ROOT = (calls.CAP_CHOWN, calls.CAP_DAC_OVERRIDE, calls.CAP_FOWNER)
MAKERS = ("/usr/share/perl", "/usr/share/perl5")  # what Debian's adduser rests on
MOST_PASSWD = 1 << 16  # bytes
_FOLDERS = {
    "etc": 0o755,
    "etc/skel": 0o755,
    "etc/pam.d": 0o755,
    "home": 0o755,
    "home/root": 0o700,
    "run": 0o755,
    "tmp": 0o1777,
}
_ACCOUNTS = {
    "passwd": f"agent:x:{INSIDE}:{INSIDE}::/work:/bin/sh\n",
    "group": f"agent:x:{INSIDE}:\n",
}
_OF_ROOT = {
    "passwd": "root:x:0:0::/home/root:/bin/sh\n",
    "group": "root:x:0:\n",
    "pam.d/other":  # which chfn asks
    "auth required pam_rootok.so\naccount required pam_permit.so\nsession required pam_permit.so\n",
}


def first_number() -> int:
    """Where the machine's numbers begin that this process's sandbox is given. Raises OSError where there are none."""
    if os.geteuid() != 0:
        raise OSError(
            "users of a sandbox's own need a range of user numbers, and only root can give one: this is not root"
        )
    first = FIRST + os.getpid() % SANDBOXES * COUNT
    for path in ("/proc/self/uid_map", "/proc/self/gid_map"):
        ranges = [(start, count) for start, _, count in read_numbers(path, None)]
        if not any(start <= first and first + COUNT <= start + count for start, count in ranges):
            raise OSError(
                f"users of a sandbox's own need user numbers from {first} on, and there are none here ({path})"
            )
    for start, count in _taken_numbers():
        if start < first + COUNT and first < start + count:
            raise OSError(
                f"users of a sandbox's own would stand for user numbers that are somebody's: {first} and on"
            )
    return first


def _taken_numbers() -> list[tuple[int, int]]:
    """(first, how many) of the machine's users and groups, and of those that it lets them give out."""
    taken = [(user.pw_uid, 1) for user in pwd.getpwall()]
    taken += [(group.gr_gid, 1) for group in grp.getgrall()]
    for path in ("/etc/subuid", "/etc/subgid"):
        taken += [(start, count) for _, start, count in read_numbers(path, ":")]
    return taken


def read_numbers(path: str, between: str | None) -> list[list[int]]:
    """Rows of three, with 0 for what is no number."""
    if not os.path.exists(path):
        return []
    rows = []
    with open(path) as file:
        for line in file:
            words = line.strip().split(between)
            if len(words) == 3:
                rows.append([int(word) if word.isdecimal() else 0 for word in words])
    return rows


def write_map(process: int, users: str, groups: str) -> None:
    """Of the user space that this process, a folder of /proc, is in."""
    for name, content in (("setgroups", "deny"), ("uid_map", users), ("gid_map", groups)):
        fd = os.open(name, os.O_WRONLY, dir_fd=process)
        os.write(fd, content.encode())
        os.close(fd)


def enter(process: int, first: int, enter_space: Callable[[], None]) -> None:
    """A user space with all of a sandbox's numbers, which a child that is still root gives it. Raises OSError."""
    asked, ask = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(ask)
            if os.read(asked, 1):
                write_map(process, f"0 {first} {COUNT}", f"0 {first} {COUNT}")
                os._exit(0)
        finally:
            os._exit(1)
    enter_space()
    os.write(ask, b"k")
    os.close(asked)
    os.close(ask)
    if os.waitpid(child, 0)[1]:
        raise OSError(
            f"the user numbers from {first} on could not be given to the sandbox's users (uid_map)"
        )


def make_folders(disk: str, target: str, first: int) -> None:
    """What the sandbox's root may write: folders of the disk of all, in their places below `target`."""
    for name, mode in _FOLDERS.items():
        os.makedirs(f"{disk}/{name}")
        os.chmod(f"{disk}/{name}", mode)
        os.chown(f"{disk}/{name}", first, first)
        if "/" not in name:
            os.makedirs(f"{target}/{name}")
            calls.mount(f"{disk}/{name}", f"{target}/{name}", "", calls.MS_BIND)
    write_accounts(f"{disk}/etc", first, _OF_ROOT)


def write_accounts(folder: str, owner: int = -1, more: Mapping[str, str] = {}) -> None:
    """Who is who in a sandbox; `more`: what stands above the one that its code is run as."""
    os.makedirs(folder, exist_ok=True)
    for name in {**_ACCOUNTS, **more}:
        with open(f"{folder}/{name}", "w") as file:
            file.write(more.get(name, "") + _ACCOUNTS.get(name, ""))
            os.fchmod(file.fileno(), 0o644)
            os.fchown(file.fileno(), owner, owner)


def become(name: str) -> None:
    """The user of this name in the sandbox's /etc/passwd. Raises OSError, and ValueError where there is none.

    The file is the sandbox's root's: it may be anything, so it is not waited for, not followed and read up to a bound."""
    fd = os.open("/etc/passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        text = file.read(MOST_PASSWD) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    rows = [line.split(":") for line in text.decode("utf-8", "replace").splitlines()]
    accounts = [
        (int(row[2]), int(row[3]), row[5])
        for row in rows
        if len(row) == 7 and row[0] == name and row[2].isdecimal() and row[3].isdecimal()
    ]
    if not accounts or max(accounts[0][:2]) >= COUNT:
        raise ValueError(f"the sandbox has no user {name!r} with numbers below {COUNT}")
    user, group, home = accounts[0]
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    path = "/usr/sbin:/usr/bin:/sbin:/bin" if user == 0 else "/usr/bin:/bin"
    os.environ.update({"HOME": home, "PATH": path})
