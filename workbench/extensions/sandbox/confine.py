"""How a process shuts itself in before it runs anybody's code. Standard library only.

    namespaces   spaces of its own for users, processes, mounts, network and IPC; a root of its own, read-only, with the
                 interpreter's library in it; /work, of a bounded size, is all that can be written
    landlock     no files but the interpreter's library, for reading; no children and no threads. Names, sizes and times
                 of the machine's files are seen: no Landlock keeps them

Both: a list of the calls that may be made, no privileges and none to be had, bounds on memory, time, files. Whoever is
root becomes a user that owns nothing first.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

from workbench.extensions.sandbox import calls, users
from workbench.extensions.sandbox.filters import filter_program

NOBODYS = 65432  # the user that root becomes, known as `users.INSIDE` in a user space of its own; it owns no file
ROOT_BYTES = 1 << 20
ROOT_FILES = 4096
MOST_WORK_FILES = 2048
# Where a sandbox that may start programs finds them.
PROGRAMS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib64", "/etc/alternatives")
TEMPORARY = ".tmp"  # a folder of /work, and /tmp where there are programs
DISK = "/kept/disk"  # of all forks, out of reach; of the one whose turn it is
WORK = "/work"


def open_library(programs: bool = False, makers: bool = False) -> dict[str, int]:
    """What an interpreter needs to read, its library and the C libraries that parts of it rest on: descriptors by path.
    `programs`: those of the machine, too; `makers`: and what those that make users rest on.

    Opened by whoever starts the sandbox: the interpreter may lie in a home folder that nobody else may enter."""
    importable = filter(os.path.isdir, (os.path.dirname(os.__file__), *sys.path))
    wanted = [
        "/lib",
        "/lib64",
        "/usr/lib",
        *(PROGRAMS if programs else ()),
        *(users.MAKERS if makers else ()),
        *sorted({*map(os.path.realpath, importable)}),
    ]
    return {path: os.open(path, os.O_PATH) for path in dict.fromkeys(wanted) if os.path.isdir(path)}


def import_by_descriptor(library: Mapping[str, int]) -> None:
    """Where this user may not enter the folder that the interpreter lies in, modules are found by descriptor from now
    on."""
    closed = {
        path: f"/proc/self/fd/{fd}"
        for path, fd in library.items()
        if not os.access(path, os.R_OK | os.X_OK)
    }

    def reached(place: str) -> str:
        inside = [path for path in closed if place == path or place.startswith(f"{path}/")]
        best = max(inside, key=len, default="")
        return closed[best] + place[len(best) :] if inside else place

    sys.path[:] = [reached(os.path.realpath(path)) for path in sys.path]
    for module in list(sys.modules.values()):
        if isinstance(getattr(module, "__path__", None), list):
            module.__path__ = [reached(place) for place in module.__path__]
    sys.path_importer_cache.clear()


def become_nobody(number: int = NOBODYS) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(number, number, number)
        os.setresuid(number, number, number)
        calls.prctl(calls.PR_SET_DUMPABLE, 1)  # else /proc/self is still root's


def close_all_but(*kept: int) -> None:
    """Descriptors 0 to 2 lead nowhere."""
    _lead_nowhere()
    below = 3
    for fd in sorted(kept):
        if below < fd:
            calls.close_range(below, fd - 1)
        below = fd + 1
    calls.close_range(below, calls.LAST_DESCRIPTOR)


def _lead_nowhere() -> None:
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)
    if nowhere > 2:
        os.close(nowhere)


# ------------------------------------------------------------------------------------------------ namespaces


def enter_namespaces(limits: Mapping[str, Any]) -> None:
    """The next child is process 1 of a space of its own. Raises OSError where the system does not let it.

    Root makes the mounts as root, since the interpreter may lie where only root can go, and becomes nobody behind them;
    anybody else makes them in a user space of its own. `limits["users"]`: the sandbox has users of its own."""
    spaces = calls.NEWUSER | calls.NEWNS | calls.NEWPID | calls.NEWNET | calls.NEWIPC | calls.NEWUTS
    process = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    first = users.first_number() if limits.get("users") else None
    is_root = os.geteuid() == 0
    if is_root:
        calls.unshare(calls.NEWNS)
    else:
        _enter(spaces, process)
    _make_root(limits, NOBODYS if is_root else users.INSIDE, first)
    if first is not None:
        # Bounded here, it holds for all users of the new space together.
        most = limits["processes"] + 2
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        users.enter(
            process, first, lambda: (become_nobody(first + users.INSIDE), calls.unshare(spaces))
        )
    elif is_root:
        become_nobody()
        _enter(spaces, process)
    os.close(process)
    if limits["programs"] and first is None:
        os.makedirs(f"{DISK}/0/{TEMPORARY}", mode=0o700)
    give_work("0")
    if first is not None:
        os.chmod(WORK, 0o755)
        # Shut for its root, too.
        calls.mount("none", os.path.dirname(DISK), "tmpfs", calls.MS_RDONLY, "size=4k,mode=0")


def _enter(spaces: int, process: int) -> None:
    user = os.geteuid()
    group = os.getegid()
    calls.unshare(spaces)
    users.write_map(process, f"{users.INSIDE} {user} 1", f"{users.INSIDE} {group} 1")


def _make_root(limits: Mapping[str, Any], owner: int, first: int | None) -> None:
    """`first`: the number of the sandbox's root where it has one."""
    programs = limits["programs"]
    owner = owner if first is None else first + users.INSIDE
    library = open_library(programs, first is not None)
    nowhere = os.open("/dev/null", os.O_PATH)
    quiet = calls.MS_NOSUID | calls.MS_NODEV
    calls.mount("none", "/", "", calls.MS_REC | calls.MS_PRIVATE)
    calls.mount(
        "box", "/tmp", "tmpfs", quiet, f"size={ROOT_BYTES},nr_inodes={ROOT_FILES},mode=0755"
    )
    for name in ("dev", DISK[1:], WORK[1:]):
        os.makedirs(f"/tmp/{name}")
    calls.mount("disk", f"/tmp{DISK}", "tmpfs", quiet, _disk(limits["disk_mb"] << 20, owner))
    if first is not None:
        users.make_folders(f"/tmp{DISK}", "/tmp", first)
    elif programs:
        os.symlink(f"{WORK}/{TEMPORARY}", "/tmp/tmp")
        users.write_accounts("/tmp/etc")
    _show_library(library)
    os.close(os.open("/tmp/dev/null", os.O_CREAT | os.O_WRONLY))
    calls.mount(f"/proc/self/fd/{nowhere}", "/tmp/dev/null", "", calls.MS_BIND)
    # It swallows as before; its times and its mode are the machine's.
    calls.protect_mount("/tmp/dev/null", calls.ATTR_RDONLY | calls.ATTR_NOSUID, deep=False)
    for fd in (*library.values(), nowhere):
        os.close(fd)
    os.chdir("/tmp")
    calls.pivot_root()
    _lead_nowhere()
    kept = os.path.dirname(DISK)
    os.chown(kept, owner, owner)
    os.chmod(kept, 0)  # the root is read-only from here on, so its owner cannot change that again
    calls.protect_mount("/", calls.ATTR_RDONLY | calls.ATTR_NOSUID | calls.ATTR_NODEV, deep=False)


def _disk(size: int, owner: int) -> str:
    """Options of a disk of so many bytes, whose files are this user's."""
    return f"size={size},nr_inodes={MOST_WORK_FILES},mode=0700,uid={owner},gid={owner}"


def _show_library(library: Mapping[str, int]) -> None:
    """Folders below the new root as they are below the old one, for reading; links as links."""
    for path, source in library.items():
        if os.path.realpath(path) == path or not os.path.isdir(os.path.realpath(path)):
            _bind_readable(source, f"/tmp{path}")
    for path in library:
        if os.path.realpath(path) != path and not os.path.lexists(f"/tmp{path}"):
            os.makedirs(os.path.dirname(f"/tmp{path}"), exist_ok=True)
            os.symlink(os.path.realpath(path), f"/tmp{path}")


def mount_work(disk_bytes: int) -> None:
    """A disk of its own at /work, for whom root is about to become."""
    owner = NOBODYS if os.geteuid() == 0 else os.geteuid()
    quiet = calls.MS_NOSUID | calls.MS_NODEV
    calls.mount("disk", WORK, "tmpfs", quiet, _disk(disk_bytes, owner))


def _bind_readable(source: int, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    calls.mount(f"/proc/self/fd/{source}", target, "", calls.MS_BIND | calls.MS_REC)
    calls.protect_mount(target, calls.ATTR_RDONLY | calls.ATTR_NOSUID | calls.ATTR_NODEV)


def give_work(name: str) -> None:
    """The folder of this name on the disk is /work from now on, for all processes of the sandbox."""
    source = f"{DISK}/{name}"
    os.makedirs(source, mode=0o700, exist_ok=True)
    if os.path.ismount(WORK):
        calls.unmount(WORK)
    calls.mount(source, WORK, "", calls.MS_BIND)


# ------------------------------------------------------------------------------------------------ both


def give_up_everything(
    limits: Mapping[str, Any], processes: bool, root: bool = False, files: bool = True
) -> None:
    """Bounds, privileges, calls: what comes after this may be anybody's code. `root`: the sandbox's, which keeps three.
    `files`: it has a disk."""
    whole = resource.RLIM_INFINITY
    for kind, most in (
        ("AS", limits["memory_mb"] << 20),
        ("CPU", limits["cpu_s"]),
        ("FSIZE", limits["disk_mb"] << 20),
        ("NOFILE", limits["files"]),
        ("CORE", 0),
        ("MEMLOCK", 0),
        ("MSGQUEUE", 0),
        ("SIGPENDING", 64),
        *([("NPROC", limits["processes"] + 1)] if processes else []),
    ):
        number = getattr(resource, f"RLIMIT_{kind}", None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            most = most if hard == whole else min(most, hard)
            resource.setrlimit(number, (most, most))
    calls.drop_capabilities(users.OF_ROOT if root else ())
    calls.keep_privileges_down()
    programs = processes and limits["programs"]
    calls.install_filter(filter_program(processes, programs, root, files))
